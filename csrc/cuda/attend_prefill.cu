/* Attention over the paged cache on the tensor cores, one pass with an online softmax.
 *
 * The query heads that share a KV head are rows of one tile, so keys and values are read once for all of them. Row r of
 * a KV head is token r / G, head r % G (G heads per KV head); a tile holds ROWS rows and walks over the cache in steps
 * of 64 tokens, half a page. Keys and values become halves in shared memory, whatever the cache holds.
 *
 *   prefill  64 rows, 16 per warp, every warp over all 64 cached tokens of a step; the tokens of a tile may belong to
 *            several sequences, which are walked one after the other, rows of others masked
 *   decode   16 rows of one token; each of the 4 warps takes 16 of the 64 cached tokens of a step. The cache is divided
 *            between `splits` blocks; the last to arrive combines. Few tokens would otherwise leave most of the chip
 * idle
 *
 * Masked and missing tokens are zeros in shared memory, never what a page happens to hold: 0 * NaN is NaN.
 */
#include "hk_cache.cuh"
#include "hk_rows.cuh"

#define STEP  64
#define WARPS 4
#define LOG2E 1.4426950408889634f

/* Softmax state of a thread's two rows, g and g + 8 of its warp's tile. */
struct row_state {
    float max[2], sum[2];
    int low[2], high[2]; /* visible positions [low, high), empty where the row does not belong to the walk */
};

/* Tokens [first, first + STEP) of a sequence into shared memory, columns beyond dim left alone; zero outside [low,
 * high). */
template <int HD, int TYPE>
HK_FN void fetch(u16 *to, const hk_attend_args &a, const int *pages, int head, bool values, int first, int low,
                 int high) {
    int dim = values ? a.cache.dim_v : a.cache.dim_k;
    const u8 *plane = plane_of<TYPE>(a.cache, pages[first / HK_PAGE], head, values);
#pragma unroll 4
    for (int i = threadIdx.x; i < STEP * HD / 8; i += WARPS * 32) {
        int token = i / (HD / 8), e = i % (HD / 8), position = first + token;
        if (8 * e >= dim)
            continue;
        bool in = position >= low && position < high;
        u16 *at = to + token * (HD + 8) + 8 * e;
        if (TYPE == HK_CACHE_F16) {
            copy16_async(at, plane + (position % HK_PAGE) * 2 * dim + 16 * e, in);
        } else {
            u32x4 z = {{0, 0, 0, 0}};
            *(u32x4 *)at = in ? read_eight<TYPE>(plane, dim, position % HK_PAGE, e) : z;
        }
    }
    copies_commit();
}

/* scores[16][8 NT] of a warp: queries from row0, cached tokens from token0 of the step. */
template <int HD, int NT> HK_FN void score(const u16 *q, const u16 *k, int row0, int token0, float (&s)[NT][4]) {
    int lane = threadIdx.x & 31, m = lane >> 3;
    const u16 *qa = q + (row0 + (lane & 7) + (m & 1) * 8) * (HD + 8) + (m >> 1) * 8;
    const u16 *ka = k + (token0 + (lane & 7) + (m >> 1) * 8) * (HD + 8) + (m & 1) * 8;
#pragma unroll
    for (int b = 0; b < NT; b++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[b][e] = 0;
#pragma unroll
    for (int d = 0; d < HD; d += 16) {
        u32 qf[4], kf[4];
        load_matrices(qf, qa + d);
#pragma unroll
        for (int b = 0; b < NT; b += 2) {
            load_matrices(kf, ka + b * 8 * (HD + 8) + d);
            mma_f16(s[b], qf, kf[0], kf[1]);
            mma_f16(s[b + 1], qf, kf[2], kf[3]);
        }
    }
}

/* Masks, caps, and turns scores into weights; rescales what was summed so far. position: of column 0. */
template <int NT, int ND>
HK_FN void soften(const hk_attend_args &a, row_state &st, int position, float (&s)[NT][4], float (&o)[ND][4]) {
    int t = threadIdx.x & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float peak = st.max[h], sum = 0;
#pragma unroll
        for (int b = 0; b < NT; b++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int p = position + 8 * b + 2 * t + e;
                float v = s[b][2 * h + e];
                if (a.softcap > 0)
                    v = a.softcap * tanh_of(v / a.softcap);
                v = p >= st.low[h] && p < st.high[h] ? v * LOG2E : -HK_INFINITY;
                s[b][2 * h + e] = v;
                peak = fmaxf(peak, v);
            }
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
        float base = peak == -HK_INFINITY ? 0 : peak, shrink = exp2f(st.max[h] - base);
#pragma unroll
        for (int b = 0; b < NT; b++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[b][2 * h + e] = exp2f(s[b][2 * h + e] - base);
                sum += s[b][2 * h + e];
            }
        st.max[h] = peak;
        st.sum[h] = st.sum[h] * shrink + sum;
#pragma unroll
        for (int d = 0; d < ND; d++) {
            o[d][2 * h] *= shrink;
            o[d][2 * h + 1] *= shrink;
        }
    }
}

