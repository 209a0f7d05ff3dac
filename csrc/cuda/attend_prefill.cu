/* Attention of many tokens on the tensor cores: one pass over the cache with an online softmax.
 *
 * The query heads that share a KV head are rows of one tile, so keys and values are read once for all of them: row r of
 * a KV head is token r / G, head r % G (G heads per KV head). A block takes TILE rows, TILE / 4 per warp, and walks
 * over the cache in steps of STEP tokens. The values of a step are fetched while its scores are made, the keys of the
 * next one while the values are weighed: two barriers a step. 32 rows a warp, because each fragment of keys and values
 * then serves two matrix instructions; with 16 the reads of shared memory are the limit.
 *
 * Rows in shared memory are 2 * HD bytes without padding; their 16-byte pieces are exchanged by row, so that no matrix
 * load meets a bank twice. The tokens of a tile may belong to several sequences, which are walked one after the other,
 * rows of others masked. Masked and missing tokens are zeros in shared memory, never what a page happens to hold:
 * 0 * NaN is NaN. The last tiles, which see most of the cache, start first.
 */
#include "hk_cache.cuh"
#include "hk_rows.cuh"

#define WARPS   4
#define THREADS 128
#define MOST    128 /* rows of a tile, at most */
#define LOG2E   1.4426950408889634f

/* Keys and values of a step lie in one of BUFFERS places. sm_75 has 64 KiB in all and no asynchronous copies. Steps of
 * 64 tokens with 32 rows and heads of 128 would spill. NARROW: 16 rows a warp, where the tiles would not fill the chip.
 */
template <int DIM, bool NARROW> struct shape {
    static constexpr int HD = DIM, GRID_ROWS = NARROW || HD == 256 ? 64 : MOST;
#if __CUDA_ARCH__ >= 800
    static constexpr int TILES = NARROW || HD == 256 ? 1 : 2, BUFFERS = 2;
    static constexpr int STEP = HD == 64 || (NARROW && HD == 128) ? 64 : 32;
#else
    static constexpr int TILES = NARROW || HD > 64 ? 1 : 2, BUFFERS = 1, STEP = HD == 256 ? 16 : 32;
#endif
    static constexpr int ROWS = 16 * TILES, TILE = WARPS * ROWS, NT = STEP / 8, BUFFER = 2 * STEP * HD;
};

/* Piece i (8 halves) of a row in shared memory. */
template <class S> HK_FN u16 *piece(u16 *base, int row, int i) { return base + row * S::HD + ((i ^ (row & 7)) << 3); }

/* Softmax state of a thread's rows g and g + 8 of one of its warp's tiles. */
struct row_state {
    float max[2], sum[2];
    int low[2], high[2]; /* visible positions [low, high), empty where the row does not belong to the walk */
};

/* What a tile walks over. */
struct stretch {
    const int *pages;
    int head, low, high;
};

/* Tokens [first, first + STEP) into shared memory, columns beyond dim left alone; zero outside [low, high). */
template <class S, int TYPE>
HK_FN void fetch(u16 *to, const hk_attend_args &a, const stretch &w, bool values, int first) {
    constexpr int PIECES = S::HD / 8, ROWS = THREADS / PIECES;
    int dim = values ? a.cache.dim_v : a.cache.dim_k, row0 = threadIdx.x / PIECES, i = threadIdx.x % PIECES;
    const u8 *plane = plane_of<TYPE>(a.cache, w.pages[first / HK_PAGE], w.head, values);
    if (8 * i < dim) {
#pragma unroll
        for (int r = 0; r < S::STEP; r += ROWS) {
            int row = r + row0, slot = first % HK_PAGE + row;
            bool in = (u32)(first + row - w.low) < (u32)(w.high - w.low);
            u16 *at = piece<S>(to, row, i);
            if (TYPE == HK_CACHE_F16) {
                copy16_async(at, plane + slot * 2 * dim + 16 * i, in);
            } else {
                u32x4 z = {{0, 0, 0, 0}};
                *(u32x4 *)at = in ? read_eight<TYPE>(plane, dim, slot, i) : z;
            }
        }
    }
    copies_commit();
}

