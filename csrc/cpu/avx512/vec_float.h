/* Sixteen float lanes as one zmm register (AVX-512 F, BW, DQ, VL). The interface and its semantics:
 * ../scalar/vec_float.h. */
#ifndef HK_VEC_FLOAT_H
#define HK_VEC_FLOAT_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#include "../../formats/hk_half.h"

#define HK_INLINE static inline __attribute__((always_inline, unused))

typedef __m512 v16f;
typedef __mmask16 v16m;
typedef struct v16d {
    __m512d lo, hi;
} v16d;

HK_INLINE v16f v_set1(float x) { return _mm512_set1_ps(x); }
HK_INLINE v16f v_zero(void) { return _mm512_setzero_ps(); }
HK_INLINE v16f v_load(const float *p) { return _mm512_loadu_ps(p); }
HK_INLINE v16f v_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
HK_INLINE v16f v_load_bf16(const uint16_t *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
HK_INLINE v16f v_of_i8(__m128i c) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(c)); }
HK_INLINE v16f v_load_i8(const int8_t *p) { return v_of_i8(_mm_loadu_si128((const __m128i *)p)); }
HK_INLINE v16f v_load_nibbles(const uint8_t *p, int high) {
    __m128i c = _mm_loadu_si128((const __m128i *)p);
    c = _mm_and_si128(high ? _mm_srli_epi16(c, 4) : c, _mm_set1_epi8(15));
    return v_of_i8(_mm_sub_epi8(c, _mm_set1_epi8(8)));
}
HK_INLINE v16f v_load_nibble_pairs(const uint8_t *p) {
    __m128i c = _mm_loadl_epi64((const __m128i *)p), mask = _mm_set1_epi8(15);
    c = _mm_unpacklo_epi8(_mm_and_si128(c, mask), _mm_and_si128(_mm_srli_epi16(c, 4), mask));
    return v_of_i8(_mm_sub_epi8(c, _mm_set1_epi8(8)));
}
HK_INLINE void v_store(float *p, v16f a) { _mm512_storeu_ps(p, a); }
HK_INLINE void v_store_f16(uint16_t *p, v16f a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HK_INLINE v16f v_add(v16f a, v16f b) { return _mm512_add_ps(a, b); }
HK_INLINE v16f v_sub(v16f a, v16f b) { return _mm512_sub_ps(a, b); }
HK_INLINE v16f v_mul(v16f a, v16f b) { return _mm512_mul_ps(a, b); }
HK_INLINE v16f v_div(v16f a, v16f b) { return _mm512_div_ps(a, b); }
HK_INLINE v16f v_fma(v16f a, v16f b, v16f c) { return _mm512_fmadd_ps(a, b, c); }
HK_INLINE v16f v_max(v16f a, v16f b) { return _mm512_max_ps(a, b); }
HK_INLINE v16f v_min(v16f a, v16f b) { return _mm512_min_ps(a, b); }
HK_INLINE v16f v_abs(v16f a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
HK_INLINE v16f v_copysign(v16f a, v16f s) {
    __m512 sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, s));
}
HK_INLINE v16f v_round(v16f a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
HK_INLINE v16f v_pow2(v16f n) {
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}

HK_INLINE v16m v_lt(v16f a, v16f b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
HK_INLINE v16m v_isnan(v16f a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
HK_INLINE v16m m_none(void) { return 0; }
HK_INLINE v16m m_or(v16m a, v16m b) { return (v16m)(a | b); }
HK_INLINE v16m m_range(int64_t lo, int64_t hi) {
    uint32_t from = 0xffffu << (lo < 0 ? 0 : lo < 16 ? lo : 16), to = 0xffffu << (hi < 0 ? 0 : hi < 16 ? hi : 16);
    return (v16m)(from & ~to);
}
HK_INLINE uint32_t m_bits(v16m a) { return a; }
HK_INLINE v16f v_select(v16m m, v16f yes, v16f no) { return _mm512_mask_blend_ps(m, no, yes); }

HK_INLINE __m256 v_upper(v16f a) { return _mm512_extractf32x8_ps(a, 1); }
HK_INLINE float v_hsum(v16f a) {
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a), v_upper(a));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
HK_INLINE float v_hmax(v16f a) {
    __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a), v_upper(a));
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

HK_INLINE v16d d_zero(void) { return (v16d){_mm512_setzero_pd(), _mm512_setzero_pd()}; }
HK_INLINE v16d d_add_square(v16d s, v16f x) {
    __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(x)), hi = _mm512_cvtps_pd(v_upper(x));
    return (v16d){_mm512_fmadd_pd(lo, lo, s.lo), _mm512_fmadd_pd(hi, hi, s.hi)};
}
HK_INLINE double d_hsum(v16d a) {
    __m512d s8 = _mm512_add_pd(a.lo, a.hi);
    __m256d s4 = _mm256_add_pd(_mm512_castpd512_pd256(s8), _mm512_extractf64x4_pd(s8, 1));
    __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

/* The sum: codes + 128 are unsigned bytes, which psadbw adds up. */
HK_INLINE int32_t v_store_i8(int8_t *p, v16f a) {
    __m128i c = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a));
    _mm_storeu_si128((__m128i *)p, c);
    __m128i s = _mm_sad_epu8(_mm_xor_si128(c, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_unpackhi_epi64(s, s))) - 16 * 128;
}

HK_INLINE v16f v_rotate_pairs(v16f x, v16f cs) {
    __m512 a = _mm512_mul_ps(x, _mm512_moveldup_ps(cs));
    __m512 b = _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), _mm512_movehdup_ps(cs));
    return _mm512_mask_sub_ps(_mm512_add_ps(a, b), 0x5555, a, b);
}
HK_INLINE void v_load_pairs(const float *p, v16f *even, v16f *odd) {
    const __m512i pick = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 a = v_load(p), b = v_load(p + 16);
    *even = _mm512_permutex2var_ps(a, pick, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(pick, _mm512_set1_epi32(1)), b);
}

/* 6 rows x 4 zmm are 24 accumulators, beside 4 of B and 1 broadcast: 10 loads for 24 FMA. */
#define HK_TILE_ROWS       6
#define HK_TILE_VECS(rows) ((rows) <= 2 ? 8 : 4)
#define HK_TILE_K          128

#endif