template <int HD, int NT> HK_FN void weigh(const u16 *v, int token0, const float (&s)[NT][4], float (&o)[HD / 8][4]) {
    int lane = threadIdx.x & 31, m = lane >> 3;
    const u16 *va = v + (token0 + (lane & 7) + (m & 1) * 8) * (HD + 8) + (m >> 1) * 8;
#pragma unroll
    for (int b = 0; b < NT; b += 2) {
        u32 p[4] = {pack_half2(s[b][0], s[b][1]), pack_half2(s[b][2], s[b][3]), pack_half2(s[b + 1][0], s[b + 1][1]),
                    pack_half2(s[b + 1][2], s[b + 1][3])};
#pragma unroll
        for (int d = 0; d < HD; d += 16) {
            u32 vf[4];
            load_matrices_transposed(vf, va + b * 8 * (HD + 8) + d);
            mma_f16(o[d / 8], p, vf[0], vf[1]);
            mma_f16(o[d / 8 + 1], p, vf[2], vf[3]);
        }
    }
}

/* Walks over steps [begin, end) of a sequence's cache. The next keys are fetched while values are weighed, and so on.
 */
template <int HD, int TYPE, int NT>
HK_FN void walk(const hk_attend_args &a, const int *pages, int head, int begin, int end, int low, int high, u16 *q,
                u16 *k, u16 *v, row_state &st, float (&o)[HD / 8][4]) {
    constexpr bool DECODE = NT == 2;
    int warp = threadIdx.x >> 5, row0 = DECODE ? 0 : 16 * warp, token0 = DECODE ? 16 * warp : 0;
    if (begin >= end)
        return;
    __syncthreads();
    fetch<HD, TYPE>(k, a, pages, head, false, begin * STEP, low, high);
    fetch<HD, TYPE>(v, a, pages, head, true, begin * STEP, low, high);
    for (int i = begin; i < end; i++) {
        float s[NT][4];
        copies_wait<1>();
        __syncthreads();
        score<HD, NT>(q, k, row0, token0, s);
        __syncthreads();
        if (i + 1 < end)
            fetch<HD, TYPE>(k, a, pages, head, false, (i + 1) * STEP, low, high);
        else
            copies_commit();
        soften<NT, HD / 8>(a, st, i * STEP + token0, s, o);
        copies_wait<1>();
        __syncthreads();
        weigh<HD, NT>(v, token0, s, o);
        __syncthreads();
        if (i + 1 < end)
            fetch<HD, TYPE>(v, a, pages, head, true, (i + 1) * STEP, low, high);
        else
            copies_commit();
    }
}

/* Rows of queries as halves, scaled; zero beyond the tile and beyond dim, where keys and values are zeroed as well. A
 * warp takes a row at a time. */