/* s[tile][8 cached tokens][4] of a warp's rows. */
template <class S> HK_FN void score(u16 *q, u16 *k, int row0, float (&s)[S::TILES][S::NT][4]) {
    constexpr int TILES = S::TILES, NT = S::NT;
    int lane = threadIdx.x & 31, m = lane >> 3;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int b = 0; b < NT; b++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[i][b][e] = 0;
#pragma unroll 4
    for (int d = 0; d < S::HD / 8; d += 2) {
        u32 qf[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
            load_matrices(qf[i], piece<S>(q, row0 + 16 * i + (lane & 7) + (m & 1) * 8, d + (m >> 1)));
#pragma unroll
        for (int b = 0; b < NT; b += 2) {
            u32 kf[4];
            load_matrices(kf, piece<S>(k, 8 * b + (lane & 7) + (m >> 1) * 8, d + (m & 1)));
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                mma_f16(s[i][b], qf[i], kf[0], kf[1]);
                mma_f16(s[i][b + 1], qf[i], kf[2], kf[3]);
            }
        }
    }
}

/* Masks, caps, and turns scores (in units of log 2) into weights; rescales what was summed so far. */
template <int NT, int ND>
HK_FN void soften(const hk_attend_args &a, row_state &st, int position, float (&s)[NT][4], float (&o)[ND][4]) {
    int t = threadIdx.x & 3;
    bool inside = position >= st.low[0] && position >= st.low[1] && position + 8 * NT <= st.high[0] &&
                  position + 8 * NT <= st.high[1];
    if (a.softcap > 0)
#pragma unroll
        for (int b = 0; b < NT; b++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[b][e] = LOG2E * a.softcap * tanh_of(s[b][e] / a.softcap);
    if (!__all_sync(~0u, inside))
#pragma unroll
        for (int b = 0; b < NT; b++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int p = position + 8 * b + 2 * t + (e & 1);
                if (p < st.low[e >> 1] || p >= st.high[e >> 1])
                    s[b][e] = -HK_INFINITY;
            }
    float shrink[2];
    bool grown = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float peak = st.max[h], sum = 0;
#pragma unroll
        for (int b = 0; b < NT; b++)
            peak = fmaxf(peak, fmaxf(s[b][2 * h], s[b][2 * h + 1]));
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
        grown |= peak > st.max[h];
        shrink[h] = exp2_of(st.max[h] - peak);
        st.max[h] = peak;
#pragma unroll
        for (int b = 0; b < NT; b++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[b][2 * h + e] = exp2_of(s[b][2 * h + e] - peak);
                sum += s[b][2 * h + e];
            }
        st.sum[h] = st.sum[h] * shrink[h] + sum;
    }
    if (__any_sync(~0u, grown))
#pragma unroll
        for (int d = 0; d < ND; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[d][e] *= shrink[e >> 1];
}

template <class S> HK_FN void weigh(u16 *v, const float (&s)[S::TILES][S::NT][4], float (&o)[S::TILES][S::HD / 8][4]) {
    constexpr int TILES = S::TILES;
    int lane = threadIdx.x & 31, m = lane >> 3;
#pragma unroll
    for (int b = 0; b < S::NT; b += 2) {
        u32 p[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                p[i][e] = pack_half2(s[i][b + (e >> 1)][2 * (e & 1)], s[i][b + (e >> 1)][2 * (e & 1) + 1]);
#pragma unroll
        for (int d = 0; d < S::HD / 8; d += 2) {
            u32 vf[4];
            load_matrices_transposed(vf, piece<S>(v, 8 * b + (lane & 7) + (m & 1) * 8, d + (m >> 1)));
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                mma_f16(o[i][d], p[i], vf[0], vf[1]);
                mma_f16(o[i][d + 1], p[i], vf[2], vf[3]);
            }
        }
    }
}

/* Rows of queries as halves, scaled; zero beyond the tile and beyond dim, where keys and values are zeroed as well. A
 * warp takes a row at a time. */
template <class S>
HK_FN void load_queries(const hk_attend_args &a, u16 *q, u16 *kv, int first_row, int n_rows, int head0, int group) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float scale = a.softcap > 0 ? a.scale : a.scale * LOG2E;
#pragma unroll 8
    for (int r = warp; r < S::TILE; r += WARPS) {
        int row = first_row + r, token = row / group;
        const float *x = a.q + token * a.q_stride + (s64)(head0 + row - token * group) * a.cache.dim_k;
#pragma unroll
        for (int d = 2 * lane; d < S::HD; d += 64) {
            f32x2 y = {{0, 0}};
            if (row < n_rows && d < a.cache.dim_k)
                y = load_fresh2(x + d);
            *(u32 *)(piece<S>(q, r, d / 8) + d % 8) = pack_half2(y.v[0] * scale, y.v[1] * scale);
        }
    }
    if (a.cache.dim_k == S::HD && a.cache.dim_v == S::HD)
        return;
    for (int i = threadIdx.x; i < S::BUFFERS * S::BUFFER / 8; i += THREADS) {
        u32x4 z = {{0, 0, 0, 0}};
        ((u32x4 *)kv)[i] = z;
    }
    __syncthreads();
}

