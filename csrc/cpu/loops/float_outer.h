/* The one multiplication of the float kernels: C[r][16 v ..] (+)= sum_k A[r][k] * B[k][16 v ..].
 *
 * A is float rows, each element broadcast; B comes as 16-lane vectors (k, v), stored as floats or as something that a
 * load turns into floats (hk_b); C has vector v at c + 16 v. That covers
 *   matrix-vector    one row of A (the column), v = panels of 16 weight rows
 *   matrix-matrix    rows of A are the columns, v = panels
 *   attention scores rows of A are queries, k = head dimensions, v = 16 tokens of the transposed K
 *   attention sums   rows of A are probabilities, k = tokens, v = 16 dimensions of V
 * Each element of C is one chain C = fma(B, A, C) over ascending k from +0 (or from C), whatever the tile: so a row's
 * bits depend neither on its neighbours nor on the tile that computed it.
 */
#ifndef HK_FLOAT_OUTER_H
#define HK_FLOAT_OUTER_H

/* What a load turns into floats: I8 int8 codes, N4 two steps of K in the nibbles of a row of bytes, P4 neighbouring
 * lanes in the nibbles of a byte, both with 8 added. Scales of codes are the caller's business. */
enum { HK_B_F32, HK_B_F16, HK_B_BF16, HK_B_I8, HK_B_N4, HK_B_P4 };

/* Vector (k, v) starts at element k * b.k + v * b.v of base. All kinds but F32 and BF16 fetch what comes next into the
 * second cache meanwhile, ahead_step bytes for each (k, v), from `ahead` on, which must be an address: the planes of a
 * KV cache are too short, and the rows of K too scattered, for the processor to see what comes. */
typedef struct hk_b {
    const uint8_t *base;
    int64_t k, v;
    int kind;
    const uint8_t *ahead;
    int64_t ahead_step;
} hk_b;

HK_INLINE int64_t hk_b_size(int kind) { return kind == HK_B_F32 ? 4 : kind == HK_B_F16 || kind == HK_B_BF16 ? 2 : 1; }

/* odd: k & 1, a constant where it matters */
HK_INLINE v16f hk_b_load(int kind, const hk_b *b, int64_t k, int64_t v, int odd) {
    const uint8_t *p = b->base + ((kind == HK_B_N4 ? k / 2 : k) * b->k + v * b->v) * hk_b_size(kind);
    switch (kind) {
    case HK_B_F32:
        return v_load((const float *)p);
    case HK_B_F16:
        return v_load_f16((const uint16_t *)p);
    case HK_B_BF16:
        return v_load_bf16((const uint16_t *)p);
    case HK_B_I8:
        return v_load_i8((const int8_t *)p);
    case HK_B_N4:
        return v_load_nibbles(p, odd);
    default:
        return v_load_nibble_pairs(p);
    }
}

/* Step k of a tile. */
HK_INLINE void hk_outer_step(int kind, int R, int V, const hk_b *b, int64_t first, const float *a, int64_t a_stride,
                             int64_t K, int64_t k, int odd, v16f acc[6][8]) {
    v16f w[8];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
        w[v] = hk_b_load(kind, b, k, first + v, odd);
        if (kind != HK_B_F32 && kind != HK_B_BF16)
            __builtin_prefetch(b->ahead + ((first + v) * K + k) * b->ahead_step, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        v16f x = v_set1(a[r * a_stride + k]);
#pragma GCC unroll 8
        for (int v = 0; v < V; v++)
            acc[r][v] = v_fma(w[v], x, acc[r][v]);
    }
}

/* R x V vectors of C in registers, from vector `first` of B. R, V and kind are constants where this is inlined; K is
 * even for N4. */
HK_INLINE void hk_outer_tile(int kind, int R, int V, const hk_b *b, int64_t first, const float *a, int64_t a_stride,
                             int64_t K, float *c, int64_t c_stride, int add) {
    v16f acc[6][8];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++)
            acc[r][v] = add ? v_load(c + r * c_stride + 16 * v) : v_zero();
    if (kind == HK_B_N4)
        for (int64_t k = 0; k < K; k += 2) {
            hk_outer_step(kind, R, V, b, first, a, a_stride, K, k, 0, acc);
            hk_outer_step(kind, R, V, b, first, a, a_stride, K, k + 1, 1, acc);
        }
    else
        for (int64_t k = 0; k < K; k++)
            hk_outer_step(kind, R, V, b, first, a, a_stride, K, k, 0, acc);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++)
            v_store(c + r * c_stride + 16 * v, acc[r][v]);
}