template <int HD, int ROWS>
HK_FN void load_queries(const hk_attend_args &a, u16 *q, u16 *k, u16 *v, int first_row, int n_rows, int head0,
                        int group) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll 4
    for (int r = warp; r < ROWS; r += WARPS) {
        int row = first_row + r, token = row / group;
        const float *x = a.q + token * a.q_stride + (s64)(head0 + row - token * group) * a.cache.dim_k;
#pragma unroll
        for (int d = lane; d < HD; d += 32)
            q[r * (HD + 8) + d] =
                row < n_rows && d < a.cache.dim_k ? float_to_half(load_fresh(x + d) * a.scale) : (u16)0;
    }
    if (a.cache.dim_k == HD && a.cache.dim_v == HD)
        return;
    for (int i = threadIdx.x; i < STEP * HD; i += WARPS * 32) {
        int r = i / HD, d = i % HD;
        if (d >= a.cache.dim_k)
            k[r * (HD + 8) + d] = 0;
        if (d >= a.cache.dim_v)
            v[r * (HD + 8) + d] = 0;
    }
}

/* Sums lie divided over the quad that holds a row until here. */
HK_FN void finish_sums(row_state &st) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        st.sum[h] += __shfl_xor_sync(~0u, st.sum[h], 1);
        st.sum[h] += __shfl_xor_sync(~0u, st.sum[h], 2);
    }
}

/* grid (row tiles of 64, kv heads). */
template <int HD, int TYPE> HK_FN void prefill(const hk_attend_args &a) {
    extern __shared__ __align__(16) u16 q[];
    __shared__ int sequence[64], position[64];
    u16 *k = q + 64 * (HD + 8), *v = k + STEP * (HD + 8);
    allow_next();
    wait_for_previous();
    int n = a.step.counts[0], group = a.n_head / a.cache.n_kv, head = blockIdx.y, n_rows = n * group;
    int first = blockIdx.x * 64, warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    if (first >= n_rows)
        return;
    int token0 = first / group, token1 = min(n, (first + 63) / group + 1);
    load_queries<HD, 64>(a, q, k, v, first, n_rows, head * group, group);
    if (threadIdx.x < token1 - token0) {
        sequence[threadIdx.x] = a.step.sequences[token0 + threadIdx.x];
        position[threadIdx.x] = a.step.positions[token0 + threadIdx.x];
    }
    __syncthreads();
    row_state st = {{-HK_INFINITY, -HK_INFINITY}, {0, 0}, {0, 0}, {0, 0}};
    float o[HD / 8][4] = {};
    for (int begin = 0, end; begin < token1 - token0; begin = end) {
        int low = 0x7FFFFFFF, high = 0;
        for (end = begin; end < token1 - token0 && sequence[end] == sequence[begin]; end++) {
            low = min(low, a.window > 0 ? max(0, position[end] - a.window + 1) : 0);
            high = max(high, position[end] + 1);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = first + 16 * warp + g + 8 * h, token = row / group - token0;
            bool mine = row < n_rows && token >= begin && token < end;
            st.high[h] = mine ? position[token] + 1 : 0;
            st.low[h] = mine && a.window > 0 ? st.high[h] - a.window : 0;
        }
        const int *pages = a.step.pages + sequence[begin] * a.step.page_stride;
        walk<HD, TYPE, 8>(a, pages, head, low / STEP, (high + STEP - 1) / STEP, low, high, q, k, v, st, o);
    }
    finish_sums(st);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = first + 16 * warp + g + 8 * h;
        if (row >= n_rows)
            continue;
        float *out = a.out + (row / group) * a.out_stride + (s64)(head * group + row % group) * a.cache.dim_v;
#pragma unroll
        for (int d = 0; d < HD / 8; d++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (8 * d + 2 * t + e < a.cache.dim_v)
                    out[8 * d + 2 * t + e] = o[d][2 * h + e] / st.sum[h];
    }
}

#define HK_PREFILL(name, type, hd)                                                                                      \
    HK_KERNEL __launch_bounds__(128) hk_prefill##hd##_##name(const __grid_constant__ hk_attend_args a) {               \
        prefill<hd, type>(a);                                                                                          \
    }
#define HK_PREFILL_SIZES(name, type) HK_PREFILL(name, type, 64) HK_PREFILL(name, type, 128) HK_PREFILL(name, type, 256)
HK_PREFILL_SIZES(f16, HK_CACHE_F16)
HK_PREFILL_SIZES(q8_0, HK_CACHE_Q8_0)
HK_PREFILL_SIZES(q4_0, HK_CACHE_Q4_0)
