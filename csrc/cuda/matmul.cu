/* Products with many columns on the matrix instructions that every GPU since Turing has. (Hopper: wgmma.cu.)
 *
 * A block computes 128 rows x 128 tokens or, for few tokens, 32 rows x 32 tokens with K shared out between its 4 warps:
 * such products are bound by memory and by latency, and need many blocks. A warp owns 32 rows (two m16 tiles) and WN *
 * 8 tokens. Weights go from memory to fragments without shared memory, a step of 256 columns at a time; the next step
 * is on its way into L2 meanwhile. Tokens are copied asynchronously in chunks of 64 columns, STAGES deep, as they lie.
 *
 * Dequantising to int8 instead would need a flush of the integer sums every 16 or 32 k, which costs more than the
 * halved matrix rate on the chips that matter first.
 */
#include "hk_halves.cuh"

#define STAGES 3

HK_FN void prefetch_l2(const u8 *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/* The rows that a warp multiplies. Rows beyond the end stand for the last ones. */
template <class F> struct warp_rows {
    typedef typename step_type<F>::type W;
    W w[2];
    const u8 *at[2][2];
    s64 cols;

    __device__ __forceinline__ warp_rows(const hk_matmul_args &a, const hk_part &p, int row0, int lane) : cols(a.cols) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if constexpr (W::STAYS)
                    at[i][r] = p.w.at + 2 * cols * min(row0 + 16 * i + 8 * r + (lane >> 2), (int)p.rows - 1);
                else
                    at[i][r] = record_of<F>(p.w, cols, min(row0 / 16 + i, ((int)p.rows + 15) / 16 - 1), 0);
            }
    }
    __device__ __forceinline__ void load(int step, int lane) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if constexpr (W::STAYS) {
                w[i].load(at[i][0] + 2 * HK_STEP * step, at[i][1] + 2 * HK_STEP * step, (int)cols / 32 - 8 * step,
                          lane);
            } else {
                int records = ((int)cols + F::COLUMNS - 1) / F::COLUMNS - step * W::RECORDS;
                w[i].load(at[i][0] + (s64)step * W::BYTES, records, lane);
            }
        }
    }
    /* The lines of a step that exists. */
    __device__ __forceinline__ void prefetch(int step, int lane) const {
        if constexpr (!W::STAYS) {
            int left = ((int)cols + F::COLUMNS - 1) / F::COLUMNS * F::BYTES - step * W::BYTES;
            for (int i = 0; i < 2; i++)
                for (int b = 128 * lane; b < min(left, W::BYTES); b += 4096)
                    prefetch_l2(at[i][0] + (s64)step * W::BYTES + b);
        }
    }
};

/* Starts the copy of chunk c % 4 of KW steps into a stage, [KW][BN][128 bytes]. */
template <int BN, int KW> HK_FN void copy_chunk(const hk_matmul_args &a, u8 *stage, int token0, int steps, int c) {
    for (int i = threadIdx.x; i < KW * BN * 8; i += blockDim.x) {
        int w = i / (BN * 8), token = i / 8 % BN, step = (c >> 2) * KW + w;
        bool in = step < steps && token0 + token < (int)a.x_stride;
        s64 from = (s64)(4 * step + (c & 3)) * a.x_stride + token0 + token;
        copy16_async(stage + 16 * i, (const u8 *)a.x + (in ? 128 * from + 16 * (i & 7) : 0), in);
    }
    copies_commit();
}

template <class F, int WN> HK_FN void multiply_chunk(warp_rows<F> &rows, int j, const u8 *x, float (&acc)[2][4 * WN]) {
    int lane = threadIdx.x & 31;
    u32 f[2][4][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
        rows.w[i].fragments(j, lane, f[i]);
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int b = 0; b < WN; b++) {
            u32 v[4];
            load_matrices(v, x + (8 * b + (lane & 7)) * 128 + (((4 * u + (lane >> 3)) ^ (lane & 7)) << 4));
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    mma_f16(*(float (*)[4])(acc[i] + 4 * b), f[i][2 * u + k], v[2 * k], v[2 * k + 1]);
        }
}

