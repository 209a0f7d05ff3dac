/* Products with F32, F16 and BF16 weights, packed as panels of 16 rows: [k][16]. */
#ifndef HK_FLOAT_MATMUL_H
#define HK_FLOAT_MATMUL_H

/* Elements from one panel to the next: 16 K, padded to 64 bytes as hk_panel_bytes says. */
HK_INLINE int64_t hk_float_panel(int kind, int64_t K) {
    return ((16 * K * hk_b_size(kind) + 63) & ~(int64_t)63) / hk_b_size(kind);
}

HK_INLINE hk_b hk_float_view(int kind, const uint8_t *panels, int64_t K) {
    return (hk_b){panels, 16, hk_float_panel(kind, K), kind, panels + 4096, 32};
}

HK_INLINE void hk_gemv_float(int kind, const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a,
                             float *out) {
    hk_outer(hk_float_view(kind, panels, K), n_panels, a->x, 0, 1, K, out, 0, 0);
}

/* A few columns read the weights as they are. For more, HK_TILE_K steps of a group of panels are taken at a time, which
 * stay in the first-level cache while all columns pass them, converted to float once; C waits in memory between. */
HK_INLINE void hk_gemm_float(int kind, const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a,
                             int64_t n_cols, float *out, int64_t out_stride, float *scratch) {
    const int64_t group = HK_TILE_VECS(HK_TILE_ROWS);
    hk_b w = hk_float_view(kind, panels, K);
    if (n_cols <= HK_TILE_ROWS) {
        hk_outer(w, n_panels, a->x, a->x_stride, n_cols, K, out, out_stride, 0);
        return;
    }
    for (int64_t p = 0; p < n_panels; p += group) {
        int64_t width = n_panels - p < group ? n_panels - p : group;
        for (int64_t k = 0; k < K; k += HK_TILE_K) {
            int64_t depth = K - k < HK_TILE_K ? K - k : HK_TILE_K;
            hk_b b = w;
            b.base += (p * w.v + 16 * k) * hk_b_size(kind);
            if (kind != HK_B_F32) {
                hk_b_tile(w, p, p + width, k, k + depth, scratch, HK_TILE_K);
                b = (hk_b){(const uint8_t *)scratch, 16, 16 * HK_TILE_K, HK_B_F32, 0, 0};
            }
            hk_outer(b, width, a->x + k, a->x_stride, n_cols, depth, out + 16 * p, out_stride, k > 0);
        }
    }
}

/* Raw rows: an array of elements is 16 of them for each k. */
HK_INLINE void hk_dequant_float(int kind, const uint8_t *raw, int64_t n, float *out) {
    hk_b b = {raw, 16, 0, kind, 0, 0};
    int64_t full = n / 16, rest = n % 16;
    hk_b_tile_kind(kind, b, 0, 1, 0, full, out, 0);
    if (rest) {
        uint8_t last[64] = {0};
        memcpy(last, raw + 16 * full * hk_b_size(kind), (size_t)(rest * hk_b_size(kind)));
        b.base = last;
        v_store_tail(out + 16 * full, rest, hk_b_load(kind, &b, 0, 0, 0));
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
    static void hk_dequant_##lower(const uint8_t *raw, int64_t n, float *out) { hk_dequant_float(kind, raw, n, out); }
HK_FLOAT_KERNELS(f32, HK_B_F32)
HK_FLOAT_KERNELS(f16, HK_B_F16)
HK_FLOAT_KERNELS(bf16, HK_B_BF16)

#endif
