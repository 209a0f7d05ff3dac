/* Matrix times a few columns: the matrix-vector product with more than one column at a time. Codes are unpacked once,
 * in registers, and meet every column there; nothing is staged but what the activations' zero points and minima need,
 * once per call. */
#ifndef HK_QUANT_FEW_H
#define HK_QUANT_FEW_H

#include "cpu/loops/quant_gemv.h"

/* Whether n columns are few: where unpacking costs most, against staging measured on Zen 3, and their sums of K / 16
 * sub-blocks, twice 4 bytes each, fit the scratch memory. (Q4_K with 2, 4, 8 columns: 50, 62, 68 GMAC/s against 35, 51,
 * 67; Q6_K 35, 49, 58 against 22, 38, 54; Q4_0 with 2 39 against 35, but with 8 53 against 73.) */
HK_INLINE int hk_is_few(const hk_quant *q, int64_t n, int64_t K) {
    const int most = q->block == 256 && q->low == 4 && q->codes == HK_CODES_PLAIN ? HK_FEW_COLUMNS : 2;
    return n <= most && n * (K / 16 + 16) * 8 <= HK_GEMM_SCRATCH;
}

/* One block of a panel; x: by column. */
HK_INLINE void hk_few_block(const hk_quant *q, hk_sub_scales_fn sub_scales, const uint8_t *plane, const uint8_t *codes,
                            const hk_block_act *x, int n, vf (*c)[HK_PV]) {
    hk_sub_scales s;
    vf f[HK_FEW_COLUMNS][HK_PV], mins[16];
    vi w[8];
    sub_scales(plane, &s);
    for (int i = 0; i < n; i++)
        for (int h = 0; h < HK_PV; h++)
            f[i][h] = vf_zero();
    for (int j = 0; j < q->block / 32; j++) {
        HK_UNROLL
        for (int h = 0; h < HK_PV; h++) {
            hk_unpack8(q, codes, j, h, w);
            hk_scale scale[2];
            hk_chunk_scales(q, &s, j, h, scale);
            for (int i = 0; i < n; i++) {
                vf t = hk_dot_chunk(q, w, x + i, scale, j);
                f[i][h] = q->block == 32 ? t : vf_fma(vf_set(x[i].d[j]), t, f[i][h]);
            }
        }
        HK_UNROLL
        for (int line = 0; line < 16 * q->code_bytes / (q->block / 32); line += 64)
            __builtin_prefetch(codes + 16 * q->code_bytes / (q->block / 32) * j + line + HK_PREFETCH);
    }
    for (int h = 0; h < HK_PV; h++) {
        vf d = hk_scale_d(q, plane, h), dm = q->mins ? hk_scale_m(plane, h) : vf_zero();
        for (int j = 0; q->mins && q->block == 256 && j < 256 / q->sub; j++)
            mins[j] = vf_of_bytes(s.m[j], h);
        for (int i = 0; i < n; i++) {
            if (q->block == 32) {
                c[i][h] = vf_fma(vf_mul(d, vf_set(x[i].d[0])), f[i][h], c[i][h]);
                if (q->mins)
                    c[i][h] = vf_fma(dm, vf_set(x[i].s[0]), c[i][h]);
                continue;
            }
            c[i][h] = vf_fma(d, f[i][h], c[i][h]);
            if (!q->mins)
                continue;
            vf m = vf_zero();
            HK_UNROLL
            for (int j = 0; j < 256 / q->sub; j++)
                m = vf_fma(mins[j], vf_set(x[i].s[j]), m);
            c[i][h] = vf_fnma(dm, m, c[i][h]);
        }
    }
}

HK_INLINE void hk_gemm_few(const hk_quant *q, hk_type t, hk_sub_scales_fn sub_scales, const uint8_t *panels,
                           int64_t n_panels, int64_t K, const hk_act *a, int64_t n, float *out, int64_t stride,
                           void *scratch) {
    const int64_t panel_bytes = hk_panel_bytes(t, K), plane_bytes = hk_scale_plane_bytes(t, K), blocks = K / q->block;
    const int64_t subs = q->block / q->sub, row = (blocks * subs + 15) & ~(int64_t)15;
    float *sums = scratch;                         /* [n][row] */
    int32_t *starts = (int32_t *)(sums + n * row); /* [n][row] */
    for (int64_t i = 0; i < n; i++) {
        hk_act column = {.codes = a->codes + i * a->codes_stride,
                         .scales = a->scales + i * a->scales_stride,
                         .sums = a->sums + i * a->sums_stride};
        for (int64_t b = 0; b < blocks; b++)
            hk_load_act(q, &column, b, sums + i * row + b * subs, starts + i * row + b * subs);
    }
    for (int64_t p = 0; p < n_panels; p++, panels += panel_bytes, out += HK_PANEL) {
        const uint8_t *plane = panels, *codes = panels + plane_bytes;
        vf c[HK_FEW_COLUMNS][HK_PV];
        for (int64_t i = 0; i < n; i++)
            for (int h = 0; h < HK_PV; h++)
                c[i][h] = vf_zero();
        for (int64_t b = 0; b < blocks; b++) {
            hk_block_act x[HK_FEW_COLUMNS];
            for (int64_t i = 0; i < n; i++)
                x[i] = (hk_block_act){a->codes + i * a->codes_stride + b * q->block,
                                      a->scales + i * a->scales_stride + b * (q->block / 32), sums + i * row + b * subs,
                                      starts + i * row + b * subs};
            __builtin_prefetch(plane + HK_PREFETCH / 4);
            hk_few_block(q, sub_scales, plane, codes, x, (int)n, c);
            plane += 16 * q->scale_bytes;
            codes += 16 * q->code_bytes;
        }
        for (int64_t i = 0; i < n; i++)
            for (int h = 0; h < HK_PV; h++)
                vf_store(out + i * stride + HK_PANEL / HK_PV * h, c[i][h]);
    }
}

#endif