/* Adds the sums of the KW warps that shared a tile's K, in their order, into the first one's. */
template <int N, int KW> HK_FN void add_warps(float (&acc)[2][N], float *shared) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    copies_wait<0>();
    __syncthreads();
    float *mine = shared + (warp - 1) * 2 * N * 32 + lane;
#pragma unroll
    for (int i = 0; i < 2 * N; i++)
        if (warp)
            mine[32 * i] = acc[i / N][i % N];
    __syncthreads();
#pragma unroll
    for (int w = 1; w < KW; w++)
#pragma unroll
        for (int i = 0; i < 2 * N; i++)
            acc[i / N][i % N] += shared[(w - 1) * 2 * N * 32 + 32 * i + lane]; /* of use to the first warp */
}

/* A block's warps: MW along the rows, NW along the tokens, KW along K. grid (row tiles of all parts, token tiles). */
template <class F, int WN, int MW, int NW, int KW> HK_FN void matmul(const hk_matmul_args &a) {
    extern __shared__ __align__(128) u8 shared[];
    constexpr int BN = 8 * WN * NW, STAGE = BN * 128 * KW;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int wm = warp % MW, wn = warp / MW % NW, wk = warp / (MW * NW);
    int tile = blockIdx.x, token0 = blockIdx.y * BN;
    const hk_part &p = a.part[part_of_tile(a, 32 * MW, tile)];
    int row0 = (tile * MW + wm) * 32, steps = ((int)a.cols + HK_STEP - 1) / HK_STEP, turns = (steps + KW - 1) / KW;
    allow_next();
    warp_rows<F> rows(a, p, row0, lane);
    rows.load(min(wk, steps - 1), lane);
    wait_for_previous();
    int n = a.step.counts[a.rows_are_outputs];
    if (token0 >= n)
        return;
    for (int c = 0; c < STAGES - 1; c++)
        copy_chunk<BN, KW>(a, shared + c * STAGE, token0, steps, c);
    float acc[2][4 * WN] = {};
    for (int turn = 0, c = 0; turn < turns; turn++) {
        int step = turn * KW + wk;
        if (turn)
            rows.load(min(step, steps - 1), lane);
        if (step + KW < steps)
            rows.prefetch(step + KW, lane);
#pragma unroll
        for (int j = 0; j < 4; j++, c++) {
            copies_wait<STAGES - 2>();
            __syncthreads();
            int next = c + STAGES - 1;
            if (next < 4 * turns)
                copy_chunk<BN, KW>(a, shared + next % STAGES * STAGE, token0, steps, next);
            else
                copies_commit();
            multiply_chunk<F, WN>(rows, j, shared + c % STAGES * STAGE + (wk * BN + wn * WN * 8) * 128, acc);
        }
    }
    if (KW > 1)
        add_warps<4 * WN, KW>(acc, (float *)shared);
    copies_wait<0>();
    __syncthreads();
    float *scales = (float *)shared;
    for (int i = threadIdx.x; i < BN; i += blockDim.x)
        scales[i] = token0 + i < n ? load_fresh(a.x_scale + token0 + i) * (1.0f / step_type<F>::type::CARRIED) : 0;
    __syncthreads();
    if (wk)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++)
        store_blocks<WN>(p, row0 + 16 * i + (lane >> 2), token0 + wn * WN * 8, n, scales + wn * WN * 8, acc[i]);
}

#define HK_MATMUL(lower)                                                                                               \
    HK_KERNEL __launch_bounds__(256, 1) hk_matmul_##lower(const __grid_constant__ hk_matmul_args a) {                  \
        matmul<unit_##lower, 8, 4, 2, 1>(a);                                                                           \
    }                                                                                                                  \
    HK_KERNEL __launch_bounds__(128, 2) hk_matmul32_##lower(const __grid_constant__ hk_matmul_args a) {                \
        matmul<unit_##lower, 4, 1, 1, 4>(a);                                                                           \
    }
#ifdef HK_ONLY
#define HK_APPLY(name) HK_MATMUL(name)
HK_APPLY(HK_ONLY)
#else
HK_MATMUL(f16)
HK_MATMUL(bf16)
#define HK_MATMUL_F32(lower)
#define HK_MATMUL_Q8_32(lower)                                   HK_MATMUL(lower)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_MATMUL_##act(lower)
#include "../formats/hk_types.def"
#endif
