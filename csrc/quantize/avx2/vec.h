/* The same as scalar/vec.h, to the bit, with AVX2 and F16C. */
#ifndef HK_QUANTIZE_VEC_H
#define HK_QUANTIZE_VEC_H

#include <immintrin.h>

#include "../vectors.h"

HK_INLINE hk_v8 v_min(hk_v8 a, hk_v8 b) { return (hk_v8)_mm256_min_ps((__m256)a, (__m256)b); }

HK_INLINE hk_v8 v_max(hk_v8 a, hk_v8 b) { return (hk_v8)_mm256_max_ps((__m256)a, (__m256)b); }

/* Per lane: where the mask is set, a, else b. */
HK_INLINE hk_v8 v_pick(hk_m8 mask, hk_v8 a, hk_v8 b) {
    return (hk_v8)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
}

HK_INLINE hk_v8 v_from_half(const uint16_t *h) { return (hk_v8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)h)); }

HK_INLINE void v_to_half(hk_v8 a, uint16_t *h) {
    _mm_storeu_si128((__m128i *)h, _mm256_cvtps_ph((__m256)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* a[i][l] <-> a[l][i] */
HK_INLINE void v_transpose(hk_v8 *a) {
    __m256 pair[8], quad[8];
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_ps((__m256)a[i], (__m256)a[i + 1]);
        pair[i + 1] = _mm256_unpackhi_ps((__m256)a[i], (__m256)a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            quad[i + 2 * j] = _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0x44);
            quad[i + 2 * j + 1] = _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        a[i] = (hk_v8)_mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20);
        a[i + 4] = (hk_v8)_mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31);
    }
}

#endif
