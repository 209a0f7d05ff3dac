/* Products with F32, F16 and BF16 weights, packed as panels of 16 rows: [k][16]. */
#ifndef HK_FLOAT_MATMUL_H
#define HK_FLOAT_MATMUL_H

/* Elements from one panel to the next: 16 K, padded to 64 bytes as hk_panel_bytes says. */
HK_INLINE int64_t hk_float_panel(int kind, int64_t K) {
    return ((16 * K * hk_b_size(kind) + 63) & ~(int64_t)63) / hk_b_size(kind);
}

HK_INLINE void hk_gemv_float(int kind, const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a,
                             float *out) {
    hk_outer(kind, a->x, 0, 1, panels, 16, hk_float_panel(kind, K), n_panels, K, out, 0, 0);
}

/* A few columns read the weights as they are. For more, HK_TILE_K steps of a group of panels are taken at a time, which
 * stay in the first-level cache while all columns pass them, converted to float once; C waits in memory between. */
HK_INLINE void hk_gemm_float(int kind, const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a,
                             int64_t n_cols, float *out, int64_t out_stride, float *scratch) {
    const int64_t group = HK_TILE_VECS(HK_TILE_ROWS), panel = hk_float_panel(kind, K);
    if (n_cols <= HK_TILE_ROWS) {
        hk_outer(kind, a->x, a->x_stride, n_cols, panels, 16, panel, n_panels, K, out, out_stride, 0);
        return;
    }
    for (int64_t p = 0; p < n_panels; p += group) {
        int64_t width = n_panels - p < group ? n_panels - p : group;
        for (int64_t k = 0; k < K; k += HK_TILE_K) {
            int64_t depth = K - k < HK_TILE_K ? K - k : HK_TILE_K, b_v = panel;
            const void *b = panels + (p * panel + 16 * k) * hk_b_size(kind);
            if (kind != HK_B_F32) {
                for (int64_t v = 0; v < width; v++)
                    for (int64_t i = 0; i < depth; i++)
                        v_store(scratch + 16 * (v * HK_TILE_K + i), hk_b_load(kind, b, v * panel + 16 * i));
                b = scratch, b_v = 16 * HK_TILE_K;
            }
            hk_outer(HK_B_F32, a->x + k, a->x_stride, n_cols, b, 16, b_v, width, depth, out + 16 * p, out_stride,
                     k > 0);
        }
    }
}

#define HK_FLOAT_KERNELS(lower, kind)                                                                                  \
    static void hk_gemv_##lower(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a, float *out) {     \
        hk_gemv_float(kind, panels, n_panels, K, a, out);                                                              \
    }                                                                                                                  \
    static void hk_gemm_##lower(const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a, int64_t n_cols,   \
                                float *out, int64_t out_stride, void *scratch) {                                       \
        hk_gemm_float(kind, panels, n_panels, K, a, n_cols, out, out_stride, scratch);                                 \
    }                                                                                                                  \
    static void hk_dequant_##lower(const uint8_t *raw, int64_t n, float *out) {                                        \
        int64_t i = 0;                                                                                                 \
        for (; i + 16 <= n; i += 16)                                                                                   \
            v_store(out + i, hk_b_load(kind, raw, i));                                                                 \
        if (i < n) {                                                                                                   \
            float tail[16] = {0};                                                                                      \
            memcpy(tail, raw + i * hk_b_size(kind), (size_t)((n - i) * hk_b_size(kind)));                              \
            v_store_tail(out + i, n - i, hk_b_load(kind, tail, 0));                                                    \
        }                                                                                                              \
    }
HK_FLOAT_KERNELS(f32, HK_B_F32)
HK_FLOAT_KERNELS(f16, HK_B_F16)
HK_FLOAT_KERNELS(bf16, HK_B_BF16)

#endif
