/* Products with float weights where tensor cores would lose bits or be idle: any number of columns of f32, and few
 * columns of f16 and bf16. The input is f32. */
#include "hk_rows.cuh"
#include "hk_unit.cuh"

HK_FN float element(const unit_f32 *, const u8 *w, s64 i) { return ((const float *)w)[i]; }
HK_FN float element(const unit_f16 *, const u8 *w, s64 i) { return half_to_float(((const u16 *)w)[i]); }
HK_FN float element(const unit_bf16 *, const u8 *w, s64 i) { return bf16_to_float(((const u16 *)w)[i]); }

HK_FN void store_sum(const hk_part &p, int t, s64 row, float y) {
    if (p.bias)
        y += p.bias[row];
    if (p.add)
        y += load_fresh(p.add + t * p.add_stride + row);
    p.out[t * p.out_stride + row] = y;
}

/* A warp takes a row, a lane units of 4 values; at most N columns. grid: any, 8 warps a block. */
template <class F, int N> HK_FN void float_matvec(const hk_matmul_args &a) {
    allow_next();
    wait_for_previous();
    int n = min(N, a.step.counts[a.rows_are_outputs]), lane = threadIdx.x & 31;
    for (s64 row = (s64)blockIdx.x * 8 + (threadIdx.x >> 5); row < a.part.rows; row += (s64)gridDim.x * 8) {
        float acc[N] = {};
        for (s64 i = 4 * lane; i < a.cols; i += 128) {
            float w[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[e] = element((const F *)0, a.part.w.at, row * a.cols + i + e);
#pragma unroll
            for (int j = 0; j < N; j++) {
                if (j >= n)
                    break;
                f32x4 x = load_fresh4(a.x32 + j * a.x_stride + i);
                acc[j] += w[0] * x.v[0] + w[1] * x.v[1] + w[2] * x.v[2] + w[3] * x.v[3];
            }
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (j >= n)
                break;
            float y = warp_sum(acc[j]);
            if (lane == 0)
                store_sum(a.part, j, row, y);
        }
    }
}
HK_KERNEL hk_matvec_f32(const __grid_constant__ hk_matmul_args a) { float_matvec<unit_f32, 1>(a); }
HK_KERNEL hk_matvec8_f32(const __grid_constant__ hk_matmul_args a) { float_matvec<unit_f32, 8>(a); }
HK_KERNEL hk_matvec_f16(const __grid_constant__ hk_matmul_args a) { float_matvec<unit_f16, 1>(a); }
HK_KERNEL hk_matvec8_f16(const __grid_constant__ hk_matmul_args a) { float_matvec<unit_f16, 8>(a); }
HK_KERNEL hk_matvec_bf16(const __grid_constant__ hk_matmul_args a) { float_matvec<unit_bf16, 1>(a); }
HK_KERNEL hk_matvec8_bf16(const __grid_constant__ hk_matmul_args a) { float_matvec<unit_bf16, 8>(a); }

/* 64 rows x 64 tokens a block of 256 threads, 4 x 4 a thread, 16 of K at a time. grid (row tiles, token tiles). */
HK_KERNEL hk_matmul_f32(const __grid_constant__ hk_matmul_args a) {
    __shared__ float w[16][65], x[16][65];
    allow_next();
    wait_for_previous();
    int n = a.step.counts[a.rows_are_outputs], row0 = blockIdx.x * 64, token0 = blockIdx.y * 64;
    if (token0 >= n)
        return;
    int tr = threadIdx.x & 15, tt = threadIdx.x >> 4;
    const float *weights = (const float *)a.part.w.at;
    float acc[4][4] = {};
    for (s64 k = 0; k < a.cols; k += 16) {
        for (int i = threadIdx.x; i < 1024; i += 256) {
            int r = i >> 4, c = i & 15;
            bool in = k + c < a.cols;
            w[c][r] = in && row0 + r < a.part.rows ? weights[(row0 + r) * a.cols + k + c] : 0;
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
            if (t < n && r < a.part.rows)
                store_sum(a.part, t, r, acc[i][j]);
        }
}
