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
    const float *d;       /* scales, one for 32 */
    const float *s;       /* scale times sum of a sub-block, for minima and offsets */
    const int32_t *start; /* of the accumulators, per sub-block */
} hk_block_act;

/* s, start: memory for 16 */
HK_INLINE hk_block_act hk_load_act(const hk_quant *q, const hk_act *a, int64_t b, float *s, int32_t *start) {
    const int16_t *sums = a->sums + b * (q->block / 16);
    hk_block_act o = {a->codes + b * q->block, a->scales + b * (q->block / 32), s, start};
    if (hk_zero_point(q))
        hk_starts(q, o.codes, sums, q->block / q->sub, start);
    if (q->mins)
        hk_scaled_sums(q, o.d, sums, q->block / 32, s);
    return o;
}

/* The integer scales of chunk c of 32 weights. */
HK_INLINE void hk_chunk_scales(const hk_quant *q, const hk_sub_scales *s, int c, int half, hk_scale *scale) {
    if (q->block == 32)
        return;
    scale[0] = hk_scale_rows(s->s[32 / q->sub * c], half);
    if (q->sub == 16)
        scale[1] = hk_scale_rows(s->s[2 * c + 1], half);
}

/* The sum of scale * dot over the 32 weights of chunk c, already unpacked: an exact integer. */
HK_INLINE vf hk_dot_chunk(const hk_quant *q, const vi *w, const hk_block_act *a, const hk_scale *scale, int c) {
    const int run = hk_run(q), groups = q->sub / 4;
    vi sum = vi_zero();
    hk_sum scaled;
    HK_UNROLL
    for (int t0 = 0; t0 < 8; t0 += run) {
        int j = (8 * c + t0) / groups;
        vi acc = hk_zero_point(q) && t0 % groups == 0 ? vi_bcast(a->start + j) : vi_zero();
        HK_UNROLL
        for (int t = t0; t < t0 + run; t++) {
            vi x = vi_bcast(a->codes + 32 * c + 4 * t);
            acc = vi_pin(hk_is_signed(q) ? hk_mac_signed(acc, w[t], x) : hk_mac(acc, w[t], x));
        }
        if (q->block == 32)
            sum = hk_flush(sum, acc);
        else if (t0 == 0)
            scaled = hk_sum_first(acc, scale[0]);
        else
            scaled = hk_sum_next(scaled, acc, scale[t0 / groups]);
    }
    return q->block == 32 ? vf_of_int(sum) : hk_sum_value(scaled);
}

/* The float end of a block: c += d * f (+ m * s, or - dmin * the sum of min * s). */
HK_INLINE vf hk_close_block(const hk_quant *q, const uint8_t *plane, const hk_block_act *a, const hk_sub_scales *s,
                            int half, vf f, vf c) {
    vf d = hk_scale_d(q, plane, half), m = vf_zero();
    if (q->block == 32) {
        c = vf_fma(vf_mul(d, vf_set(a->d[0])), f, c);
        return q->mins ? vf_fma(hk_scale_m(plane, half), vf_set(a->s[0]), c) : c;
    }
    c = vf_fma(d, f, c);
    if (!q->mins)
        return c;
    HK_UNROLL
    for (int j = 0; j < 256 / q->sub; j++)
        m = vf_fma(vf_of_bytes(s->m[j], half), vf_set(a->s[j]), m);
    return vf_fnma(hk_scale_m(plane, half), m, c);
}

HK_INLINE void hk_gemv_block(const hk_quant *q, hk_sub_scales_fn sub_scales, const uint8_t *plane, const uint8_t *codes,
                             const hk_block_act *a, vf *c) {
    hk_sub_scales s;
    vf f[HK_PV];
    vi w[8];
    sub_scales(plane, &s);
    for (int h = 0; h < HK_PV; h++)
        f[h] = vf_zero();
    for (int i = 0; i < q->block / 32; i++) {
        HK_UNROLL
        for (int h = 0; h < HK_PV; h++) {
            hk_unpack8(q, codes, i, h, w);
            hk_scale scale[2];
            hk_chunk_scales(q, &s, i, h, scale);
            vf x = hk_dot_chunk(q, w, a, scale, i);
            f[h] = q->block == 32 ? x : vf_fma(vf_set(a->d[i]), x, f[h]);
        }
        HK_UNROLL
        for (int line = 0; line < 16 * q->code_bytes / (q->block / 32); line += 64)
            __builtin_prefetch(codes + 16 * q->code_bytes / (q->block / 32) * i + line + HK_PREFETCH);
    }
    HK_UNROLL
    for (int h = 0; h < HK_PV; h++)
        c[h] = hk_close_block(q, plane, a, &s, h, f[h], c[h]);
}

/* What zero points and minima need of the column is computed once for all panels, where it fits this many sub-blocks
 * (rows of up to 32768 weights, or 65536); for each panel anew it took a tenth of the time of Q2_K and Q3_K. */
enum { HK_GEMV_SUBS = 2048 };

HK_INLINE void hk_gemv_quant(const hk_quant *q, hk_type t, hk_sub_scales_fn sub_scales, const uint8_t *panels,
                             int64_t n_panels, int64_t K, const hk_act *a, float *out) {
    const int64_t panel_bytes = hk_panel_bytes(t, K), plane_bytes = hk_scale_plane_bytes(t, K);
    const int64_t blocks = K / q->block, subs = q->block / q->sub;
    const int once = blocks * subs <= HK_GEMV_SUBS, needed = q->mins || hk_zero_point(q);
    float s[HK_GEMV_SUBS];
    int32_t start[HK_GEMV_SUBS];
    for (int64_t b = 0; once && needed && b < blocks; b++)
        hk_load_act(q, a, b, s + b * subs, start + b * subs);
    for (int64_t p = 0; p < n_panels; p++, panels += panel_bytes, out += HK_PANEL) {
        const uint8_t *plane = panels, *codes = panels + plane_bytes;
        vf c[HK_PV];
        for (int h = 0; h < HK_PV; h++)
            c[h] = vf_zero();
        for (int64_t b = 0; b < blocks; b++) {
            __builtin_prefetch(plane + HK_PREFETCH / 4);
            hk_block_act x = {a->codes + b * q->block, a->scales + b * (q->block / 32), s + b * subs, start + b * subs};
            if (!once)
                x = hk_load_act(q, a, b, s, start);
            hk_gemv_block(q, sub_scales, plane, codes, &x, c);
            plane += 16 * q->scale_bytes;
            codes += 16 * q->code_bytes;
        }
        for (int h = 0; h < HK_PV; h++)
            vf_store(out + HK_PANEL / HK_PV * h, c[h]);
    }
}

#endif
