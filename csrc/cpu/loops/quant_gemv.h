/* Matrix times one column, straight from the packed planes: the kernel of decoding, meant to run at the speed of
 * memory.
 *
 * A lane is a row, so there is no horizontal sum; the activation is a 4-byte broadcast from the first cache; a panel is
 * one stream of codes and one of scales, both sequential. Per block: decode the scales to bytes, then per 32 weights
 * unpack in registers, multiply, flush, and close the block in float as hk_packed.h says. Prefetching goes HK_PREFETCH
 * bytes ahead, because hardware streams stop at page borders. */
#ifndef HK_QUANT_GEMV_H
#define HK_QUANT_GEMV_H

#include "cpu/loops/quant_unpack.h"

#define HK_PREFETCH 4096

/* One block's activations. */
typedef struct hk_block_act {
    const int8_t *codes;
    float d, s;        /* scale; s = d * sum of codes (Q4_1, Q5_1) */
    int32_t start[16]; /* of the accumulators, per sub-block */
    int32_t pairs[8];  /* sums, for the minima */
} hk_block_act;

HK_INLINE void hk_load_act(const hk_quant *q, const hk_act *a, int64_t b, hk_block_act *o) {
    const int16_t *sums = a->sums + b * (q->block / 16);
    o->codes = a->codes + b * q->block;
    o->d = a->scales[b];
    if (hk_zero_point(q))
        hk_starts(q, o->codes, sums, q->block / q->sub, o->start);
    if (q->mins && q->block == 256)
        hk_sum_pairs(q, sums, 8, o->pairs);
    if (q->mins && q->block == 32)
        o->s = o->d * (float)(sums[0] + sums[1]);
}

/* sum += scale * dot over the 32 weights of chunk c, already unpacked. */
HK_INLINE vi hk_dot_chunk(const hk_quant *q, const vi *w, const hk_block_act *a, const hk_sub_scales *s, int c,
                          int half, vi sum) {
    const int run = hk_run(q), groups = q->sub / 4;
    HK_UNROLL
    for (int t0 = 0; t0 < 8; t0 += run) {
        int j = (8 * c + t0) / groups;
        vi acc = hk_zero_point(q) && t0 % groups == 0 ? vi_bcast(a->start + j) : vi_zero();
        HK_UNROLL
        for (int t = t0; t < t0 + run; t++) {
            vi x = vi_bcast(a->codes + 32 * c + 4 * t);
            acc = vi_pin(hk_is_signed(q) ? hk_mac_signed(acc, w[t], x) : hk_mac(acc, w[t], x));
        }
        sum = q->block == 256 ? hk_flush_scaled(sum, acc, hk_scale_rows(s->s[j], half)) : hk_flush(sum, acc);
    }
    return sum;
}

/* The float end of a block: c += d * isum (+ m * s, or - dmin * msum). */
HK_INLINE vf hk_close_block(const hk_quant *q, const uint8_t *plane, const hk_block_act *a, const hk_sub_scales *s,
                            int half, vi isum, vf c) {
    vf d = vf_set(a->d);
    c = vf_fma(vf_mul(hk_scale_d(q, plane, half), d), vf_of_int(isum), c);
    if (q->mins && q->block == 32)
        c = vf_fma(hk_scale_m(plane, half), vf_set(a->s), c);
    if (q->mins && q->block == 256) {
        vi msum = vi_zero();
        HK_UNROLL
        for (int i = 0; i < 128 / q->sub; i++)
            msum = vi_add32(msum, vi_madd16(vi_pairs(s->m[2 * i], s->m[2 * i + 1], half), vi_bcast(a->pairs + i)));
        c = vf_fnma(vf_mul(hk_scale_m(plane, half), d), vf_of_int(msum), c);
    }
    return c;
}

HK_INLINE void hk_gemv_block(const hk_quant *q, hk_sub_scales_fn sub_scales, const uint8_t *plane, const uint8_t *codes,
                             const hk_block_act *a, vf *c) {
    hk_sub_scales s;
    vi sum[HK_PV], w[8];
    sub_scales(plane, &s);
    for (int h = 0; h < HK_PV; h++)
        sum[h] = vi_zero();
    for (int i = 0; i < q->block / 32; i++) {
        HK_UNROLL
        for (int h = 0; h < HK_PV; h++) {
            hk_unpack8(q, codes, i, h, w);
            sum[h] = hk_dot_chunk(q, w, a, &s, i, h, sum[h]);
        }
        HK_UNROLL
        for (int line = 0; line < 16 * q->code_bytes / (q->block / 32); line += 64)
            __builtin_prefetch(codes + 16 * q->code_bytes / (q->block / 32) * i + line + HK_PREFETCH);
    }
    HK_UNROLL
    for (int h = 0; h < HK_PV; h++)
        c[h] = hk_close_block(q, plane, a, &s, h, sum[h], c[h]);
}

HK_INLINE void hk_gemv_quant(const hk_quant *q, hk_type t, hk_sub_scales_fn sub_scales, const uint8_t *panels,
                             int64_t n_panels, int64_t K, const hk_act *a, float *out) {
    const int64_t panel_bytes = hk_panel_bytes(t, K), plane_bytes = hk_scale_plane_bytes(t, K);
    for (int64_t p = 0; p < n_panels; p++, panels += panel_bytes, out += HK_PANEL) {
        const uint8_t *plane = panels, *codes = panels + plane_bytes;
        vf c[HK_PV];
        hk_block_act x;
        for (int h = 0; h < HK_PV; h++)
            c[h] = vf_zero();
        for (int64_t b = 0; b < K / q->block; b++) {
            __builtin_prefetch(plane + HK_PREFETCH / 4);
            hk_load_act(q, a, b, &x);
            hk_gemv_block(q, sub_scales, plane, codes, &x, c);
            plane += 16 * q->scale_bytes;
            codes += 16 * q->code_bytes;
        }
        for (int h = 0; h < HK_PV; h++)
            vf_store(out + HK_PANEL / HK_PV * h, c[h]);
    }
}

#endif
