/* Products with many columns on the tensor cores: weights become halves in registers, activations come as halves.
 *
 * A block computes 128 rows x 128 tokens in chunks of 128 along K or, for few tokens, 32 rows x 32 tokens with K shared
 * out between its 4 warps: such products are bound by memory and by latency, and need many blocks. A warp owns 32 rows
 * (two m16 tiles) and WN * 8 tokens. The order of K inside a chunk is free as long as both operands agree, so it is
 * chosen for the weights: lane t of a quad (t = lane % 4) holds whole unit t of the chunk, with its own scale, and
 * gives weights 4s .. 4s + 3 of it to step s of 8. Weights therefore go from memory to fragments without shared memory,
 * one chunk ahead. A lane's activations for two steps are the 16 bytes at 32 t + 8 j of a token's chunk.
 *
 * Activations are copied asynchronously, STAGES deep: a token's chunk is 256 bytes in 16 pieces, piece j of unit t
 * lying at 4 t + (j ^ (t / 2 + 2 (token % 2))): the 8 lanes of a quarter warp then touch all banks once.
 *
 * A weight is (code - zero) * s + m in half precision: 1024 + code is exact in a half, so is the difference; s and m
 * are rounded once and carried 64-fold, against subnormals. Sums are f32. Dequantising to int8 instead would need a
 * flush of the integer sums every 16 or 32 k, which costs more than the halved matrix rate on the chips that matter
 * first.
 */
#include "hk_rows.cuh"
#include "hk_unit.cuh"

#define STAGES  3
#define CHUNK   128
#define CARRIED 64.0f

/* One row's share of a chunk: a unit, and its scales as pairs of halves. */
template <class F> struct row_unit {
    F raw;
    u32 s0, m0, s1, m1;
};

HK_FN u32 twice(float x) { return pack_half2(x, x); }

/* Loads a row's unit of a chunk. Beyond the last unit the scales are 0. */
template <class F> HK_FN void prepare(row_unit<F> &w, u32 unit, bool valid) {
    unit_scale c = F::scale(w.raw, unit);
    float k = valid ? CARRIED : 0;
    w.s0 = twice(c.s0 * k);
    w.m0 = twice(c.m0 * k);
    w.s1 = F::TWO_SCALES ? twice(c.s1 * k) : w.s0;
    w.m1 = F::TWO_SCALES ? twice(c.m1 * k) : w.m0;
}
HK_FN void prepare(row_unit<unit_f16> &w, u32, bool valid) { w.s0 = valid ? ~0u : 0; }
HK_FN void prepare(row_unit<unit_bf16> &w, u32, bool valid) { w.s0 = valid ? ~0u : 0; }

/* The four halves of group g. */
template <class F> HK_FN void group_halves(const row_unit<F> &w, int g, u32 &lo, u32 &hi) {
    u32 codes = F::group(w.raw, g), zero = F::SIGNED ? 0x64806480u : 0x64006400u + 0x10001u * F::ZERO;
    if (F::SIGNED)
        codes ^= 0x80808080u;
    u32 s = g < 4 ? w.s0 : w.s1, m = g < 4 ? w.m0 : w.m1;
    lo = half2_sub(permute(codes, 0x64646464u, 0x4140u), zero);
    hi = half2_sub(permute(codes, 0x64646464u, 0x4342u), zero);
    lo = F::HAS_MIN ? half2_fma(lo, s, m) : half2_mul(lo, s);
    hi = F::HAS_MIN ? half2_fma(hi, s, m) : half2_mul(hi, s);
}
HK_FN void group_halves(const row_unit<unit_f16> &w, int g, u32 &lo, u32 &hi) {
    lo = unit_f16::pair(w.raw, 2 * g) & w.s0;
    hi = unit_f16::pair(w.raw, 2 * g + 1) & w.s0;
}
HK_FN u32 bf16_pair_to_half(u32 p) { return pack_half2(__uint_as_float(p << 16), __uint_as_float(p & 0xFFFF0000u)); }
HK_FN void group_halves(const row_unit<unit_bf16> &w, int g, u32 &lo, u32 &hi) {
    lo = bf16_pair_to_half(unit_f16::pair(w.raw, 2 * g) & w.s0);
    hi = bf16_pair_to_half(unit_f16::pair(w.raw, 2 * g + 1) & w.s0);
}
template <class F> struct carried {
    static constexpr float value = CARRIED;
};
template <> struct carried<unit_f16> {
    static constexpr float value = 1;
};
template <> struct carried<unit_bf16> {
    static constexpr float value = 1;
};

template <class F> HK_FN void load_rows(const hk_matmul_args &a, int row0, u32 unit, u32 units, F (&raw)[4]) {
    u32 u = unit < units ? unit : units - 1;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = min(row0 + 8 * i, (int)a.part.rows - 1);
        F::load(raw[i], a.part.w, (u32)row * units + u);
    }
}

