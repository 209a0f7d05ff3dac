/* a * b + c rounded once, for the portable kernels: with it every kernel set gives the same bits, so that the int8
 * codes of the next layer's input are the same too (a last bit that differs flips a code now and then, and a model of
 * 30 blocks makes 3e-3 of KL divergence from that).
 *
 * Where the processor has no such instruction the C library's fmaf is a call per number. Here: the product is exact in
 * a double (48 bits); the sum is rounded to odd (its error, by Knuth's two-sum, decides whether the last bit is forced
 * to 1), after which rounding to float is right, since a double has more than 2 * 24 + 2 bits (Boldo and Melquiond,
 * 2008). An infinity or a NaN has no error that compares, and passes through. */
#ifndef HK_FMA_H
#define HK_FMA_H

#include <stdint.h>
#include <string.h>

#ifdef __FP_FAST_FMAF
static inline float hk_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
static inline float hk_fma(float a, float b, float c) {
    double p = (double)a * (double)b, s = p + (double)c;
    double t = s - p, error = (p - (s - t)) + ((double)c - t);
    uint64_t u;
    memcpy(&u, &s, 8);
    uint64_t inexact = (uint64_t)(error > 0) | (uint64_t)(error < 0);
    uint64_t inward = (uint64_t)(error > 0) ^ (uint64_t)(s > 0); /* the exact sum is nearer to zero than s */
    u += (inexact & ~u & 1) * (1 - 2 * inward);
    memcpy(&s, &u, 8);
    return (float)s;
}
#endif

#endif
