/* Staging for products of tiles: 256 weights along the row of a panel, as bytes in tiles, with the scales as vectors;
 * and what a product needs of a column beside its codes, which tiles read where they lie.
 *
 * Every 32 weights close with the scale of their activations, so that is how far a product of tiles can run. Where they
 * have two integer scales (Q2_K, Q3_K, Q6_K), these go into the weights, v = scale * code. The results of Q2_K (0..45)
 * and the negated ones of Q3_K (-128..124) are bytes. Those of Q6_K have 13 bits and are cut into v = 256 * high + low,
 * a signed and an unsigned byte, that are multiplied one by one: tiles have time to spare, a second sum to scale costs
 * more. */
#ifndef HK_AMX_STAGE_H
#define HK_AMX_STAGE_H

#include "cpu/amx/vec_int.h"

#define HK_BIAS 0 /* signed weights stay signed */
#include "cpu/loops/quant_unpack.h"

enum { HK_PIECE = 256, HK_N32 = HK_PIECE / 32 };

/* Scales are in the weights; in two bytes; negated. Constants for the compiler. */
HK_INLINE int hk_is_folded(const hk_quant *q) { return q->block == 256 && q->sub == 16; }
HK_INLINE int hk_is_halved(const hk_quant *q) { return hk_is_folded(q) && q->low == 4; }
HK_INLINE int hk_is_negated(const hk_quant *q) { return hk_is_folded(q) && q->zero && !hk_is_halved(q); }

/* One panel. A k-group is a line of 64 bytes. */
typedef struct hk_amx_panel {
    _Alignas(64) uint8_t codes[2][HK_PIECE / 4][64]; /* all, or high and low bytes */
    vf scale[HK_N32];                                /* integer scales, where they are not in the weights */
    vf mins[HK_PIECE / 16];                          /* per sub-block */
    vf d[HK_N32], m[HK_N32];                         /* per block */
} hk_amx_panel;

HK_INLINE vi hk_low_bytes(vi even, vi odd) { return vi_select(vi_set16(0xff), even, vi_shl16(odd, 8)); }
HK_INLINE vi hk_high_bytes(vi even, vi odd) { return vi_select(vi_set16(0xff), vi_shr16(even, 8), odd); }

/* 16 weights, scaled: w[t] are the codes of k-group g + t. */
HK_INLINE void hk_stage_folded(const hk_quant *q, const vi *w, const int8_t *scales, int g, hk_amx_panel *o) {
    /* (s, 0, s, 0) picks the even bytes of a group, (0, s, 0, s) the odd ones */
    const vi scale = vi_bytes32(scales), shifted = vi_shl16(scale, 8);
    const vi z = vi_mullo16(vi_sar16(shifted, 8), vi_set16(q->zero));
    HK_UNROLL
    for (int t = 0; t < 4; t++) {
        vi even = vi_maddubs(w[t], scale), odd = vi_maddubs(w[t], shifted);
        if (q->zero) {
            even = hk_is_negated(q) ? vi_sub16(z, even) : vi_sub16(even, z);
            odd = hk_is_negated(q) ? vi_sub16(z, odd) : vi_sub16(odd, z);
        }
        if (hk_is_halved(q)) {
            vi_store(o->codes[0][g + t], hk_high_bytes(even, odd));
            vi_store(o->codes[1][g + t], hk_low_bytes(even, odd));
        } else
            vi_store(o->codes[0][g + t], hk_low_bytes(even, odd));
    }
}

HK_INLINE void hk_stage_scales(const hk_quant *q, const uint8_t *plane, int n32, const hk_sub_scales *s,
                               hk_amx_panel *o) {
    for (int i = 0; i < (q->block == 256 ? 1 : n32); i++) {
        o->d[i] = hk_scale_d(q, plane + i * 16 * q->scale_bytes, 0);
        if (q->mins)
            o->m[i] = hk_scale_m(plane + i * 16 * q->scale_bytes, 0);
    }
    if (q->block == 32) {
        for (int i = n32; i < HK_N32; i++)
            o->d[i] = o->m[i] = vf_zero();
        return;
    }
    for (int j = 0; !hk_is_folded(q) && j < HK_N32; j++)
        o->scale[j] = vf_of_int(vi_rows32(s->s[j], 0));
    for (int j = 0; q->mins && j < HK_PIECE / q->sub; j++)
        o->mins[j] = vf_of_bytes(s->m[j], 0);
}

/* n32 groups of 32 weights of a panel: codes and scale plane at the first of them. */
HK_INLINE void hk_stage_panel(const hk_quant *q, hk_sub_scales_fn sub_scales, const uint8_t *plane,
                              const uint8_t *codes, int n32, hk_amx_panel *o) {
    const int bytes32 = 16 * q->code_bytes / (q->block / 32);
    hk_sub_scales s;
    vi w[8];
    sub_scales(plane, &s);
    for (int c = 0; c < n32; c++) {
        HK_UNROLL
        for (int line = 0; line < bytes32; line += 64) /* of the next piece */
            __builtin_prefetch(codes + bytes32 * (HK_N32 + c) + line);
        hk_unpack8(q, q->block == 256 ? codes : codes + c * bytes32, q->block == 256 ? c : 0, 0, w);
        if (hk_is_folded(q)) {
            hk_stage_folded(q, w, s.s[2 * c], 8 * c, o);
            hk_stage_folded(q, w + 4, s.s[2 * c + 1], 8 * c + 4, o);
            continue;
        }
        HK_UNROLL
        for (int t = 0; t < 8; t++)
            vi_store(o->codes[0][8 * c + t], q->zero ? vi_sub8(w[t], vi_set8(q->zero)) : w[t]);
    }
    hk_stage_scales(q, plane, n32, &s, o);
}

/* A column beside its codes: scales, and scale times sum of a sub-block for minima and offsets. */
typedef struct hk_amx_column {
    float d[HK_N32], s[HK_PIECE / 16];
} hk_amx_column;

HK_INLINE void hk_stage_column(const hk_quant *q, const hk_act *a, int64_t n, int64_t k, int n32, hk_amx_column *o) {
    const int16_t *sums = a->sums + n * a->sums_stride + k / 16;
    const float *d = a->scales + n * a->scales_stride + k / 32;
    if (n32 < HK_N32) {
        memset(o, 0, sizeof *o);
        memcpy(o->d, d, (size_t)n32 * sizeof *d);
        if (q->mins)
            hk_scaled_sums(q, d, sums, n32, o->s);
        return;
    }
    memcpy(o->d, d, sizeof o->d);
    if (q->mins && q->sub == 32)
        hk_scaled_pairs(d, sums, o->s);
    if (q->mins && q->sub == 16)
        hk_scaled_singles(d, sums, o->s);
}

#endif