/* Starts the copy of BN tokens' next KW chunks into a stage, [KW][BN][256 bytes]. */
template <int BN, int KW> HK_FN void copy_chunks(const hk_matmul_args &a, u8 *stage, int token0, int n, int step) {
    for (int i = threadIdx.x; i < BN * 16 * KW; i += blockDim.x) {
        int piece = i & 15, w = i >> 4 & (KW - 1), token = i / (16 * KW), t = piece >> 2, j = piece & 3;
        int k = (step * KW + w) * CHUNK + piece * 8, to = 4 * t + (j ^ (t >> 1 | (token & 1) << 1));
        bool in = token0 + token < n && k < (int)a.cols;
        const u16 *from = in ? a.x + (s64)(token0 + token) * a.x_stride + k : a.x;
        copy16_async(stage + (w * BN + token) * 256 + to * 16, from, in);
    }
    copies_commit();
}

template <class F, int WN> HK_FN void multiply_chunk(const row_unit<F> (&w)[4], const u8 *x, float (&acc)[2][WN][4]) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 f[2][2][4]; /* step, tile: rows g and g + 8 of the tile */
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                group_halves(w[i], 2 * j + s, f[s][i >> 1][i & 1], f[s][i >> 1][2 + (i & 1)]);
        const u8 *p = x + g * 256 + (4 * t + (j ^ (t >> 1 | (g & 1) << 1))) * 16;
        u32x4 v[WN];
#pragma unroll
        for (int b = 0; b < WN; b++)
            v[b] = *(const u32x4 *)(p + b * 8 * 256);
#pragma unroll
        for (int s = 0; s < 2; s++) /* outermost: no sum is needed again before 2 WN others */
#pragma unroll
            for (int b = 0; b < WN; b++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    mma_f16(acc[i][b], f[s][i], v[b].v[2 * s], v[b].v[2 * s + 1]);
    }
}

template <class F, int WN>
HK_FN void store_tile(const hk_matmul_args &a, int row0, int token0, int n, float (&acc)[2][WN][4]) {
    int t = threadIdx.x & 3;
#pragma unroll
    for (int b = 0; b < WN; b++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int token = token0 + 8 * b + 2 * t + e;
            if (token >= n)
                continue;
            float scale = load_fresh(a.x_scale + token) * (1.0f / carried<F>::value);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = row0 + 8 * i;
                if (row >= (int)a.part.rows)
                    continue;
                float y = acc[i >> 1][b][2 * (i & 1) + e] * scale;
                if (a.part.bias)
                    y += a.part.bias[row];
                if (a.part.add)
                    y += load_fresh(a.part.add + token * a.part.add_stride + row);
                a.part.out[token * a.part.out_stride + row] = y;
            }
        }
}

/* Adds the sums of the KW warps that shared a tile's K, in their order, into the first one's. */
template <int WN, int KW> HK_FN void add_warps(float (&acc)[2][WN][4], float *shared) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    copies_wait<0>();
    __syncthreads();
    float *mine = shared + (warp - 1) * 2 * WN * 4 * 32 + lane;
#pragma unroll
    for (int i = 0; i < 2 * WN * 4; i++)
        if (warp)
            mine[32 * i] = acc[i / (4 * WN)][i / 4 % WN][i % 4];
    __syncthreads();
    if (warp)
        return;
#pragma unroll
    for (int w = 1; w < KW; w++)
#pragma unroll
        for (int i = 0; i < 2 * WN * 4; i++)
            acc[i / (4 * WN)][i / 4 % WN][i % 4] += shared[(w - 1) * 2 * WN * 4 * 32 + 32 * i + lane];
}

/* A block's warps: MW along the rows, NW along the tokens, KW along K. grid (row tiles, token tiles). */
template <class F, int WN, int MW, int NW, int KW> HK_FN void matmul(const hk_matmul_args &a) {
    extern __shared__ __align__(128) u8 shared[];
    constexpr int BN = 8 * WN * NW, STAGE = BN * 256 * KW;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int wm = warp % MW, wn = warp / MW % NW, wk = warp / (MW * NW);
    int row0 = (blockIdx.x * MW + wm) * 32 + (lane >> 2), token0 = blockIdx.y * BN;
    u32 units = (u32)a.cols / 32, unit = 4 * wk + (lane & 3);
    int steps = ((int)a.cols + CHUNK * KW - 1) / (CHUNK * KW);
    allow_next();
    F raw[4];
    load_rows(a, row0, unit, units, raw);
    wait_for_previous();
    int n = a.step.counts[a.rows_are_outputs];
    if (token0 >= n)
        return;
    for (int c = 0; c < STAGES - 1; c++)
        if (c < steps)
            copy_chunks<BN, KW>(a, shared + c * STAGE, token0, n, c);
        else
            copies_commit();
    float acc[2][WN][4] = {};
    for (int c = 0; c < steps; c++, unit += 4 * KW) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        row_unit<F> w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i].raw = raw[i];
            prepare(w[i], unit, unit < units);
        }
        if (c + 1 < steps)
            load_rows(a, row0, unit + 4 * KW, units, raw);
        int next = c + STAGES - 1;
        if (next < steps)
            copy_chunks<BN, KW>(a, shared + next % STAGES * STAGE, token0, n, next);
        else
            copies_commit();
        multiply_chunk<F, WN>(w, shared + c % STAGES * STAGE + (wk * BN + wn * WN * 8) * 256, acc);
    }
    if (KW > 1)
        add_warps<WN, KW>(acc, (float *)shared);
    if (wk == 0)
        store_tile<F, WN>(a, row0, token0 + wn * WN * 8, n, acc);
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
