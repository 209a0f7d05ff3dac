/* AVX-512 (F, BW, DQ, VL) for the width-generic loops: a vector is the 16 rows of a panel. Same names as
 * avx2/vec_int.h; `half` is always 0. */
#ifndef HK_VEC_INT_H
#define HK_VEC_INT_H

#include <immintrin.h>
#include <stdint.h>

#define HK_INLINE static inline __attribute__((always_inline))

typedef __m512i vi;
typedef __m512 vf;
#define HK_PV 1 /* vectors per panel */

HK_INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
HK_INLINE void vi_store(void *p, vi x) { _mm512_storeu_si512(p, x); }
HK_INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
HK_INLINE vi vi_set8(int x) { return _mm512_set1_epi8((char)x); }
HK_INLINE vi vi_set16(int x) { return _mm512_set1_epi16((short)x); }
HK_INLINE vi vi_bcast(const void *p) { return _mm512_set1_epi32(*(const int32_t *)p); }
HK_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
HK_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
HK_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
HK_INLINE vi vi_shr16(vi a, int n) { return _mm512_srli_epi16(a, (unsigned)n); }
HK_INLINE vi vi_shl16(vi a, int n) { return _mm512_slli_epi16(a, (unsigned)n); }
HK_INLINE vi vi_sar16(vi a, int n) { return _mm512_srai_epi16(a, (unsigned)n); }
HK_INLINE vi vi_add16(vi a, vi b) { return _mm512_add_epi16(a, b); }
HK_INLINE vi vi_add32(vi a, vi b) { return _mm512_add_epi32(a, b); }
HK_INLINE vi vi_mullo16(vi a, vi b) { return _mm512_mullo_epi16(a, b); }
HK_INLINE vi vi_madd16(vi a, vi b) { return _mm512_madd_epi16(a, b); }
HK_INLINE vi vi_maddubs(vi u, vi s) { return _mm512_maddubs_epi16(u, s); }
HK_INLINE vi vi_abs8(vi a) { return _mm512_abs_epi8(a); }
/* a with the sign of w; where w is 0 it stays a, and is multiplied by |w| = 0 */
HK_INLINE vi vi_sign8(vi a, vi w) { return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(w), _mm512_setzero_si512(), a); }
HK_INLINE vi vi_lut(const int8_t *table, vi index) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), index);
}
HK_INLINE vi vi_rows32(const int8_t *p, int half) {
    (void)half;
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}
HK_INLINE vi vi_rows16x2(const int8_t *p, int half) {
    vi x = vi_rows32(p, half);
    return _mm512_or_si512(_mm512_slli_epi32(x, 16), _mm512_and_si512(x, _mm512_set1_epi32(0xffff)));
}

/* x, computed here and now: compilers regroup integer sums and sink them behind the next loads, and then spill products
 */
HK_INLINE vi vi_pin(vi x) {
#ifndef HK_NO_PIN /* set where intrinsics are emulated */
    __asm__("" : "+v"(x));
#endif
    return x;
}

HK_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
HK_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
HK_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
HK_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
HK_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
HK_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
HK_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
HK_INLINE vf vf_of_int(vi x) { return _mm512_cvtepi32_ps(x); }
HK_INLINE vf vf_of_bytes(const uint8_t *p, int half) {
    (void)half;
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
HK_INLINE vf vf_of_half(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
/* 2^(e - 128): (e - 1) << 23, and the two denormals below */
HK_INLINE vf vf_of_e8m0_half(const uint8_t *p) {
    vi e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    vi normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __mmask16 small = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(2), e);
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, small, _mm512_set1_epi32(0x00200000), e));
}

#endif
