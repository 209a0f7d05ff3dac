/* AVX2 for the width-generic loops: a vector is 8 rows of a panel, a panel is 2 vectors. */
#ifndef HK_VEC_INT_H
#define HK_VEC_INT_H

#include <immintrin.h>
#include <stdint.h>

#define HK_INLINE static inline __attribute__((always_inline))

typedef __m256i vi;
typedef __m256 vf;
#define HK_PV 2 /* vectors per panel */

HK_INLINE vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
HK_INLINE void vi_store(void *p, vi x) { _mm256_storeu_si256((__m256i *)p, x); }
HK_INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
HK_INLINE vi vi_set8(int x) { return _mm256_set1_epi8((char)x); }
HK_INLINE vi vi_set16(int x) { return _mm256_set1_epi16((short)x); }
HK_INLINE vi vi_bcast(const void *p) { return _mm256_set1_epi32(*(const int32_t *)p); }
HK_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
HK_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
HK_INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
HK_INLINE vi vi_shr16(vi a, int n) { return _mm256_srli_epi16(a, n); }
HK_INLINE vi vi_shl16(vi a, int n) { return _mm256_slli_epi16(a, n); }
HK_INLINE vi vi_sar16(vi a, int n) { return _mm256_srai_epi16(a, n); }
HK_INLINE vi vi_add16(vi a, vi b) { return _mm256_add_epi16(a, b); }
HK_INLINE vi vi_add32(vi a, vi b) { return _mm256_add_epi32(a, b); }
HK_INLINE vi vi_mullo16(vi a, vi b) { return _mm256_mullo_epi16(a, b); }
HK_INLINE vi vi_madd16(vi a, vi b) { return _mm256_madd_epi16(a, b); }
HK_INLINE vi vi_maddubs(vi u, vi s) { return _mm256_maddubs_epi16(u, s); }
HK_INLINE vi vi_abs8(vi a) { return _mm256_abs_epi8(a); }
/* a with the sign of w, 0 where w is 0 */
HK_INLINE vi vi_sign8(vi a, vi w) { return _mm256_sign_epi8(a, w); }
/* bytes of a 16-byte table by index */
HK_INLINE vi vi_lut(const int8_t *table, vi index) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), index);
}
/* rows 8 * half ... of 16 bytes, as int32, and as pairs (x, x) of int16 */
HK_INLINE vi vi_rows32(const int8_t *p, int half) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * half)));
}
HK_INLINE vi vi_rows16x2(const int8_t *p, int half) {
    const char o = (char)0x80; /* each byte goes to the top of two int16 lanes, and comes down with its sign */
    const char b = (char)(8 * half);
    vi pick = _mm256_setr_epi8(o, b, o, b, o, b + 1, o, b + 1, o, b + 2, o, b + 2, o, b + 3, o, b + 3, o, b + 4, o,
                               b + 4, o, b + 5, o, b + 5, o, b + 6, o, b + 6, o, b + 7, o, b + 7);
    vi x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return vi_sar16(_mm256_shuffle_epi8(x, pick), 8);
}

/* x, computed here and now: compilers regroup integer sums and sink them behind the next loads, and then spill products
 */
HK_INLINE vi vi_pin(vi x) {
    __asm__("" : "+x"(x));
    return x;
}

HK_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
HK_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
HK_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
HK_INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
HK_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
HK_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
HK_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
HK_INLINE vf vf_of_int(vi x) { return _mm256_cvtepi32_ps(x); }
/* rows 8 * half ... of 16 unsigned bytes */
HK_INLINE vf vf_of_bytes(const uint8_t *p, int half) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * half))));
}
HK_INLINE vf vf_of_half(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
/* 2^(e - 128): (e - 1) << 23, and the two denormals below */
HK_INLINE vf vf_of_e8m0_half(const uint8_t *p) {
    vi e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    vi normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    vi denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, denormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

#endif
