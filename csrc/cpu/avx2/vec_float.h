/* Sixteen float lanes as two ymm registers (AVX2, FMA, F16C). The interface and its semantics: ../scalar/vec_float.h.
 */
#ifndef HK_VEC_FLOAT_H
#define HK_VEC_FLOAT_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#include "../../formats/hk_half.h"

#define HK_INLINE static inline __attribute__((always_inline, unused))

typedef struct v16f {
    __m256 lo, hi;
} v16f;
typedef struct v16m {
    __m256 lo, hi; /* all ones or zeros per lane */
} v16m;
typedef struct v16d {
    __m256d d[4];
} v16d;

HK_INLINE v16f v_set1(float x) { return (v16f){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
HK_INLINE v16f v_zero(void) { return (v16f){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
HK_INLINE v16f v_load(const float *p) { return (v16f){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
HK_INLINE v16f v_load_f16(const uint16_t *p) {
    return (v16f){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
HK_INLINE __m256 v_half_bf16(const uint16_t *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
HK_INLINE v16f v_load_bf16(const uint16_t *p) { return (v16f){v_half_bf16(p), v_half_bf16(p + 8)}; }
HK_INLINE v16f v_of_i8(__m128i c) {
    return (v16f){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(c)),
                  _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(c, 8)))};
}
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
HK_INLINE void v_store(float *p, v16f a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
HK_INLINE void v_store_f16(uint16_t *p, v16f a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

HK_INLINE v16f v_add(v16f a, v16f b) { return (v16f){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
HK_INLINE v16f v_sub(v16f a, v16f b) { return (v16f){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
HK_INLINE v16f v_mul(v16f a, v16f b) { return (v16f){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
HK_INLINE v16f v_div(v16f a, v16f b) { return (v16f){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
HK_INLINE v16f v_fma(v16f a, v16f b, v16f c) {
    return (v16f){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
HK_INLINE v16f v_max(v16f a, v16f b) { return (v16f){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
HK_INLINE v16f v_min(v16f a, v16f b) { return (v16f){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
HK_INLINE v16f v_abs(v16f a) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16f){_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
HK_INLINE v16f v_copysign(v16f a, v16f s) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16f){_mm256_or_ps(_mm256_andnot_ps(sign, a.lo), _mm256_and_ps(sign, s.lo)),
                  _mm256_or_ps(_mm256_andnot_ps(sign, a.hi), _mm256_and_ps(sign, s.hi))};
}
HK_INLINE v16f v_round(v16f a) {
    enum { mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }; /* clang wants a constant expression */
    return (v16f){_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
HK_INLINE __m256 v_half_pow2(__m256 n) {
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
HK_INLINE v16f v_pow2(v16f n) { return (v16f){v_half_pow2(n.lo), v_half_pow2(n.hi)}; }

HK_INLINE v16m v_lt(v16f a, v16f b) {
    return (v16m){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
HK_INLINE v16m v_isnan(v16f a) {
    return (v16m){_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}
HK_INLINE v16m m_none(void) { return (v16m){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
HK_INLINE v16m m_or(v16m a, v16m b) { return (v16m){_mm256_or_ps(a.lo, b.lo), _mm256_or_ps(a.hi, b.hi)}; }
HK_INLINE v16m m_range(int64_t lo, int64_t hi) {
    v16f lane = {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
    v16m below = v_lt(lane, v_set1((float)lo)), above = v_lt(lane, v_set1((float)hi));
    return (v16m){_mm256_andnot_ps(below.lo, above.lo), _mm256_andnot_ps(below.hi, above.hi)};
}
HK_INLINE uint32_t m_bits(v16m a) {
    return (uint32_t)_mm256_movemask_ps(a.lo) | (uint32_t)_mm256_movemask_ps(a.hi) << 8;
}
HK_INLINE v16f v_select(v16m m, v16f yes, v16f no) {
    return (v16f){_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}

HK_INLINE float v_hsum(v16f a) {
    __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
HK_INLINE float v_hmax(v16f a) {
    __m256 s8 = _mm256_max_ps(a.lo, a.hi);
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

HK_INLINE v16d d_zero(void) {
    __m256d z = _mm256_setzero_pd();
    return (v16d){{z, z, z, z}};
}
HK_INLINE __m256d d_quarter(__m256d s, __m128 x) {
    __m256d wide = _mm256_cvtps_pd(x);
    return _mm256_fmadd_pd(wide, wide, s);
}
HK_INLINE v16d d_add_square(v16d s, v16f x) {
    s.d[0] = d_quarter(s.d[0], _mm256_castps256_ps128(x.lo));
    s.d[1] = d_quarter(s.d[1], _mm256_extractf128_ps(x.lo, 1));
    s.d[2] = d_quarter(s.d[2], _mm256_castps256_ps128(x.hi));
    s.d[3] = d_quarter(s.d[3], _mm256_extractf128_ps(x.hi, 1));
    return s;
}
HK_INLINE double d_hsum(v16d a) {
    __m256d s4 = _mm256_add_pd(_mm256_add_pd(a.d[0], a.d[2]), _mm256_add_pd(a.d[1], a.d[3]));
    __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

/* The sum: codes + 128 are unsigned bytes, which psadbw adds up. */
HK_INLINE int32_t v_store_i8(int8_t *p, v16f a) {
    __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    w = _mm256_permute4x64_epi64(w, 0xd8);
    __m128i c = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storeu_si128((__m128i *)p, c);
    __m128i s = _mm_sad_epu8(_mm_xor_si128(c, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_unpackhi_epi64(s, s))) - 16 * 128;
}

HK_INLINE __m256 v_half_rotate(__m256 x, __m256 cs) {
    __m256 swapped = _mm256_permute_ps(x, 0xb1);
    return _mm256_addsub_ps(_mm256_mul_ps(x, _mm256_moveldup_ps(cs)), _mm256_mul_ps(swapped, _mm256_movehdup_ps(cs)));
}
HK_INLINE v16f v_rotate_pairs(v16f x, v16f cs) {
    return (v16f){v_half_rotate(x.lo, cs.lo), v_half_rotate(x.hi, cs.hi)};
}
/* shuffle_ps takes two from each 128-bit half: the 64-bit quarters come out as 0 2 1 3. */
HK_INLINE __m256 v_half_pick(v16f a, const int odd) {
    __m256 mixed = odd ? _mm256_shuffle_ps(a.lo, a.hi, 0xdd) : _mm256_shuffle_ps(a.lo, a.hi, 0x88);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}
HK_INLINE void v_load_pairs(const float *p, v16f *even, v16f *odd) {
    v16f a = v_load(p), b = v_load(p + 16);
    *even = (v16f){v_half_pick(a, 0), v_half_pick(b, 0)};
    *odd = (v16f){v_half_pick(a, 1), v_half_pick(b, 1)};
}

/* 6 rows x 2 ymm are 12 accumulators, enough for 2 FMA a cycle at 4 cycles, beside 2 of B and 1 broadcast. */
#define HK_TILE_ROWS       6
#define HK_TILE_VECS(rows) ((rows) == 1 ? 4 : (rows) == 2 ? 2 : 1)
#define HK_TILE_K          256

#endif
