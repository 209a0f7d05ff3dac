/* A test-time stand-in for the compiler's immintrin.h: the AVX-512, VNNI and AMX intrinsics that the kernels use, on
 * AVX2 halves and plain loops, so that every instruction set runs on any machine with AVX2. (SIMDe does the same, but
 * lacks some of these, and kernels as unrolled as these take it minutes to compile.) Exact: no operation here saturates
 * or rounds where the real one does not. */
#include_next <immintrin.h>
#ifndef HK_EMULATED_IMMINTRIN_H
#define HK_EMULATED_IMMINTRIN_H

#include <stdint.h>

#define HK_NO_PIN
#define EMU static inline __attribute__((always_inline, unused))

typedef struct {
    __m256i h[2];
} hk_m512i;
typedef struct {
    __m256 h[2];
} hk_m512;
#define __m512i hk_m512i
#define __m512  hk_m512

/* u8 * s8, four at a time, added to int32: even and odd bytes as int16, which cannot overflow. */
EMU __m256i hk_dpbusd(__m256i acc, __m256i u, __m256i s) {
    __m256i ue = _mm256_and_si256(u, _mm256_set1_epi16(255)), uo = _mm256_srli_epi16(u, 8);
    __m256i se = _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8), so = _mm256_srai_epi16(s, 8);
    return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(ue, se), _mm256_madd_epi16(uo, so)));
}
#define _mm256_dpbusd_avx_epi32 hk_dpbusd
EMU __m256i hk_dpwssd(__m256i acc, __m256i a, __m256i b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }
#define _mm256_dpwssd_avx_epi32 hk_dpwssd

#define BOTH_1(name, type, arg, op)                                                                                    \
    EMU type hk_##name(arg a) { return (type){{op(a.h[0]), op(a.h[1])}}; }
#define BOTH_2(name, type, op)                                                                                         \
    EMU type hk_##name(type a, type b) { return (type){{op(a.h[0], b.h[0]), op(a.h[1], b.h[1])}}; }
#define BOTH_3(name, type, op)                                                                                         \
    EMU type hk_##name(type a, type b, type c) {                                                                       \
        return (type){{op(a.h[0], b.h[0], c.h[0]), op(a.h[1], b.h[1], c.h[1])}};                                       \
    }
#define BOTH_N(name, op)                                                                                               \
    EMU hk_m512i hk_##name(hk_m512i a, int n) { return (hk_m512i){{op(a.h[0], n), op(a.h[1], n)}}; }
#define SPLAT(name, type, arg, op)                                                                                     \
    EMU type hk_##name(arg x) { return (type){{op(x), op(x)}}; }

