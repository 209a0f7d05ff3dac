/* The one multiplication of the float kernels: C[r][16 v ..] (+)= sum_k A[r][k] * B[k][16 v ..].
 *
 * A is float rows, each element broadcast; B comes as 16-lane vectors, vector (k, v) at element k * b_k + v * b_v, in
 * float, fp16 or bf16; C has 16 v at c + 16 v. That covers
 *   matrix-vector    one row of A (the column), v = panels of 16 weight rows
 *   matrix-matrix    rows of A are the columns, v = panels
 *   attention scores rows of A are queries, k = head dimensions, v = 16 tokens of the transposed K
 *   attention sums   rows of A are probabilities, k = tokens, v = 16 dimensions of V
 * Each element of C is one chain C = fma(B, A, C) over ascending k from +0 (or from C), whatever the tile: so a row's
 * bits depend neither on its neighbours nor on the tile that computed it.
 */
#ifndef HK_FLOAT_OUTER_H
#define HK_FLOAT_OUTER_H

enum { HK_B_F32, HK_B_F16, HK_B_BF16 };

HK_INLINE int64_t hk_b_size(int kind) { return kind == HK_B_F32 ? 4 : 2; }

HK_INLINE v16f hk_b_load(int kind, const void *b, int64_t at) {
    if (kind == HK_B_F32)
        return v_load((const float *)b + at);
    if (kind == HK_B_F16)
        return v_load_f16((const uint16_t *)b + at);
    return v_load_bf16((const uint16_t *)b + at);
}

/* R x V vectors of C in registers. R, V and kind are constants where this is inlined. */
HK_INLINE void hk_outer_tile(int kind, int R, int V, const float *a, int64_t a_stride, const void *b, int64_t b_k,
                             int64_t b_v, int64_t K, float *c, int64_t c_stride, int add) {
    v16f acc[6][8], w[8];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++)
            acc[r][v] = add ? v_load(c + r * c_stride + 16 * v) : v_zero();
    for (int64_t k = 0; k < K; k++) {
#pragma GCC unroll 8
        for (int v = 0; v < V; v++)
            w[v] = hk_b_load(kind, b, k * b_k + v * b_v);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            v16f x = v_set1(a[r * a_stride + k]);
#pragma GCC unroll 8
            for (int v = 0; v < V; v++)
                acc[r][v] = v_fma(w[v], x, acc[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++)
            v_store(c + r * c_stride + 16 * v, acc[r][v]);
}

/* 1 <= R <= 6 rows; a full width of HK_TILE_VECS(R) vectors in one tile, fewer one by one. */
HK_INLINE void hk_outer_rows(int kind, int64_t R, int64_t n_vecs, const float *a, int64_t a_stride, const uint8_t *b,
                             int64_t b_k, int64_t b_v, int64_t K, float *c, int64_t c_stride, int add) {
#define HK_OUTER_CASE(R_)                                                                                              \
    case R_:                                                                                                           \
        if (n_vecs == HK_TILE_VECS(R_)) {                                                                              \
            hk_outer_tile(kind, R_, HK_TILE_VECS(R_), a, a_stride, b, b_k, b_v, K, c, c_stride, add);                  \
            break;                                                                                                     \
        }                                                                                                              \
        for (int64_t v = 0; v < n_vecs; v++)                                                                           \
            hk_outer_tile(kind, R_, 1, a, a_stride, b + v * b_v * hk_b_size(kind), b_k, 0, K, c + 16 * v, c_stride,    \
                          add);                                                                                        \
        break;
    switch (R) {
        HK_OUTER_CASE(1)
        HK_OUTER_CASE(2)
        HK_OUTER_CASE(3)
        HK_OUTER_CASE(4)
        HK_OUTER_CASE(5)
        HK_OUTER_CASE(6)
    }
#undef HK_OUTER_CASE
}

/* Any number of rows and vectors. Rows are dealt evenly to the tiles (7 as 4 + 3, not 6 + 1: a tile of few rows waits
 * for its own additions); vectors are the outer loop, so that B's stays in cache while all rows pass it. */
HK_INLINE void hk_outer_kind(int kind, const float *a, int64_t a_stride, int64_t n_rows, const uint8_t *b, int64_t b_k,
                             int64_t b_v, int64_t n_vecs, int64_t K, float *c, int64_t c_stride, int add) {
    int64_t tiles = (n_rows + HK_TILE_ROWS - 1) / HK_TILE_ROWS;
    int64_t step = HK_TILE_VECS((n_rows + tiles - 1) / tiles);
    for (int64_t v = 0; v < n_vecs; v += step) {
        int64_t width = n_vecs - v < step ? n_vecs - v : step;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t r = n_rows * t / tiles, R = n_rows * (t + 1) / tiles - r;
            hk_outer_rows(kind, R, width, a + r * a_stride, a_stride, b + v * b_v * hk_b_size(kind), b_k, b_v, K,
                          c + r * c_stride + 16 * v, c_stride, add);
        }
    }
}

static __attribute__((noinline)) void hk_outer_f32(const float *a, int64_t a_stride, int64_t n_rows, const void *b,
                                                   int64_t b_k, int64_t b_v, int64_t n_vecs, int64_t K, float *c,
                                                   int64_t c_stride, int add) {
    hk_outer_kind(HK_B_F32, a, a_stride, n_rows, b, b_k, b_v, n_vecs, K, c, c_stride, add);
}

static __attribute__((noinline)) void hk_outer_f16(const float *a, int64_t a_stride, int64_t n_rows, const void *b,
                                                   int64_t b_k, int64_t b_v, int64_t n_vecs, int64_t K, float *c,
                                                   int64_t c_stride, int add) {
    hk_outer_kind(HK_B_F16, a, a_stride, n_rows, b, b_k, b_v, n_vecs, K, c, c_stride, add);
}

static __attribute__((noinline)) void hk_outer_bf16(const float *a, int64_t a_stride, int64_t n_rows, const void *b,
                                                    int64_t b_k, int64_t b_v, int64_t n_vecs, int64_t K, float *c,
                                                    int64_t c_stride, int add) {
    hk_outer_kind(HK_B_BF16, a, a_stride, n_rows, b, b_k, b_v, n_vecs, K, c, c_stride, add);
}

HK_INLINE void hk_outer(int kind, const float *a, int64_t a_stride, int64_t n_rows, const void *b, int64_t b_k,
                        int64_t b_v, int64_t n_vecs, int64_t K, float *c, int64_t c_stride, int add) {
    if (kind == HK_B_F32)
        hk_outer_f32(a, a_stride, n_rows, b, b_k, b_v, n_vecs, K, c, c_stride, add);
    else if (kind == HK_B_F16)
        hk_outer_f16(a, a_stride, n_rows, b, b_k, b_v, n_vecs, K, c, c_stride, add);
    else
        hk_outer_bf16(a, a_stride, n_rows, b, b_k, b_v, n_vecs, K, c, c_stride, add);
}

#endif
