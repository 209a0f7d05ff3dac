/* Eight blocks (or sub-blocks) side by side, one per lane: a search over scales then needs no sums across lanes, and
 * every instruction set adds in the same order and finds the same codes. Vector extensions of the compiler; the flags
 * of the build decide what they become. */
#ifndef HK_LANES_H
#define HK_LANES_H

#include <stdint.h>
#include <string.h>

#define HK_LANES 8
typedef float hk_v8 __attribute__((vector_size(32)));
typedef int32_t hk_m8 __attribute__((vector_size(32)));

#define HK_INLINE static inline __attribute__((always_inline, unused))

HK_INLINE hk_v8 v_all(float f) { return (hk_v8){f, f, f, f, f, f, f, f}; }

/* Per lane: where the mask is set, a, else b. */
HK_INLINE hk_v8 v_pick(hk_m8 mask, hk_v8 a, hk_v8 b) { return (hk_v8)((mask & (hk_m8)a) | (~mask & (hk_m8)b)); }

HK_INLINE hk_v8 v_min(hk_v8 a, hk_v8 b) {
    hk_v8 r;
    for (int l = 0; l < HK_LANES; l++)
        r[l] = a[l] < b[l] ? a[l] : b[l];
    return r;
}

HK_INLINE hk_v8 v_max(hk_v8 a, hk_v8 b) {
    hk_v8 r;
    for (int l = 0; l < HK_LANES; l++)
        r[l] = a[l] > b[l] ? a[l] : b[l];
    return r;
}

HK_INLINE hk_v8 v_abs(hk_v8 a) { return (hk_v8)((hk_m8)a & 0x7fffffff); }

/* To the nearest integer, halves to even; |a| < 2^22. */
HK_INLINE hk_v8 v_round(hk_v8 a) { return (a + 0x1.8p23f) - 0x1.8p23f; }

HK_INLINE hk_v8 v_clamp(hk_v8 a, float low, float high) { return v_min(v_max(a, v_all(low)), v_all(high)); }

/* a / b, and 0 where b is 0. */
HK_INLINE hk_v8 v_ratio(hk_v8 a, hk_v8 b) {
    hk_m8 none = b == 0;
    return (hk_v8)(~none & (hk_m8)(a / v_pick(none, v_all(1), b)));
}

HK_INLINE float v_sum(hk_v8 a) { return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])); }

/* x[l * n + i] -> out[i][l] */
HK_INLINE void v_gather(const float *x, int n, hk_v8 *out) {
    for (int i = 0; i < n; i++)
        for (int l = 0; l < HK_LANES; l++)
            out[i][l] = x[l * n + i];
}

/* Small integers: q[i][l] + zero -> codes[l * n + i] */
HK_INLINE void v_codes(const hk_v8 *q, int n, int zero, uint8_t *codes) {
    for (int i = 0; i < n; i++) {
        hk_m8 whole = __builtin_convertvector(q[i], hk_m8) + zero;
        for (int l = 0; l < HK_LANES; l++)
            codes[l * n + i] = (uint8_t)whole[l];
    }
}

#endif
