/* What the compiler's vectors leave open, lane by lane: for any processor. */
#ifndef HK_QUANTIZE_VEC_H
#define HK_QUANTIZE_VEC_H

#include "../vectors.h"
#include "formats/hk_half.h"

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

/* Per lane: where the mask is set, a, else b. */
HK_INLINE hk_v8 v_pick(hk_m8 mask, hk_v8 a, hk_v8 b) { return (hk_v8)((mask & (hk_m8)a) | (~mask & (hk_m8)b)); }

HK_INLINE hk_v8 v_from_half(const uint16_t *h) {
    hk_v8 r;
    for (int l = 0; l < HK_LANES; l++)
        r[l] = hk_half_to_float(h[l]);
    return r;
}

HK_INLINE void v_to_half(hk_v8 a, uint16_t *h) {
    for (int l = 0; l < HK_LANES; l++)
        h[l] = hk_float_to_half(a[l]);
}

/* a[i][l] <-> a[l][i] */
HK_INLINE void v_transpose(hk_v8 *a) {
    for (int i = 0; i < HK_LANES; i++)
        for (int l = i + 1; l < HK_LANES; l++) {
            float t = a[i][l];
            a[i][l] = a[l][i];
            a[l][i] = t;
        }
}

#endif
