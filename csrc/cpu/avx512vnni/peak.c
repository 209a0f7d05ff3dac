#include <immintrin.h>

#include "cpu/hk_peak.h"

/* dpbusd: 64 products an instruction. */
int64_t hk_peak_int8_avx512vnni(int64_t rounds) {
    __m512i acc[HK_PEAK_CHAINS], a = _mm512_set1_epi8(0x03), b = _mm512_set1_epi8(0x05);
    for (int i = 0; i < HK_PEAK_CHAINS; i++)
        acc[i] = _mm512_set1_epi8(0);
    for (int64_t r = 0; r < rounds; r++) {
        HK_OPAQUE(a);
#pragma GCC unroll 12
        for (int i = 0; i < HK_PEAK_CHAINS; i++) {
            acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
        }
    }
    for (int i = 0; i < HK_PEAK_CHAINS; i++)
        HK_OPAQUE(acc[i]);
    return rounds * HK_PEAK_CHAINS * 64;
}
