/* AVX-512 with VNNI, and what staging for tiles needs besides. */
#ifndef HK_VEC_INT_AMX_H
#define HK_VEC_INT_AMX_H

#include "cpu/avx512vnni/vec_int.h"

HK_INLINE vi vi_shl32(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
HK_INLINE vi vi_sub8(vi a, vi b) { return _mm512_sub_epi8(a, b); }
HK_INLINE vi vi_sub16(vi a, vi b) { return _mm512_sub_epi16(a, b); }
/* bits of a where mask is 1, else of b */
HK_INLINE vi vi_select(vi mask, vi a, vi b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xca); }
/* (x, 0, x, 0) for each of 16 bytes x */
HK_INLINE vi vi_bytes32(const int8_t *p) {
    vi x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm512_or_si512(x, _mm512_slli_epi32(x, 16));
}

/* out[i] = d[i] * the sum of x[2 i] and x[2 i + 1], i < 8 */
HK_INLINE void hk_scaled_pairs(const float *d, const int16_t *x, float *out) {
    __m256i sums = _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)x), _mm256_set1_epi16(1));
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_loadu_ps(d), _mm256_cvtepi32_ps(sums)));
}
/* out[i] = d[i / 2] * x[i], i < 16 */
HK_INLINE void hk_scaled_singles(const float *d, const int16_t *x, float *out) {
    const __m256 dd = _mm256_loadu_ps(d), low = _mm256_unpacklo_ps(dd, dd), high = _mm256_unpackhi_ps(dd, dd);
    const __m128i *p = (const __m128i *)x;
    __m256 x0 = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(p)));
    __m256 x1 = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(p + 1)));
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_permute2f128_ps(low, high, 0x20), x0));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(_mm256_permute2f128_ps(low, high, 0x31), x1));
}

#endif
