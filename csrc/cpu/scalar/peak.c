#include "cpu/hk_peak.h"

/* Plain C, with whatever vectors the baseline of the architecture gives the compiler. */
int64_t hk_peak_int8_scalar(int64_t rounds) {
    enum { N = 64 };
    int16_t a[N], b[N];
    int32_t sum[N] = {0};
    for (int i = 0; i < N; i++) {
        a[i] = (int16_t)(i - 32);
        b[i] = (int16_t)(3 - i);
    }
    for (int64_t r = 0; r < rounds; r++) {
        __asm__ volatile("" : : "r"(a), "r"(b) : "memory");
        for (int i = 0; i < N; i++)
            sum[i] += a[i] * b[i];
    }
    __asm__ volatile("" : : "r"(sum) : "memory");
    return rounds * N;
}
