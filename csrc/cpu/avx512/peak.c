#include <immintrin.h>

#include "cpu/hk_peak.h"

/* maddubs, madd, add: three instructions for 64 products. */
int64_t hk_peak_int8_avx512(int64_t rounds) {
    __m512i acc[HK_PEAK_CHAINS], a = _mm512_set1_epi8(0x03), b = _mm512_set1_epi8(0x05), ones = _mm512_set1_epi16(1);
    for (int i = 0; i < HK_PEAK_CHAINS; i++)
        acc[i] = _mm512_set1_epi8(0);
    for (int64_t r = 0; r < rounds; r++) {
        HK_OPAQUE(a);
#pragma GCC unroll 12
        for (int i = 0; i < HK_PEAK_CHAINS; i++) {
            __m512i pairs = _mm512_maddubs_epi16(a, b);
            HK_OPAQUE(pairs);
            acc[i] = _mm512_add_epi32(acc[i], _mm512_madd_epi16(pairs, ones));
        }
    }
    for (int i = 0; i < HK_PEAK_CHAINS; i++)
        HK_OPAQUE(acc[i]);
    return rounds * HK_PEAK_CHAINS * 64;
}
