/* AVX-512 on a machine without it, for tests: SIMDe's emulation in the place of <immintrin.h>, and what SIMDe 0.7
 * lacks, as two AVX2 halves. Compile with -mavx2 -mfma -mf16c and this folder in front. */
#ifndef HK_SIMDE_IMMINTRIN_H
#define HK_SIMDE_IMMINTRIN_H

#include_next <immintrin.h>
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

typedef union hk_512 {
    __m512 f;
    __m512i i;
    __m512d d;
    __m256 hf[2];
    __m256i hi[2];
    __m256d hd[2];
    __m128i qi[4];
} hk_512;

/* name(arg): both halves of field `to` are what `half` makes of h = 0 and h = 1. */
#define HK_SIMDE(result, field, name, params, to, half)                                                                \
    static inline result hk_##name params {                                                                            \
        hk_512 r;                                                                                                      \
        for (int h = 0; h < 2; h++)                                                                                    \
            r.to[h] = half;                                                                                            \
        return r.field;                                                                                                \
    }
#define HK_HALF(a) (h ? _mm256_extracti128_si256(a, 1) : _mm256_castsi256_si128(a))

HK_SIMDE(__m512, f, cvtepi32_ps, (__m512i a), hf, _mm256_cvtepi32_ps(((hk_512){.i = a}).hi[h]))
HK_SIMDE(__m512i, i, cvtepi8_epi32, (__m128i a), hi, _mm256_cvtepi8_epi32(h ? _mm_srli_si128(a, 8) : a))
HK_SIMDE(__m512i, i, cvtepu16_epi32, (__m256i a), hi, _mm256_cvtepu16_epi32(HK_HALF(a)))
HK_SIMDE(__m512, f, cvtph_ps, (__m256i a), hf, _mm256_cvtph_ps(HK_HALF(a)))
HK_SIMDE(__m512i, i, cvtps_epi32, (__m512 a), hi, _mm256_cvtps_epi32(((hk_512){.f = a}).hf[h]))
HK_SIMDE(__m512d, d, cvtps_pd, (__m256 a), hd,
         _mm256_cvtps_pd(h ? _mm256_extractf128_ps(a, 1) : _mm256_castps256_ps128(a)))
HK_SIMDE(__m512, f, movehdup_ps, (__m512 a), hf, _mm256_movehdup_ps(((hk_512){.f = a}).hf[h]))
HK_SIMDE(__m512, f, moveldup_ps, (__m512 a), hf, _mm256_moveldup_ps(((hk_512){.f = a}).hf[h]))
static inline __m256i hk_cvtps_ph(__m512 a) {
    hk_512 r = {.f = a};
    return _mm256_setr_m128i(_mm256_cvtps_ph(r.hf[0], 0), _mm256_cvtps_ph(r.hf[1], 0));
}
static inline __m256 hk_extractf32x8_ps(__m512 a, int h) { return ((hk_512){.f = a}).hf[h]; }

/* GCC's header may define some of these as macros when it does not optimise. */
#undef _mm512_cvtps_ph
#undef _mm512_extractf32x8_ps
#undef _mm512_permute_ps
#define _mm512_cvtepi32_ps       hk_cvtepi32_ps
#define _mm512_cvtepi8_epi32     hk_cvtepi8_epi32
#define _mm512_cvtepu16_epi32    hk_cvtepu16_epi32
#define _mm512_cvtph_ps          hk_cvtph_ps
#define _mm512_cvtps_epi32       hk_cvtps_epi32
#define _mm512_cvtps_pd          hk_cvtps_pd
#define _mm512_cvtps_ph(a, mode) hk_cvtps_ph(a)
#define _mm512_movehdup_ps       hk_movehdup_ps
#define _mm512_moveldup_ps       hk_moveldup_ps
#define _mm512_extractf32x8_ps   hk_extractf32x8_ps
#define _mm512_permute_ps(a, imm)                                                                                      \
    (((hk_512){.hf = {_mm256_permute_ps(((hk_512){.f = (a)}).hf[0], imm),                                              \
                      _mm256_permute_ps(((hk_512){.f = (a)}).hf[1], imm)}})                                            \
         .f)

#endif