/* 1 <= R <= 6 rows; a full width of HK_TILE_VECS(R) vectors in one tile, fewer one by one. */
HK_INLINE void hk_outer_rows(int kind, int64_t R, const hk_b *b, int64_t first, int64_t n_vecs, const float *a,
                             int64_t a_stride, int64_t K, float *c, int64_t c_stride, int add) {
#define HK_OUTER_CASE(R_)                                                                                              \
    case R_:                                                                                                           \
        if (n_vecs == HK_TILE_VECS(R_)) {                                                                              \
            hk_outer_tile(kind, R_, HK_TILE_VECS(R_), b, first, a, a_stride, K, c, c_stride, add);                     \
            break;                                                                                                     \
        }                                                                                                              \
        for (int64_t v = 0; v < n_vecs; v++)                                                                           \
            hk_outer_tile(kind, R_, 1, b, first + v, a, a_stride, K, c + 16 * v, c_stride, add);                       \
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
HK_INLINE void hk_outer_kind(int kind, hk_b b, int64_t n_vecs, const float *a, int64_t a_stride, int64_t n_rows,
                             int64_t K, float *c, int64_t c_stride, int add) {
    int64_t tiles = (n_rows + HK_TILE_ROWS - 1) / HK_TILE_ROWS;
    int64_t step = HK_TILE_VECS((n_rows + tiles - 1) / tiles);
    for (int64_t v = 0; v < n_vecs; v += step) {
        int64_t width = n_vecs - v < step ? n_vecs - v : step;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t r = n_rows * t / tiles, R = n_rows * (t + 1) / tiles - r;
            hk_outer_rows(kind, R, &b, v, width, a + r * a_stride, a_stride, K, c + r * c_stride + 16 * v, c_stride,
                          add);
        }
    }
}

#define HK_B_KINDS(X)                                                                                                  \
    X(F32, f32)                                                                                                        \
    X(F16, f16)                                                                                                        \
    X(BF16, bf16)                                                                                                      \
    X(I8, i8)                                                                                                          \
    X(N4, n4)                                                                                                          \
    X(P4, p4)

#define X(NAME, lower)                                                                                                 \
    static __attribute__((noinline)) void hk_outer_##lower(hk_b b, int64_t n_vecs, const float *a, int64_t a_stride,   \
                                                           int64_t n_rows, int64_t K, float *c, int64_t c_stride,      \
                                                           int add) {                                                  \
        hk_outer_kind(HK_B_##NAME, b, n_vecs, a, a_stride, n_rows, K, c, c_stride, add);                               \
    }
HK_B_KINDS(X)
#undef X

static void hk_outer(hk_b b, int64_t n_vecs, const float *a, int64_t a_stride, int64_t n_rows, int64_t K, float *c,
                     int64_t c_stride, int add) {
    switch (b.kind) {
#define X(NAME, lower)                                                                                                 \
    case HK_B_##NAME:                                                                                                  \
        hk_outer_##lower(b, n_vecs, a, a_stride, n_rows, K, c, c_stride, add);                                         \
        break;
        HK_B_KINDS(X)
#undef X
    }
}

/* Vectors [v0, v1) x [k0, k1) of B to floats: dst[v - v0] panels of `depth` vectors, at k - k0. */
HK_INLINE void hk_b_tile_kind(int kind, hk_b b, int64_t v0, int64_t v1, int64_t k0, int64_t k1, float *dst,
                              int64_t depth) {
    for (int64_t v = v0; v < v1; v++, dst += 16 * depth)
        for (int64_t k = k0; k < k1; k++)
            v_store(dst + 16 * (k - k0), hk_b_load(kind, &b, k, v, k & 1));
}

static void hk_b_tile(hk_b b, int64_t v0, int64_t v1, int64_t k0, int64_t k1, float *dst, int64_t depth) {
    switch (b.kind) {
#define X(NAME, lower)                                                                                                 \
    case HK_B_##NAME:                                                                                                  \
        hk_b_tile_kind(HK_B_##NAME, b, v0, v1, k0, k1, dst, depth);                                                    \
        break;
        HK_B_KINDS(X)
#undef X
    }
}

#endif
