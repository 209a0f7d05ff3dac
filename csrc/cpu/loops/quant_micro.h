/* The micro-kernels of matrix times many columns, one per operand class (not per format): a tile of rv vectors of rows
 * times nc columns over a piece of 256 weights. Everything is staged (quant_stage.h): a k-group costs rv loads of
 * weights and nc broadcasts for rv * nc multiplications.
 *
 * Float results live beside the short accumulators: every 32 weights close with the scale of their activations. Where
 * registers run out the compiler keeps them in the first cache, which costs one load and store per flush.
 *
 * Signed 8-bit weights without VNNI: int16 weights times int16 activations, split into even and odd bytes at staging.
 * Moving the sign to the activation, as the matrix-vector product does, needs as many operations per product, but they
 * crowd the multiplier ports; and int16 weights have room for the integer scale of IQ4_XS, so that it is never flushed.
 */
#ifndef HK_QUANT_MICRO_H
#define HK_QUANT_MICRO_H

#include "cpu/loops/quant_stage.h"

/* acc[r][n] += one k-group range of a run, for unsigned codes. */
HK_INLINE void hk_micro_run(const vi *w, const hk_column *a, int g0, int n_groups, int rv, int nc, vi *acc) {
    HK_UNROLL
    for (int g = 0; g < n_groups; g++) {
        HK_UNROLL
        for (int n = 0; n < nc; n++) {
            vi x = vi_bcast(a[n].codes + g0 + g);
            HK_UNROLL
            for (int r = 0; r < rv; r++)
                acc[r * nc + n] = vi_pin(hk_mac(acc[r * nc + n], w[(g0 + g) * rv + r], x));
        }
    }
}

/* Weights 32 j ... of the piece in runs of k-groups: acc[r][n] of the run that begins with k-group t of them. */
HK_INLINE void hk_micro_acc(const hk_quant *q, const hk_tile *w, const hk_column *a, int j, int t, int rv, int nc,
                            vi *acc) {
    const int groups = q->sub / 4;
    HK_UNROLL
    for (int i = 0; i < rv * nc; i++)
        acc[i] = hk_zero_point(q) && t % groups == 0 ? vi_bcast(a[i % nc].start + (8 * j + t) / groups) : vi_zero();
    hk_micro_run(w->codes, a, 8 * j + t, hk_run(q), rv, nc, acc);
}

/* sum[r][n] += weights 32 j ... times activations, of a format with a float scale for each 32. */
HK_INLINE void hk_micro_sum(const hk_quant *q, const hk_tile *w, const hk_column *a, int j, int rv, int nc, vi *sum) {
    HK_UNROLL
    for (int t = 0; t < 8; t += hk_run(q)) {
        vi acc[HK_RV * HK_NC_MAX];
        hk_micro_acc(q, w, a, j, t, rv, nc, acc);
        HK_UNROLL
        for (int i = 0; i < rv * nc; i++)
            sum[i] = hk_flush(sum[i], acc[i]);
    }
}

/* sum[r][n] = the same with integer scales. */
HK_INLINE void hk_micro_scaled(const hk_quant *q, const hk_tile *w, const hk_column *a, int j, int rv, int nc,
                               hk_sum *sum) {
    HK_UNROLL
    for (int t = 0; t < 8; t += hk_run(q)) {
        vi acc[HK_RV * HK_NC_MAX];
        hk_micro_acc(q, w, a, j, t, rv, nc, acc);
        HK_UNROLL
        for (int i = 0; i < rv * nc; i++) {
            hk_scale scale = w->scale[(8 * j + t) / (q->sub / 4) * rv + i / nc];
            sum[i] = t == 0 ? hk_sum_first(acc[i], scale) : hk_sum_next(sum[i], acc[i], scale);
        }
    }
}

/* The sums of int16 weights, which have their scales in them. */
HK_INLINE void hk_micro_sub16(const hk_tile *w, const hk_column *a, int j, int rv, int nc, vi *sum) {
    HK_UNROLL
    for (int g = 0; g < 16; g++) { /* even and odd halves of 8 k-groups */
        HK_UNROLL
        for (int n = 0; n < nc; n++) {
            vi x = vi_bcast(a[n].codes + HK_PIECE / 4 * (g & 1) + 8 * j + g / 2);
            HK_UNROLL
            for (int r = 0; r < rv; r++)
                sum[r * nc + n] = vi_pin(vi_add32(sum[r * nc + n], vi_madd16(w->codes[(16 * j + g) * rv + r], x)));
        }
    }
}

