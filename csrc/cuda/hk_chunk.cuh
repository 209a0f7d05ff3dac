/* Chunks of 16 cached tokens in shared memory, and the products of decode attention with them (attend_decode.cu). One
 * warp each, without any barrier but its own.
 */
#ifndef HK_CHUNK_CUH
#define HK_CHUNK_CUH

#include "hk_cache.cuh"
#include "hk_rows.cuh"

#define CHUNK 16
/* Warps of a block; bytes of a warp's ring. Two blocks of 96 KiB on a multiprocessor read faster than three of 64;
 * sm_75 has 64 KiB. */
#ifndef WARPS
#define WARPS 4
#if __CUDA_ARCH__ >= 800
#define RING 24576
#else
#define RING 16384
#endif
#endif
#define LOG2E 1.4426950408889634f

/* K or V of a chunk in shared memory: rows of codes, 16-byte pieces exchanged so that no reader meets a bank twice,
 * then scales as the page holds them. */
template <int HD, int TYPE> struct chunk {
    static constexpr int ROW = TYPE == HK_CACHE_F16 ? 2 * HD : TYPE == HK_CACHE_Q8_0 ? HD : HD / 2;
    static constexpr int PIECES = ROW / 16, CODES = CHUNK * ROW;
    static constexpr int BYTES = CODES + (TYPE == HK_CACHE_F16 ? 0 : HD);
    static constexpr int SLOTS = RING / BYTES >= 8 ? 8 : RING / BYTES & ~1;
    static_assert(SLOTS >= 2, "a ring holds keys and values");
    static __device__ __forceinline__ int piece(int row, int i) {
        int turn = TYPE == HK_CACHE_F16 ? row & 7 : (row & 6) ^ (row & 1) << 2;
        return row * ROW + ((i ^ turn & (PIECES - 1)) << 4);
    }
};

/* What a block works on. */
struct part_of_cache {
    const int *pages;
    int head, low, high; /* visible positions [low, high) */
};

template <int HD, int TYPE>
HK_FN void fetch(u8 *slot, const hk_attend_args &a, const part_of_cache &c, int page, int first, bool values,
                 int lane) {
    using S = chunk<HD, TYPE>;
    int dim = values ? a.cache.dim_v : a.cache.dim_k, row_bytes = code_row_bytes<TYPE>(dim);
    const u8 *plane = plane_of<TYPE>(a.cache, page, c.head, values);
    int row0 = lane / S::PIECES, i = lane % S::PIECES, in_page = first % HK_PAGE;
    const u8 *from = plane + (in_page + row0) * row_bytes + 16 * i;
    if (16 * i < row_bytes) {
#pragma unroll
        for (int r = 0; r < CHUNK * S::PIECES / 32; r++) {
            constexpr int ROWS = 32 / S::PIECES;
            u32 position = first + row0 + r * ROWS;
            copy16_async(slot + S::piece(row0 + r * ROWS, i), from + r * ROWS * row_bytes,
                         position - (u32)c.low < (u32)(c.high - c.low));
        }
    }
    if (TYPE != HK_CACHE_F16 && 16 * lane < dim)
        copy16_async(slot + S::CODES + 16 * lane, plane + HK_PAGE * row_bytes + in_page * (dim / 16) + 16 * lane, true);
}

/* Dimension d of k-step s, pair h of a fragment's two, for lane t of a quad. */
template <int TYPE> HK_FN int key_dimension(int s, int h, int t) {
    return TYPE == HK_CACHE_F16 ? 16 * s + 8 * h + 2 * t : 64 * (s / 4) + 16 * t + 4 * (s % 4) + 2 * h;
}
/* Dimension of row g (h = 0) or g + 8 of result tile i. */
template <int HD, int TYPE> HK_FN int value_dimension(int i, int h, int g) {
    return TYPE == HK_CACHE_F16 ? 16 * i + 8 * h + g : HD / 8 * g + 2 * i + h;
}
HK_FN u32 codes8_to_half2(u32 codes, u32 selector, u32 scale) { /* 0x6480 is 1024 + 128 */
    return half2_mul(half2_sub(permute(codes, 0x64646464u, selector), 0x64806480u), scale);
}
HK_FN u32 codes4_to_half2(u32 word, int i, u32 scale) {
    return half2_mul(half2_sub((word >> 4 * i & 0x000F000Fu) | 0x64006400u, 0x64086408u), scale);
}
HK_FN u32 twice(u32 half) { return half | half << 16; }