BOTH_1(abs_epi8, hk_m512i, hk_m512i, _mm256_abs_epi8)
BOTH_1(cvtepi32_ps, hk_m512, hk_m512i, _mm256_cvtepi32_ps)
BOTH_1(castsi512_ps, hk_m512, hk_m512i, _mm256_castsi256_ps)
BOTH_2(and_si512, hk_m512i, _mm256_and_si256)
BOTH_2(or_si512, hk_m512i, _mm256_or_si256)
BOTH_2(xor_si512, hk_m512i, _mm256_xor_si256)
BOTH_2(add_epi16, hk_m512i, _mm256_add_epi16)
BOTH_2(add_epi32, hk_m512i, _mm256_add_epi32)
BOTH_2(sub_epi8, hk_m512i, _mm256_sub_epi8)
BOTH_2(sub_epi16, hk_m512i, _mm256_sub_epi16)
BOTH_2(sub_epi32, hk_m512i, _mm256_sub_epi32)
BOTH_2(mullo_epi16, hk_m512i, _mm256_mullo_epi16)
BOTH_2(madd_epi16, hk_m512i, _mm256_madd_epi16)
BOTH_2(maddubs_epi16, hk_m512i, _mm256_maddubs_epi16)
BOTH_2(shuffle_epi8, hk_m512i, _mm256_shuffle_epi8)
BOTH_2(mul_ps, hk_m512, _mm256_mul_ps)
/* a call, or the kernels with 24 accumulators take a minute to compile */
static __attribute__((noinline, unused)) hk_m512i hk_dpbusd_epi32(hk_m512i a, hk_m512i u, hk_m512i s) {
    return (hk_m512i){{hk_dpbusd(a.h[0], u.h[0], s.h[0]), hk_dpbusd(a.h[1], u.h[1], s.h[1])}};
}
static __attribute__((noinline, unused)) hk_m512i hk_dpwssd_epi32(hk_m512i acc, hk_m512i a, hk_m512i b) {
    return (hk_m512i){{hk_dpwssd(acc.h[0], a.h[0], b.h[0]), hk_dpwssd(acc.h[1], a.h[1], b.h[1])}};
}
BOTH_3(fmadd_ps, hk_m512, _mm256_fmadd_ps)
BOTH_3(fnmadd_ps, hk_m512, _mm256_fnmadd_ps)
BOTH_N(slli_epi16, _mm256_slli_epi16)
BOTH_N(srli_epi16, _mm256_srli_epi16)
BOTH_N(srai_epi16, _mm256_srai_epi16)
BOTH_N(slli_epi32, _mm256_slli_epi32)
BOTH_N(srli_epi32, _mm256_srli_epi32)
SPLAT(set1_epi8, hk_m512i, char, _mm256_set1_epi8)
SPLAT(set1_epi16, hk_m512i, short, _mm256_set1_epi16)
SPLAT(set1_epi32, hk_m512i, int, _mm256_set1_epi32)
SPLAT(set1_ps, hk_m512, float, _mm256_set1_ps)
SPLAT(broadcast_i32x4, hk_m512i, __m128i, _mm256_broadcastsi128_si256)

EMU hk_m512i hk_setzero_si512(void) { return hk_set1_epi32(0); }
EMU hk_m512 hk_setzero_ps(void) { return hk_set1_ps(0); }
EMU hk_m512i hk_loadu_si512(const void *p) {
    const __m256i *q = (const __m256i *)p;
    return (hk_m512i){{_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)}};
}
EMU void hk_storeu_si512(void *p, hk_m512i x) {
    _mm256_storeu_si256((__m256i *)p, x.h[0]);
    _mm256_storeu_si256((__m256i *)p + 1, x.h[1]);
}
EMU hk_m512 hk_loadu_ps(const float *p) { return (hk_m512){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
EMU void hk_storeu_ps(float *p, hk_m512 x) {
    _mm256_storeu_ps(p, x.h[0]);
    _mm256_storeu_ps(p + 8, x.h[1]);
}
EMU hk_m512i hk_cvtepi8_epi32(__m128i x) {
    return (hk_m512i){{_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))}};
}
EMU hk_m512i hk_cvtepu8_epi32(__m128i x) {
    return (hk_m512i){{_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))}};
}
EMU hk_m512i hk_cvtepu8_epi16(__m256i x) {
    return (hk_m512i){
        {_mm256_cvtepu8_epi16(_mm256_castsi256_si128(x)), _mm256_cvtepu8_epi16(_mm256_extracti128_si256(x, 1))}};
}
EMU hk_m512 hk_cvtph_ps(__m256i x) {
    return (hk_m512){{_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))}};
}
/* Masks are kept as whole vectors. */
EMU hk_m512i hk_movepi8_mask(hk_m512i x) { return x; }
EMU hk_m512i hk_mask_sub_epi8(hk_m512i src, hk_m512i m, hk_m512i a, hk_m512i b) {
    return (hk_m512i){{_mm256_blendv_epi8(src.h[0], _mm256_sub_epi8(a.h[0], b.h[0]), m.h[0]),
                       _mm256_blendv_epi8(src.h[1], _mm256_sub_epi8(a.h[1], b.h[1]), m.h[1])}};
}
BOTH_2(cmpgt_epi32_mask, hk_m512i, _mm256_cmpgt_epi32)
EMU hk_m512i hk_mask_sllv_epi32(hk_m512i src, hk_m512i m, hk_m512i a, hk_m512i n) {
    return (hk_m512i){{_mm256_blendv_epi8(src.h[0], _mm256_sllv_epi32(a.h[0], n.h[0]), m.h[0]),
                       _mm256_blendv_epi8(src.h[1], _mm256_sllv_epi32(a.h[1], n.h[1]), m.h[1])}};
}
#define __mmask16 hk_m512i

