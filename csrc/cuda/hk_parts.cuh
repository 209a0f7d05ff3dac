/* What is left of decode attention (attend_decode.cu) when every warp has walked its chunks: warps merge in shared
 * memory, blocks through global memory, where the last one to arrive combines.
 */
#ifndef HK_PARTS_CUH
#define HK_PARTS_CUH

#include "hk_chunk.cuh"

/* A warp's state, for others to read. */
template <int HD> struct merged {
    float sums[8][HD], peak[8], weight[8];
};

template <int HD, int TYPE>
HK_FN void leave_state(merged<HD> &to, softmax &st, const float (&o)[HD / 16][4], int rows, int lane) {
    int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int r = 2 * t + e;
#pragma unroll
        for (int k = 4; k < 32; k <<= 1)
            st.sum[e] += __shfl_xor_sync(~0u, st.sum[e], k);
        if (r >= rows)
            continue;
        if (g == 0)
            to.peak[r] = st.max[e], to.weight[r] = st.sum[e];
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            to.sums[r][value_dimension<HD, TYPE>(i, 0, g)] = o[i][e];
            to.sums[r][value_dimension<HD, TYPE>(i, 1, g)] = o[i][e + 2];
        }
    }
}

/* Value d of row r out of n parts. part(i) gives {sum of weights, peak, value}. */
struct term {
    float weight, peak, value;
};
template <int UNROLL, class PART> HK_FN term combined(int n, PART part) {
    term r = {0, -HK_INFINITY, 0};
#pragma unroll UNROLL
    for (int i = 0; i < n; i++) {
        term p = part(i);
        float peak = fmaxf(fmaxf(r.peak, p.peak), -HK_MAX_FLOAT);
        float mine = exp2_of(r.peak - peak), its = exp2_of(p.peak - peak);
        r = {r.weight * mine + p.weight * its, peak, r.value * mine + p.value * its};
    }
    return r;
}

/* Parts of a token's heads in global memory: values [token][head][splits][dim_v], behind all of them peak and sum. */
HK_FN float *part_values(const hk_attend_args &a, int token, int head, int split) {
    return a.partial + (((s64)token * a.n_head + head) * a.splits + split) * a.cache.dim_v;
}
HK_FN float *part_state(const hk_attend_args &a, int token, int head, int split) {
    return a.partial + (s64)gridDim.z * a.n_head * a.splits * a.cache.dim_v +
           2 * (((s64)token * a.n_head + head) * a.splits + split);
}
/* Whether this block is the last of n to arrive, everything the others wrote before being visible then. */
HK_FN bool comes_last(int *arrived, int n) {
    __threadfence();
    bool last = __syncthreads_or(threadIdx.x == 0 && atomicAdd(arrived, 1) == n - 1);
    if (last) {
        __threadfence();
        if (threadIdx.x == 0)
            *arrived = 0;
    }
    return last;
}

/* Combines the parts of several heads: four values of a row at a time, the threads that are left over sharing out the
 * splits. shared: free memory. */
HK_FN void combine_rows(const hk_attend_args &a, int token, int head, int rows, int splits, float *out, float *shared) {
    int dim = a.cache.dim_v, quads = dim / 4, columns = rows * quads, thread = threadIdx.x, warp = thread >> 5;
    int groups = max(1, WARPS * 32 / columns), group = groups > 1 ? thread / columns : 0;
    float *factors = shared, *totals = factors + rows * splits;
    f32x4 *sums = (f32x4 *)(shared + (rows * splits + rows + 3) / 4 * 4);
    for (int r = warp; r < rows; r += WARPS) {
        const float *state = part_state(a, token, head + r, 0);
        float peak = -HK_MAX_FLOAT, weight = 0;
        for (int s = thread & 31; s < splits; s += 32)
            peak = fmaxf(peak, load_fresh(state + 2 * s));
        peak = warp_max(peak);
        for (int s = thread & 31; s < splits; s += 32) {
            f32x2 x = load_fresh2(state + 2 * s);
            float f = exp2_of(x.v[0] - peak);
            weight += f * x.v[1];
            factors[r * splits + s] = f;
        }
        weight = warp_sum(weight);
        if ((thread & 31) == 0)
            totals[r] = 1.0f / weight;
    }
    __syncthreads();
    for (int c = thread - group * columns; c < columns && group < groups; c += WARPS * 32) {
        int r = c / quads, d = 4 * (c - r * quads);
        const float *from = part_values(a, token, head + r, 0) + d;
        f32x4 y = {{0, 0, 0, 0}};
#pragma unroll 12
        for (int s = group; s < splits; s += groups) {
            f32x4 x = load_fresh4(from + s * dim);
            float f = factors[r * splits + s];
#pragma unroll
            for (int e = 0; e < 4; e++)
                y.v[e] += f * x.v[e];
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            y.v[e] *= totals[r];
        if (groups > 1)
            sums[group * columns + c] = y;
        else
            *(f32x4 *)(out + 4 * c) = y;
    }
    if (groups == 1)
        return;
    __syncthreads();
    if (thread >= columns)
        return;
    f32x4 y = sums[thread];
    for (int i = 1; i < groups; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            y.v[e] += sums[i * columns + thread].v[e];
    *(f32x4 *)(out + 4 * thread) = y;
}

/* What a block has of a token's heads, and where its warps have left their states: `warps` of them, `stride` bytes from
 * one to the next. arrived: of the blocks with the same heads. scratch: free memory. */
struct block_part {
    const u8 *states;
    int stride, warps, token, head, rows, split, splits, *arrived;
    float *scratch;
};
/* Puts out the result of the heads, or a part of it. */
template <int HD> HK_FN void finish(const hk_attend_args &a, const block_part &b) {
    int dim = a.cache.dim_v, thread = threadIdx.x;
    float *out = a.out + b.token * a.out_stride + (s64)b.head * dim;
    __syncthreads();
    for (int i = thread; i < b.rows * dim; i += WARPS * 32) {
        int r = b.rows == 1 ? 0 : i / dim, d = i - r * dim;
        term x = combined<WARPS>(b.warps, [&](int w) -> term {
            const merged<HD> &m = *(const merged<HD> *)(b.states + w * b.stride);
            return {m.weight[r], m.peak[r], m.sums[r][d]};
        });
        if (b.splits == 1) {
            out[i] = x.value / x.weight;
            continue;
        }
        part_values(a, b.token, b.head + r, b.split)[d] = x.value;
        if (d == 0)
            *(f32x2 *)part_state(a, b.token, b.head + r, b.split) = {{x.peak, x.weight}};
    }
    if (b.splits == 1 || !comes_last(b.arrived, b.splits))
        return;
    if (b.rows > 1) {
        combine_rows(a, b.token, b.head, b.rows, b.splits, out, b.scratch);
        return;
    }
    for (int d = thread; d < dim; d += WARPS * 32) { /* one way to memory and back instead of two */
        term x = combined<8>(b.splits, [&](int s) -> term {
            f32x2 state = load_fresh2(part_state(a, b.token, b.head, s));
            return {state.v[1], state.v[0], load_fresh(part_values(a, b.token, b.head, s) + d)};
        });
        out[d] = x.value / x.weight;
    }
}

#endif
