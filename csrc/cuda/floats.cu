/* Products with float weights where tensor cores would lose bits or be idle: any number of columns of f32, and few
 * columns of f16 and bf16. The input is f32. */
#include "hk_rows.cuh"
#include "hk_unit.cuh"

HK_FN void store_sum(const hk_part &p, int t, s64 row, float y) {
    if (p.bias)
        y += p.bias[row];
    if (p.add)
        y += load_fresh(p.add + t * p.add_stride + row);
    p.out[t * p.out_stride + row] = y;
}

/* Sixteen bytes of a row as floats. */
HK_FN void floats_of(const unit_f32 *, const u32x4 &w, float (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __uint_as_float(w.v[i]);
}
HK_FN void floats_of(const unit_f16 *, const u32x4 &w, float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = half_to_float((u16)(w.v[i >> 1] >> 16 * (i & 1)));
}
HK_FN void floats_of(const unit_bf16 *, const u32x4 &w, float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __uint_as_float(i & 1 ? w.v[i >> 1] & 0xFFFF0000u : w.v[i >> 1] << 16);
}

/* At most N columns. A warp takes FLOAT_ROWS rows at a time, so that an input that was loaded serves several, 32 x 16
 * bytes of each row after the other, with two such pieces on their way, from before the wait for the previous kernel
 * on. grid: any, 8 warps a block. */
#define FLOAT_ROWS 4
struct float_place {
    s64 group;  /* of rows */
    int column; /* of the warp's piece */
};
template <class F, int V, int N> struct float_warp {
    const hk_matmul_args &a;
    s64 stride, groups;
    int lane, n;
    float acc[N][FLOAT_ROWS];

    __device__ __forceinline__ float_place behind(const float_place &p) const {
        bool ends = p.column + 32 * V >= (int)a.cols;
        return {ends ? p.group + stride : p.group, ends ? 0 : p.column + 32 * V};
    }
    __device__ __forceinline__ void load(const float_place &p, u32x4 (&w)[FLOAT_ROWS]) const {
        int column = p.column + lane * V;
        s64 last = a.part[0].rows - 1;
#pragma unroll
        for (int r = 0; r < FLOAT_ROWS; r++) {
            w[r] = {};
            if (p.group < groups && column < (int)a.cols)
                w[r] =
                    load_weights16(a.part[0].w.at + (min(p.group * FLOAT_ROWS + r, last) * a.cols + column) * (16 / V));
        }
    }
    /* Multiplies the piece at p, asks for the one at next. */
    __device__ __forceinline__ void take(const float_place &p, const float_place &next, u32x4 (&w)[FLOAT_ROWS]) {
        int column = p.column + lane * V;
        float v[FLOAT_ROWS][V];
#pragma unroll
        for (int r = 0; r < FLOAT_ROWS; r++)
            floats_of((const F *)0, w[r], v[r]);
        load(next, w);
        if (column < (int)a.cols)
#pragma unroll
            for (int j = 0; j < N; j++) {
                if (j >= n)
                    break;
#pragma unroll
                for (int q = 0; q < V / 4; q++) {
                    f32x4 x = *(const f32x4 *)(a.x32 + j * a.x_stride + column + 4 * q);
#pragma unroll
                    for (int r = 0; r < FLOAT_ROWS; r++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            acc[j][r] += v[r][4 * q + i] * x.v[i];
                }
            }
        if (p.column + 32 * V < (int)a.cols)
            return;
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (j >= n)
                break;
#pragma unroll
            for (int r = 0; r < FLOAT_ROWS; r++) {
                float y = warp_sum(acc[j][r]);
                if (lane == r && p.group * FLOAT_ROWS + r < a.part[0].rows)
                    store_sum(a.part[0], j, p.group * FLOAT_ROWS + r, y);
                acc[j][r] = 0;
            }
        }
    }
};
template <class F, int V, int N> HK_FN void float_matvec(const hk_matmul_args &a) {
    allow_next();
    float_warp<F, V, N> w = {a};
    w.lane = threadIdx.x & 31;
    w.stride = (s64)gridDim.x * 8;
    w.groups = (a.part[0].rows + FLOAT_ROWS - 1) / FLOAT_ROWS;
    u32x4 even[FLOAT_ROWS], odd[FLOAT_ROWS];
    float_place p = {(s64)blockIdx.x * 8 + (threadIdx.x >> 5), 0}, q = w.behind(p);
    w.load(p, even);
    w.load(q, odd);
    w.n = min(N, a.step.counts[a.rows_are_outputs]); /* written before the first kernel of a step */
    wait_for_previous();
    forget_l1();
    while (p.group < w.groups) {
        float_place r = w.behind(q), s = w.behind(r);
        w.take(p, r, even);
        if (q.group >= w.groups)
            break;
        w.take(q, s, odd);
        p = r, q = s;
    }
}
#define HK_FLOATS(lower, v)                                                                                            \
    HK_KERNEL __launch_bounds__(256, 2) hk_matvec_##lower(const __grid_constant__ hk_matmul_args a) {                  \
        float_matvec<unit_##lower, v, 1>(a);                                                                           \
    }                                                                                                                  \
    HK_KERNEL __launch_bounds__(256, 1) hk_matvec8_##lower(const __grid_constant__ hk_matmul_args a) {                 \
        float_matvec<unit_##lower, v, 8>(a);                                                                           \
    }
HK_FLOATS(f32, 4)
HK_FLOATS(f16, 8)
HK_FLOATS(bf16, 8)

/* 64 rows x 64 tokens a block of 256 threads, 4 x 4 a thread, 16 of K at a time. grid (row tiles, token tiles). */
HK_KERNEL hk_matmul_f32(const __grid_constant__ hk_matmul_args a) {
    __shared__ float w[16][65], x[16][65];
    allow_next();
    wait_for_previous();
    int n = a.step.counts[a.rows_are_outputs], row0 = blockIdx.x * 64, token0 = blockIdx.y * 64;
    if (token0 >= n)
        return;
    int tr = threadIdx.x & 15, tt = threadIdx.x >> 4;
    const float *weights = (const float *)a.part[0].w.at;
    float acc[4][4] = {};
    for (s64 k = 0; k < a.cols; k += 16) {
        for (int i = threadIdx.x; i < 1024; i += 256) {
            int r = i >> 4, c = i & 15;
            bool in = k + c < a.cols;
            w[c][r] = in && row0 + r < a.part[0].rows ? weights[(row0 + r) * a.cols + k + c] : 0;
            x[c][r] = in && token0 + r < n ? load_fresh(a.x32 + (token0 + r) * a.x_stride + k + c) : 0;
        }
        __syncthreads();
#pragma unroll
        for (int c = 0; c < 16; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    acc[i][j] += x[c][tt + 16 * i] * w[c][tr + 16 * j];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int t = token0 + tt + 16 * i, r = row0 + tr + 16 * j;
            if (t < n && r < a.part[0].rows)
                store_sum(a.part[0], t, r, acc[i][j]);
        }
}