/* The bitwise choice between b and c by a, the one truth table that the kernels use. */
EMU hk_m512i hk_ternarylogic_epi32(hk_m512i a, hk_m512i b, hk_m512i c, int table) {
    if (table != 0xca)
        __builtin_trap();
    return hk_or_si512(hk_and_si512(a, b),
                       (hk_m512i){{_mm256_andnot_si256(a.h[0], c.h[0]), _mm256_andnot_si256(a.h[1], c.h[1])}});
}

#include "tiles.h"

#undef _mm512_abs_epi8
#define _mm512_abs_epi8 hk_abs_epi8
#undef _mm512_add_epi16
#define _mm512_add_epi16 hk_add_epi16
#undef _mm512_add_epi32
#define _mm512_add_epi32 hk_add_epi32
#undef _mm512_and_si512
#define _mm512_and_si512 hk_and_si512
#undef _mm512_broadcast_i32x4
#define _mm512_broadcast_i32x4 hk_broadcast_i32x4
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps hk_castsi512_ps
#undef _mm512_cmpgt_epi32_mask
#define _mm512_cmpgt_epi32_mask hk_cmpgt_epi32_mask
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps hk_cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 hk_cvtepi8_epi32
#undef _mm512_cvtepu8_epi16
#define _mm512_cvtepu8_epi16 hk_cvtepu8_epi16
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 hk_cvtepu8_epi32
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps hk_cvtph_ps
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 hk_dpbusd_epi32
#undef _mm512_dpwssd_epi32
#define _mm512_dpwssd_epi32 hk_dpwssd_epi32
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps hk_fmadd_ps
#undef _mm512_fnmadd_ps
#define _mm512_fnmadd_ps hk_fnmadd_ps
#undef _mm512_loadu_ps
#define _mm512_loadu_ps hk_loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 hk_loadu_si512
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 hk_madd_epi16
#undef _mm512_maddubs_epi16
#define _mm512_maddubs_epi16 hk_maddubs_epi16
#undef _mm512_mask_sllv_epi32
#define _mm512_mask_sllv_epi32 hk_mask_sllv_epi32
#undef _mm512_mask_sub_epi8
#define _mm512_mask_sub_epi8 hk_mask_sub_epi8
#undef _mm512_movepi8_mask
#define _mm512_movepi8_mask hk_movepi8_mask
#undef _mm512_mul_ps
#define _mm512_mul_ps hk_mul_ps
#undef _mm512_mullo_epi16
#define _mm512_mullo_epi16 hk_mullo_epi16
#undef _mm512_or_si512
#define _mm512_or_si512 hk_or_si512
#undef _mm512_set1_epi16
#define _mm512_set1_epi16 hk_set1_epi16
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 hk_set1_epi32
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 hk_set1_epi8
#undef _mm512_set1_ps
#define _mm512_set1_ps hk_set1_ps
#undef _mm512_setzero_ps
#define _mm512_setzero_ps hk_setzero_ps
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 hk_setzero_si512
#undef _mm512_shuffle_epi8
#define _mm512_shuffle_epi8 hk_shuffle_epi8
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 hk_slli_epi16
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 hk_slli_epi32
#undef _mm512_srai_epi16
#define _mm512_srai_epi16 hk_srai_epi16
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 hk_srli_epi16
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 hk_srli_epi32
#undef _mm512_storeu_ps
#define _mm512_storeu_ps hk_storeu_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 hk_storeu_si512
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 hk_sub_epi32
#undef _mm512_ternarylogic_epi32
#define _mm512_ternarylogic_epi32 hk_ternarylogic_epi32
#undef _mm512_sub_epi16
#define _mm512_sub_epi16 hk_sub_epi16
#undef _mm512_sub_epi8
#define _mm512_sub_epi8 hk_sub_epi8
#undef _mm512_xor_si512
#define _mm512_xor_si512 hk_xor_si512

#endif