/* Scores of a chunk: s[0], s[1] of row g and heads 2 t, 2 t + 1; s[2], s[3] of row g + 8. */
template <int HD, int TYPE> HK_FN void score(const u8 *slot, int dim, const u32 (&q)[HD / 8], float (&s)[4], int lane) {
    using S = chunk<HD, TYPE>;
    float more[4] = {0, 0, 0, 0};
    int g = lane >> 2, t = lane & 3, m = lane >> 3;
    s[0] = s[1] = s[2] = s[3] = 0;
    if constexpr (TYPE == HK_CACHE_F16) {
#pragma unroll
        for (int k = 0; k < HD / 16; k++) {
            u32 f[4];
            load_matrices(f, slot + S::piece((lane & 7) + (m & 1) * 8, 2 * k + (m >> 1)));
            mma_f16(k & 1 ? more : s, f, q[2 * k], q[2 * k + 1]);
        }
    } else {
        const u16 *scales = (const u16 *)(slot + S::CODES);
        int blocks = dim / 32;
#pragma unroll
        for (int j = 0; j < HD / 64; j++) {
            int b = 2 * j + (t >> 1);
            u32 d0 = b < blocks ? twice(scales[g * blocks + b]) : 0;
            u32 d1 = b < blocks ? twice(scales[(g + 8) * blocks + b]) : 0;
            if constexpr (TYPE == HK_CACHE_Q8_0) {
                u32x4 r0 = *(const u32x4 *)(slot + S::piece(g, 4 * j + t));
                u32x4 r1 = *(const u32x4 *)(slot + S::piece(g + 8, 4 * j + t));
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 w0 = r0.v[i] ^ 0x80808080u, w1 = r1.v[i] ^ 0x80808080u;
                    u32 f[4] = {codes8_to_half2(w0, 0x4140u, d0), codes8_to_half2(w1, 0x4140u, d1),
                                codes8_to_half2(w0, 0x4342u, d0), codes8_to_half2(w1, 0x4342u, d1)};
                    mma_f16(i & 1 ? more : s, f, q[8 * j + 2 * i], q[8 * j + 2 * i + 1]);
                }
            } else {
                u32x2 r0 = *(const u32x2 *)(slot + S::piece(g, 2 * j + (t >> 1)) + 8 * (t & 1));
                u32x2 r1 = *(const u32x2 *)(slot + S::piece(g + 8, 2 * j + (t >> 1)) + 8 * (t & 1));
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 w0 = r0.v[i >> 1] >> 8 * (i & 1), w1 = r1.v[i >> 1] >> 8 * (i & 1);
                    u32 f[4] = {codes4_to_half2(w0, 0, d0), codes4_to_half2(w1, 0, d1), codes4_to_half2(w0, 1, d0),
                                codes4_to_half2(w1, 1, d1)};
                    mma_f16(i & 1 ? more : s, f, q[8 * j + 2 * i], q[8 * j + 2 * i + 1]);
                }
            }
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        s[e] += more[e];
}

/* Softmax of a thread's heads 2 t and 2 t + 1; sums lie divided over the lanes until the end. */
struct softmax {
    float max[2], sum[2];
};