/* out[n][r] += piece of 256 weights of one block. */
HK_INLINE void hk_micro_256(const hk_quant *q, const hk_tile *w, const hk_column *a, int rv, int nc, float *out,
                            int64_t stride, int first) {
    const int rows = (int)sizeof(vi) / 4;
    vf f[HK_RV * HK_NC_MAX], m[HK_RV * HK_NC_MAX];
    HK_UNROLL
    for (int i = 0; i < rv * nc; i++)
        f[i] = m[i] = vf_zero();
    for (int j = 0; j < 8; j++) {
        if (hk_is_signed(q)) {
            vi sum[HK_RV * HK_NC_MAX];
            HK_UNROLL
            for (int i = 0; i < rv * nc; i++)
                sum[i] = vi_zero();
            hk_micro_sub16(w, a, j, rv, nc, sum);
            HK_UNROLL
            for (int i = 0; i < rv * nc; i++)
                f[i] = vf_fma(vf_set(a[i % nc].d[j]), vf_of_int(sum[i]), f[i]);
            continue;
        }
        hk_sum sum[HK_RV * HK_NC_MAX];
        hk_micro_scaled(q, w, a, j, rv, nc, sum);
        HK_UNROLL
        for (int i = 0; i < rv * nc; i++)
            f[i] = vf_fma(vf_set(a[i % nc].d[j]), hk_sum_value(sum[i]), f[i]);
    }
    for (int j = 0; q->mins && j < 256 / q->sub; j++) {
        HK_UNROLL
        for (int i = 0; i < rv * nc; i++)
            m[i] = vf_fma(w->mins[j * rv + i / nc], vf_set(a[i % nc].s[j]), m[i]);
    }
    HK_UNROLL
    for (int i = 0; i < rv * nc; i++) {
        const int r = i / nc;
        float *o = out + i % nc * stride + rows * r;
        vf c = vf_fma(w->d[r], f[i], first ? vf_zero() : vf_load(o));
        vf_store(o, q->mins ? vf_fnma(w->m[r], m[i], c) : c);
    }
}

/* out[n][r] += n32 blocks of 32 weights. */
HK_INLINE void hk_micro_32(const hk_quant *q, const hk_tile *w, const hk_column *a, int rv, int nc, int n32, float *out,
                           int64_t stride, int first) {
    const int rows = (int)sizeof(vi) / 4;
    vf c[HK_RV * HK_NC_MAX];
    HK_UNROLL
    for (int i = 0; i < rv * nc; i++)
        c[i] = first ? vf_zero() : vf_load(out + i % nc * stride + rows * (i / nc));
    for (int j = 0; j < n32; j++) {
        vi sum[HK_RV * HK_NC_MAX];
        HK_UNROLL
        for (int i = 0; i < rv * nc; i++)
            sum[i] = vi_zero();
        if (hk_is_signed(q))
            hk_micro_sub16(w, a, j, rv, nc, sum);
        else
            hk_micro_sum(q, w, a, j, rv, nc, sum);
        HK_UNROLL
        for (int i = 0; i < rv * nc; i++) {
            const int r = i / nc, n = i % nc;
            c[i] = vf_fma(vf_mul(w->d[j * rv + r], vf_set(a[n].d[j])), vf_of_int(sum[i]), c[i]);
            if (q->mins)
                c[i] = vf_fma(w->m[j * rv + r], vf_set(a[n].s[j]), c[i]);
        }
    }
    HK_UNROLL
    for (int i = 0; i < rv * nc; i++)
        vf_store(out + i % nc * stride + rows * (i / nc), c[i]);
}

typedef void (*hk_micro_fn)(const hk_tile *w, const hk_column *a, int n32, float *out, int64_t stride, int first);

/* A micro-kernel of the class of `fmt`. */
#define HK_MICRO(nc, fmt, rv)                                                                                          \
    static void hk_micro_##fmt##_##rv##x##nc(const hk_tile *w, const hk_column *a, int n32, float *out,                \
                                             int64_t stride, int first) {                                              \
        if (hk_quant_##fmt.block == 256)                                                                               \
            hk_micro_256(&hk_quant_##fmt, w, a, rv, nc, out, stride, first);                                           \
        else                                                                                                           \
            hk_micro_32(&hk_quant_##fmt, w, a, rv, nc, n32, out, stride, first);                                       \
    }
#define HK_MICRO_ENTRY(nc, fmt, rv) hk_micro_##fmt##_##rv##x##nc,
#define HK_MICRO_TABLE(fmt, rv)                                                                                        \
    HK_NC_LIST(HK_MICRO, fmt, rv)                                                                                      \
    static const hk_micro_fn hk_micro_##fmt##_##rv[] = {HK_NC_LIST(HK_MICRO_ENTRY, fmt, rv)};

#endif
