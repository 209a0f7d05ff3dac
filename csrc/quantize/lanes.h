/* Eight blocks (or sub-blocks) side by side, one per lane: a search over scales then needs no sums across lanes, and
 * every instruction set adds in the same order and finds the same codes. What the compiler's vectors leave open stands
 * in the vec.h of each instruction set, which is included first. */
#ifndef HK_LANES_H
#define HK_LANES_H

#include "vectors.h"

HK_INLINE hk_v8 v_all(float f) { return (hk_v8){f, f, f, f, f, f, f, f}; }

HK_INLINE hk_v8 v_load(const float *x) {
    hk_v8 r;
    memcpy(&r, x, sizeof r);
    return r;
}

HK_INLINE void v_store(float *x, hk_v8 a) { memcpy(x, &a, sizeof a); }

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

/* x[l * n + i] -> out[i][l]; n: a multiple of 8 */
HK_INLINE void v_gather(const float *x, int n, hk_v8 *out) {
    for (int i = 0; i < n; i += HK_LANES) {
        for (int l = 0; l < HK_LANES; l++)
            out[i + l] = v_load(x + l * n + i);
        v_transpose(out + i);
    }
}

/* Small integers: q[i][l] + zero -> codes[l * n + i], bytes; n: 16 or 32 */
HK_INLINE void v_codes(const hk_v8 *q, int n, int zero, uint8_t *codes) {
    hk_v8 words[HK_LANES] = {0}; /* four codes of a lane each */
    for (int i = 0; i < n; i += 4) {
        hk_m8 word = {0};
        for (int j = 0; j < 4; j++)
            word |= ((__builtin_convertvector(q[i + j], hk_m8) + zero) & 255) << 8 * j;
        words[i / 4] = (hk_v8)word;
    }
    v_transpose(words);
    for (int l = 0; l < HK_LANES; l++)
        memcpy(codes + l * n, &words[l], (size_t)n);
}

#endif