/* Masks, caps and turns scores into weights, as the B fragment of the next product; rescales what was summed so far. */
template <int TILES>
HK_FN void soften(const hk_attend_args &a, const part_of_cache &c, softmax &st, int first, float (&s)[4],
                  float (&o)[TILES][4], u32 (&p)[2], int lane) {
    if (a.softcap > 0)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[e] = a.softcap * tanh_of(s[e] / a.softcap);
#pragma unroll
    for (int e = 0; e < 4; e++)
        s[e] *= LOG2E;
    if (first < c.low || first + CHUNK > c.high)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int at = first + (lane >> 2) + 4 * (e & 2);
            s[e] = at >= c.low && at < c.high ? s[e] : -HK_INFINITY;
        }
    float shrink[2];
    bool grown = false;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float peak = fmaxf(s[e], s[e + 2]);
#pragma unroll
        for (int x = 4; x < 32; x <<= 1)
            peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, x));
        peak = fmaxf(fmaxf(peak, st.max[e]), -HK_MAX_FLOAT);
        grown |= peak > st.max[e];
        shrink[e] = exp2_of(st.max[e] - peak);
        st.max[e] = peak;
        s[e] = exp2_of(s[e] - peak);
        s[e + 2] = exp2_of(s[e + 2] - peak);
        st.sum[e] = st.sum[e] * shrink[e] + s[e] + s[e + 2];
    }
    if (__any_sync(~0u, grown))
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[i][e] *= shrink[e & 1];
    p[0] = turned(pack_half2(s[0], s[1]));
    p[1] = turned(pack_half2(s[2], s[3]));
}

template <int HD, int TYPE>
HK_FN void weigh(const u8 *slot, int dim, int valid, const u32 (&p)[2], float (&o)[HD / 16][4], int lane) {
    using S = chunk<HD, TYPE>;
    int g = lane >> 2, t = lane & 3, m = lane >> 3;
    if constexpr (TYPE == HK_CACHE_F16) {
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            u32 f[4];
            load_matrices_transposed(f, slot + S::piece((lane & 7) + (m >> 1) * 8, 2 * i + (m & 1)));
            mma_f16(o[i], f, p[0], p[1]);
        }
    } else {
        const u16 *scales = (const u16 *)(slot + S::CODES);
        int blocks = dim / 32, b = HD / 8 * g / 32;
        u32 d[2];
#pragma unroll
        for (int h = 0; h < 2; h++) { /* tokens 2 t + 8 h and the next */
            int at = 2 * t + 8 * h;
            u32 first = b < blocks && (valid >> at & 1) ? scales[at * blocks + b] : 0;
            u32 second = b < blocks && (valid >> at & 2) ? scales[(at + 1) * blocks + b] : 0;
            d[h] = first | second << 16;
        }
        constexpr int WORDS = TYPE == HK_CACHE_Q8_0 ? HD / 32 : HD / 64, STEP = WORDS > 4 ? 4 : WORDS;
#pragma unroll
        for (int w = 0; w < WORDS; w += STEP) {
            u32 r[4][STEP];
#pragma unroll
            for (int k = 0; k < 4; k++) { /* tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9 */
                int byte = 4 * (WORDS * g + w);
                const u8 *at = slot + S::piece(2 * t + (k & 1) + 4 * (k & 2), byte >> 4) + (byte & 15);
                if constexpr (STEP == 4)
                    *(u32x4 *)r[k] = *(const u32x4 *)at;
                else if constexpr (STEP == 2)
                    *(u32x2 *)r[k] = *(const u32x2 *)at;
                else
                    r[k][0] = *(const u32 *)at;
            }
#pragma unroll
            for (int i = 0; i < STEP; i++) {
#pragma unroll
                for (int e = 0; e < (TYPE == HK_CACHE_Q8_0 ? 2 : 4); e++) {
                    u32 f[4];
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        if constexpr (TYPE == HK_CACHE_Q8_0) {
                            u32 x = permute(r[2 * h][i], r[2 * h + 1][i], e ? 0x7362u : 0x5140u) ^ 0x80808080u;
                            f[2 * h] = codes8_to_half2(x, 0x4140u, d[h]);
                            f[2 * h + 1] = codes8_to_half2(x, 0x4342u, d[h]);
                        } else {
                            f[2 * h] = codes4_to_half2(permute(r[2 * h][i], r[2 * h + 1][i], 0x5410u), e, d[h]);
                            f[2 * h + 1] = codes4_to_half2(permute(r[2 * h][i], r[2 * h + 1][i], 0x7632u), e, d[h]);
                        }
                    mma_f16(o[(w + i) * (TYPE == HK_CACHE_Q8_0 ? 2 : 4) + e], f, p[0], p[1]);
                }
            }
        }
    }
}

