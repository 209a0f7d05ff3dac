/* Packed codes -> vectors of one byte per weight, for every format: the planes and tables of hk_quants.def decide.
 *
 * Works on 8 k-groups (32 weights) of one vector of rows at a time, the smallest piece in which every plane is whole.
 * The results are meant to stay in registers (matrix-vector) or to be staged in the first cache (matrix-matrix). */
#ifndef HK_QUANT_UNPACK_H
#define HK_QUANT_UNPACK_H

#include "cpu/hk_cpu.h"
#include "formats/hk_scales.h"

#define HK_UNROLL                                                                                                      \
    _Pragma("GCC unroll 32") /* must cover the largest tile, or its registers become an array in memory                \
                              */

/* Bytes moved towards bit 0 by n bits (n < 0: away), the rest masked off. */
HK_INLINE vi hk_field(vi x, int n, int mask) {
    x = n > 0 ? vi_shr16(x, n) : n < 0 ? vi_shl16(x, -n) : x;
    return vi_and(x, vi_set8(mask));
}

static const int8_t hk_table_iq4[16] = {HK_TABLE_IQ4};
/* HK_TABLE_MXFP4 + 12, unsigned and small enough for long int16 sums; 12 is the format's zero point */
static const int8_t hk_table_fp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* Codes as the multiplier wants them: unsigned, or signed where HK_BIAS is 0. */
HK_INLINE vi hk_code_value(const hk_quant *q, vi w) {
    if (q->codes == HK_CODES_IQ4)
        w = vi_lut(hk_table_iq4, w);
    if (q->codes == HK_CODES_MXFP4)
        w = vi_lut(hk_table_fp4, w);
    if (HK_BIAS && (q->codes == HK_CODES_IQ4 || q->codes == HK_CODES_SIGNED))
        w = vi_xor(w, vi_set8(HK_BIAS));
    return w;
}

/* w[t] = k-group 8 c + t of the block at `codes`, rows of vector `half` of the panel. */
HK_INLINE void hk_unpack8(const hk_quant *q, const uint8_t *codes, int c, int half, vi *w) {
    const uint8_t *low = codes + 64 * q->low * c + (int)sizeof(vi) * half;
    const uint8_t *high = codes + q->block * 2 * q->low + 64 * q->high * c + (int)sizeof(vi) * half;
    HK_UNROLL
    for (int t = 0; t < 8; t++) {
        int per = 8 / q->low;
        vi x = vi_load(low + 64 * (t / per));
        if (q->low < 8)
            x = hk_field(x, q->low * (t % per), (1 << q->low) - 1);
        if (q->high) {
            int per_high = 8 / (q->high ? q->high : 1);
            vi y = vi_load(high + 64 * (t / per_high));
            x = vi_or(x, hk_field(y, q->high * (t % per_high) - q->low, ((1 << q->high) - 1) << q->low));
        }
        w[t] = hk_code_value(q, x);
    }
}

/* The float scale of a block (and its minimum or offset, 32 bytes on) for one vector of rows. */
HK_INLINE vf hk_scale_d(const hk_quant *q, const uint8_t *plane, int half) {
    int rows = (int)sizeof(vi) / 4;
    return q->e8m0 ? vf_of_e8m0_half(plane + rows * half) : vf_of_half(plane + 2 * rows * half);
}
HK_INLINE vf hk_scale_m(const uint8_t *plane, int half) {
    return vf_of_half(plane + 32 + 2 * (int)sizeof(vi) / 4 * half);
}

/* What minima and offsets are multiplied with: s[j] = scale times sum of the activations of sub-block j. n32: groups of
 * 32, which share a scale. */
HK_INLINE void hk_scaled_sums(const hk_quant *q, const float *d, const int16_t *sums, int n32, float *s) {
    for (int i = 0; i < n32; i++) {
        if (q->sub == 32) {
            s[i] = d[i] * (float)(sums[2 * i] + sums[2 * i + 1]);
            continue;
        }
        s[2 * i] = d[i] * (float)sums[2 * i];
        s[2 * i + 1] = d[i] * (float)sums[2 * i + 1];
    }
}

typedef void (*hk_sub_scales_fn)(const uint8_t *plane, hk_sub_scales *o);

#endif
