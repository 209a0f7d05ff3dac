/* Multiplying without VNNI: vpmaddubsw into int16 lanes, two per row, over as many k-groups as fit; then one vpmaddwd
 * by the sub-block's scale (as a pair) applies the scale, adds the two lanes and widens at once. This is 2 vector
 * operations per 4 weights and row, where widening every product (the obvious way) takes 3.
 *
 * What fits: codes 0..15 reach 2 * 15 * 127 per group, 8 groups stay below 32768; 0..31 only 4 groups. A format with a
 * zero point starts from -zero * (sum of the lane's activations) instead of 0. int16 addition wraps, so only the final
 * value has to fit: 32 * 127 * 8 = 32512 for 4 groups of Q6_K, 16 * 127 * 16 = 32512 for 8 groups of Q5_0. That saves
 * half of the flushes and makes zero points free.
 *
 * Signed 8-bit weights (Q8_0, IQ4_*) overflow int16 with the second group. A matrix-vector product moves the sign to
 * the activation (|-128| is right as an unsigned byte; activations are never -128) and flushes each group; a
 * matrix-matrix product multiplies int16 by int16, see quant_micro.h. */
#ifndef HK_MAC_H
#define HK_MAC_H

#include "cpu/hk_cpu.h"
#include "formats/hk_quants.h"

#define HK_BIAS 0 /* what is added to signed weights to make them unsigned: they stay signed */

HK_INLINE int hk_is_signed(const hk_quant *q) { return q->codes == HK_CODES_SIGNED || q->codes == HK_CODES_IQ4; }
HK_INLINE int hk_zero_point(const hk_quant *q) { return q->zero; }

/* k-groups between two flushes */
HK_INLINE int hk_run(const hk_quant *q) {
    int largest = q->zero ? q->zero : (1 << (q->low + q->high)) - 1, fit = 32767 / (2 * 127 * largest);
    if (hk_is_signed(q))
        return 1;
    return fit >= 8 && q->sub == 32 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

HK_INLINE vi hk_mac(vi acc, vi w, vi a) { return vi_add16(acc, vi_maddubs(w, a)); }
HK_INLINE vi hk_mac_signed(vi acc, vi w, vi a) { return vi_add16(acc, vi_maddubs(vi_abs8(w), vi_sign8(a, w))); }
/* The sum of 32 weights of a format with integer scales, and those scales (as pairs), as they are held here. */
typedef vi hk_sum;
typedef vi hk_scale;
HK_INLINE hk_scale hk_scale_rows(const int8_t *s, int half) { return vi_rows16x2(s, half); }
HK_INLINE hk_sum hk_sum_first(vi acc, hk_scale scale) { return vi_madd16(acc, scale); }
HK_INLINE hk_sum hk_sum_next(hk_sum sum, vi acc, hk_scale scale) { return vi_add32(sum, vi_madd16(acc, scale)); }
HK_INLINE vf hk_sum_value(hk_sum sum) { return vf_of_int(sum); }
HK_INLINE vi hk_flush(vi sum, vi acc) { return vi_add32(sum, vi_madd16(acc, vi_set16(1))); }

/* What the accumulators of n sub-blocks start from: -zero times the sums of the even and of the odd pairs of codes, the
 * two int16 lanes. */
HK_INLINE void hk_starts(const hk_quant *q, const int8_t *codes, const int16_t *sums, int n, int32_t *start) {
    const __m128i one = _mm_set1_epi8(1), zero = _mm_set1_epi16((short)-hk_zero_point(q));
    (void)sums;
    for (int j = 0; j < n; j++, codes += q->sub) {
        __m128i x = _mm_maddubs_epi16(one, _mm_loadu_si128((const __m128i *)codes));
        if (q->sub == 32)
            x = _mm_add_epi16(x, _mm_maddubs_epi16(one, _mm_loadu_si128((const __m128i *)(codes + 16))));
        x = _mm_add_epi16(x, _mm_shuffle_epi32(x, 0x4e));
        x = _mm_add_epi16(x, _mm_shuffle_epi32(x, 0xb1));
        start[j] = _mm_cvtsi128_si32(_mm_mullo_epi16(x, zero));
    }
}

#endif