/* Queries of a thread's head g as B fragments. SHARED: x lies in shared memory. */
template <int HD, int TYPE, bool SHARED = false>
HK_FN void load_queries(const hk_attend_args &a, const float *x, bool mine, u32 (&q)[HD / 8], int t) {
#pragma unroll
    for (int i = 0; i < HD / 8; i++) {
        int d = key_dimension<TYPE>(i / 2, i & 1, t);
        f32x2 v = {{0, 0}};
        if (mine && d < a.cache.dim_k)
            v = SHARED ? *(const f32x2 *)(x + d) : load_fresh2(x + d);
        q[i] = pack_half2(v.v[0] * a.scale, v.v[1] * a.scale);
    }
}

/* Item 2 k is the keys of a warp's chunk k, 2 k + 1 its values; its chunks are `begin` and every WARPS behind it. Asks
 * for items [from, to) of the first that its ring holds. */
template <int HD, int TYPE>
HK_FN void fetch_items(const hk_attend_args &a, const part_of_cache &c, u8 *ring, int begin, int items, int from,
                       int to, int lane) {
    using S = chunk<HD, TYPE>;
#pragma unroll
    for (int i = 0; i < S::SLOTS; i++)
        if (i >= from && i < to) {
            int at = (begin + i / 2 * WARPS) * CHUNK;
            if (i < items)
                fetch<HD, TYPE>(ring + i * S::BYTES, a, c, c.pages[at / HK_PAGE], at, i & 1, lane);
            copies_commit();
        }
}
/* A warp's chunks up to `end`, the first of which have been asked for. */
template <int HD, int TYPE>
HK_FN void walk(const hk_attend_args &a, const part_of_cache &c, u8 *ring, int begin, int end, const u32 (&q)[HD / 8],
                softmax &st, float (&o)[HD / 16][4], int lane) {
    using S = chunk<HD, TYPE>;
    constexpr int SLOTS = S::SLOTS;
    u8 *slot = ring;
    int ahead = begin + SLOTS / 2 * WARPS, page = ahead < end ? c.pages[ahead * CHUNK / HK_PAGE] : 0;
    for (int at = begin; at < end; at += WARPS, ahead += WARPS) {
        float s[4];
        u32 p[2];
        int first = at * CHUNK, this_page = page, valid = 0xFFFF;
        if (ahead + WARPS < end)
            page = c.pages[(ahead + WARPS) * CHUNK / HK_PAGE];
        copies_wait<SLOTS - 1>();
        __syncwarp();
        score<HD, TYPE>(slot, a.cache.dim_k, q, s, lane);
        __syncwarp();
        if (ahead < end)
            fetch<HD, TYPE>(slot, a, c, this_page, ahead * CHUNK, false, lane);
        copies_commit();
        slot += S::BYTES;
        soften(a, c, st, first, s, o, p, lane);
        copies_wait<SLOTS - 1>();
        __syncwarp();
        if (first < c.low)
            valid &= 0xFFFF << (c.low - first);
        if (first + CHUNK > c.high)
            valid &= 0xFFFF >> (first + CHUNK - c.high);
        weigh<HD, TYPE>(slot, a.cache.dim_v, valid, p, o, lane);
        __syncwarp();
        if (ahead < end)
            fetch<HD, TYPE>(slot, a, c, this_page, ahead * CHUNK, true, lane);
        copies_commit();
        slot += S::BYTES;
        if (slot == ring + SLOTS * S::BYTES)
            slot = ring;
    }
}

#endif
