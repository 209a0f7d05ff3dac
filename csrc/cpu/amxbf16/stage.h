/* Staging for products of tiles of bf16: weights as they are, w = scale * code - minimum in one float operation,
 * rounded to bf16 once. 32 weights of a panel are a tile of 1 KB: 16 lines, one for each two weights along the row, in
 * which a lane is a row of the panel. */
#ifndef HK_BF16_STAGE_H
#define HK_BF16_STAGE_H

#include "cpu/amxbf16/vec_bf16.h"

#define HK_BIAS 0 /* signed weights stay signed */
#include "cpu/loops/quant_unpack.h"

enum { HK_BF16_TILE = 1024 /* bytes */ };

/* 16 weights along the row: w[t] are the codes of k-group t, signed; half a tile. */
HK_INLINE void hk_stage_16(const hk_quant *q, const vi *w, vf scale, vf offset, uint8_t *out) {
    HK_UNROLL
    for (int t = 0; t < 4; t++) {
        vf x[4];
        HK_UNROLL
        for (int i = 0; i < 4; i++)
            x[i] = q->mins ? vf_fma(vf_of_byte(w[t], i), scale, offset) : vf_mul(vf_of_byte(w[t], i), scale);
        vi_store(out + 128 * t, vi_bf16_pairs(x[0], x[1]));
        vi_store(out + 128 * t + 64, vi_bf16_pairs(x[2], x[3]));
    }
}

/* What a block's weights are multiplied with, and what is added to them. */
typedef struct hk_block_scales {
    vf d, m;
    hk_sub_scales s;
} hk_block_scales;

/* Of sub-block j, for codes times 2^24. */
HK_INLINE vf hk_scale_of(const hk_quant *q, const hk_block_scales *o, int j) {
    return vf_mul(vf_set(0x1p-24f), q->block == 256 ? vf_mul(o->d, vf_of_int(vi_rows32(o->s.s[j], 0))) : o->d);
}
HK_INLINE vf hk_offset_of(const hk_quant *q, const hk_block_scales *o, int j) {
    if (!q->mins)
        return vf_zero();
    return q->block == 256 ? vf_fnma(o->m, vf_of_bytes(o->s.m[j], 0), vf_zero()) : o->m;
}

/* n tiles of a panel: codes and scale plane at the first of their blocks. */
HK_INLINE void hk_stage_panel(const hk_quant *q, hk_sub_scales_fn sub_scales, const uint8_t *plane,
                              const uint8_t *codes, int n, uint8_t *out) {
    const int per = q->block / 32, bytes32 = 16 * q->code_bytes / per;
    hk_block_scales o;
    for (int i = 0; i < n; i++, out += HK_BF16_TILE) {
        const int c = i % per, j = q->sub == 16 ? 2 * c : c, next = q->sub == 16 ? j + 1 : j;
        vi w[8];
        if (c == 0) {
            sub_scales(plane, &o.s);
            o.d = hk_scale_d(q, plane, 0);
            o.m = q->mins ? hk_scale_m(plane, 0) : vf_zero();
        }
        HK_UNROLL
        for (int line = 0; line < bytes32; line += 64) /* of the 256 weights that follow */
            __builtin_prefetch(codes + bytes32 * (c + 8) + line);
        hk_unpack8(q, codes, c, 0, w);
        HK_UNROLL
        for (int t = 0; t < 8; t++)
            w[t] = q->zero ? vi_sub8(w[t], vi_set8(q->zero)) : w[t];
        hk_stage_16(q, w, hk_scale_of(q, &o, j), hk_offset_of(q, &o, j), out);
        hk_stage_16(q, w + 4, hk_scale_of(q, &o, next), hk_offset_of(q, &o, next), out + HK_BF16_TILE / 2);
        if (c == per - 1) {
            plane += 16 * q->scale_bytes;
            codes += 16 * q->code_bytes;
        }
    }
}

#endif
