/* Multiplying with VNNI: vpdpbusd adds 4 products of unsigned weights and signed activations to an int32 lane per row,
 * so a whole sub-block runs without a flush. Its scale is applied in float: vpmulld is two operations, and the product
 * of scale and sum has at most 24 bits, so it is exact either way. Signed weights (Q8_0, IQ4_*) are stored
 * with 128 added and become formats with a zero point of 128. A zero point is the start of the accumulator, -zero *
 * (sum of activations), and costs nothing; biasing the activations instead would need a second copy of them. */
#ifndef HK_MAC_H
#define HK_MAC_H

#include "cpu/hk_cpu.h"
#include "formats/hk_quants.h"

#define HK_BIAS 128 /* what is added to signed weights to make them unsigned */

HK_INLINE int hk_is_signed(const hk_quant *q) { return (void)q, 0; }
HK_INLINE int hk_zero_point(const hk_quant *q) {
    return q->codes == HK_CODES_SIGNED || q->codes == HK_CODES_IQ4 ? HK_BIAS : q->zero;
}
HK_INLINE int hk_run(const hk_quant *q) { return q->sub / 4; }

HK_INLINE vi hk_mac(vi acc, vi w, vi a) { return vi_dot(acc, w, a); }
HK_INLINE vi hk_mac_signed(vi acc, vi w, vi a) { return vi_dot(acc, w, a); }
/* The sum of 32 weights of a format with integer scales, and those scales, as they are held here. */
typedef vf hk_sum;
typedef vf hk_scale;
HK_INLINE hk_scale hk_scale_rows(const int8_t *s, int half) { return vf_of_int(vi_rows32(s, half)); }
HK_INLINE hk_sum hk_sum_first(vi acc, hk_scale scale) { return vf_mul(vf_of_int(acc), scale); }
HK_INLINE hk_sum hk_sum_next(hk_sum sum, vi acc, hk_scale scale) { return vf_fma(vf_of_int(acc), scale, sum); }
HK_INLINE vf hk_sum_value(hk_sum sum) { return sum; }
HK_INLINE vi hk_flush(vi sum, vi acc) { return vi_add32(sum, acc); }

HK_INLINE void hk_starts(const hk_quant *q, const int8_t *codes, const int16_t *sums, int n, int32_t *start) {
    (void)codes;
    for (int j = 0; j < n; j++)
        start[j] = -hk_zero_point(q) * (q->sub == 16 ? sums[j] : sums[2 * j] + sums[2 * j + 1]);
}

#endif