struct tokens_of_tile {
    int sequence[MOST], position[MOST], low, high;
    u32 starts[MOST / 32]; /* bit t: token t is the first of its sequence's run */
};

/* Walks over the steps of a stretch with what the warp's rows see of it. */
template <class S, int TYPE>
HK_FN void walk(const hk_attend_args &a, const stretch &w, u16 *q, u16 *kv, row_state (&st)[S::TILES],
                float (&o)[S::TILES][S::HD / 8][4]) {
    int begin = w.low / S::STEP, end = (w.high + S::STEP - 1) / S::STEP, warp = threadIdx.x >> 5;
    int low = 0x7FFFFFFF, high = 0;
#pragma unroll
    for (int i = 0; i < S::TILES; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (st[i].high[h] > 0) {
                low = min(low, st[i].low[h]);
                high = max(high, st[i].high[h]);
            }
    for (int x = 1; x < 32; x <<= 1) {
        low = min(low, __shfl_xor_sync(~0u, low, x));
        high = max(high, __shfl_xor_sync(~0u, high, x));
    }
    fetch<S, TYPE>(kv, a, w, false, begin * S::STEP);
    fetch<S, TYPE>(kv + S::BUFFER / 2, a, w, true, begin * S::STEP);
    for (int i = begin; i < end; i++) {
        int first = i * S::STEP;
        u16 *k = kv + (S::BUFFERS == 2 ? (i - begin & 1) * S::BUFFER : 0), *v = k + S::BUFFER / 2;
        u16 *next = kv + (S::BUFFERS == 2 ? (i + 1 - begin & 1) * S::BUFFER : 0);
        copies_wait<0>();
        __syncthreads();
        if (S::BUFFERS == 2 && i + 1 < end) {
            fetch<S, TYPE>(next, a, w, false, first + S::STEP);
            fetch<S, TYPE>(next + S::BUFFER / 2, a, w, true, first + S::STEP);
        }
        if (first < high && first + S::STEP > low) {
            float s[S::TILES][S::NT][4];
            score<S>(q, k, S::ROWS * warp, s);
#pragma unroll
            for (int m = 0; m < S::TILES; m++)
                soften(a, st[m], first, s[m], o[m]);
            weigh<S>(v, s, o);
        }
        if (S::BUFFERS == 1) {
            __syncthreads();
            if (i + 1 < end) {
                fetch<S, TYPE>(next, a, w, false, first + S::STEP);
                fetch<S, TYPE>(next + S::BUFFER / 2, a, w, true, first + S::STEP);
            }
        }
    }
    __syncthreads();
}

/* grid (kv heads, tiles of MOST rows), the last rows first. */
template <class S, int TYPE> HK_FN void prefill(const hk_attend_args &a, u16 *q, tokens_of_tile &in, int first) {
    u16 *kv = q + S::TILE * S::HD;
    int n = a.step.counts[0], group = a.n_head / a.cache.n_kv, head = blockIdx.x, n_rows = n * group;
    int thread = threadIdx.x, warp = thread >> 5, g = (thread & 31) >> 2, t = thread & 3;
    int token0 = first / group, tokens = min(n, (first + S::TILE - 1) / group + 1) - token0;
    load_queries<S>(a, q, kv, first, n_rows, head * group, group);
    int sequence = thread < tokens ? a.step.sequences[token0 + thread] : -1;
    int position = thread < tokens ? a.step.positions[token0 + thread] : 0;
    in.sequence[thread] = sequence;
    in.position[thread] = position;
    __syncthreads();
    u32 starts = __ballot_sync(~0u, thread < tokens && (thread == 0 || in.sequence[thread - 1] != sequence));
    if ((thread & 31) == 0)
        in.starts[warp] = starts;
    row_state st[S::TILES];
    float o[S::TILES][S::HD / 8][4] = {};
#pragma unroll
    for (int i = 0; i < S::TILES; i++)
        st[i] = {{-HK_MAX_FLOAT, -HK_MAX_FLOAT}, {0, 0}, {0, 0}, {0, 0}};
    for (int begin = 0, end; begin < tokens; begin = end) {
        if (thread == 0)
            in.low = 0x7FFFFFFF, in.high = 0;
        __syncthreads();
        end = tokens;
        for (int i = MOST / 32 - 1; i >= 0; i--) {
            int from = begin + 1 - 32 * i; /* the first start behind `begin` */
            u32 bits = from >= 32 ? 0 : from > 0 ? in.starts[i] >> from << from : in.starts[i];
            end = bits ? 32 * i + __ffs(bits) - 1 : end;
        }
        if (thread >= begin && thread < end) {
            atomicMin(&in.low, a.window > 0 ? max(0, position - a.window + 1) : 0);
            atomicMax(&in.high, position + 1);
        }
#pragma unroll
        for (int i = 0; i < S::TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int row = first + S::ROWS * warp + 16 * i + g + 8 * h, token = row / group - token0;
                bool mine = row < n_rows && token >= begin && token < end;
                st[i].high[h] = mine ? in.position[token] + 1 : 0;
                st[i].low[h] = mine && a.window > 0 ? st[i].high[h] - a.window : 0;
            }
        __syncthreads();
        stretch w = {a.step.pages + in.sequence[begin] * a.step.page_stride, head, in.low, in.high};
        walk<S, TYPE>(a, w, q, kv, st, o);
    }
#pragma unroll
    for (int i = 0; i < S::TILES; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = first + S::ROWS * warp + 16 * i + g + 8 * h;
            float sum = st[i].sum[h]; /* lies divided over the quad that holds a row until here */
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (row >= n_rows)
                continue;
            float *out = a.out + (row / group) * a.out_stride + (s64)(head * group + row % group) * a.cache.dim_v;
            float scale = 1.0f / sum;
#pragma unroll
            for (int d = 0; d < S::HD / 8; d++)
                if (8 * d < a.cache.dim_v)
                    *(f32x2 *)(out + 8 * d + 2 * t) = {{o[i][d][2 * h] * scale, o[i][d][2 * h + 1] * scale}};
        }
}

template <class S, int TYPE> HK_FN void tiles(const hk_attend_args &a) {
    extern __shared__ __align__(16) u16 q[];
    __shared__ tokens_of_tile in;
    allow_next();
    wait_for_previous();
    int n_rows = a.step.counts[0] * (a.n_head / a.cache.n_kv);
    int first = ((n_rows + S::GRID_ROWS - 1) / S::GRID_ROWS - 1 - blockIdx.y) * S::GRID_ROWS;
    for (int i = S::GRID_ROWS - S::TILE; i >= 0; i -= S::TILE)
        if (first >= 0 && first + i < n_rows)
            prefill<S, TYPE>(a, q, in, first + i);
}

#define HK_PREFILL(name, type, hd, kind, narrow)                                                                       \
    HK_KERNEL __launch_bounds__(THREADS, 2) hk_prefill##kind##hd##_##name(const __grid_constant__ hk_attend_args a) {  \
        tiles<shape<hd, narrow>, type>(a);                                                                             \
    }
#define HK_PREFILL_SIZES(name, type)                                                                                   \
    HK_PREFILL(name, type, 64, , false)                                                                                \
    HK_PREFILL(name, type, 128, , false)                                                                               \
    HK_PREFILL(name, type, 256, , false)                                                                               \
    HK_PREFILL(name, type, 64, _narrow, true)                                                                          \
    HK_PREFILL(name, type, 128, _narrow, true)
HK_PREFILL_SIZES(f16, HK_CACHE_F16)
HK_PREFILL_SIZES(q8_0, HK_CACHE_Q8_0)
HK_PREFILL_SIZES(q4_0, HK_CACHE_Q4_0)
