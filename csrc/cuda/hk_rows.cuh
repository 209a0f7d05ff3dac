/* Row arithmetic that several kernels share: block sums, activations, and the quantised form of rows.
 *
 * Rows of K values are quantised by units of 32: scale = max|x| / 127, code = round(x * (127 / max|x|)), to even; a
 * unit with a NaN or an infinity gets the scale NaN and codes 0, so that the fault stays visible. Of 8 rows (tokens),
 * codes are [K / 32][8][32] and meta [K / 32][8] of 8 bytes: the scale (f32) and the two sums (s16) of the unit's
 * halves: what a matrix instruction takes at once lies together. More rows: 8 by 8.
 */
#ifndef HK_ROWS_CUH
#define HK_ROWS_CUH

#include "hk_args.h"
#include "hk_device.cuh"

#define HK_MAX_WARPS 32

/* Sum (or maximum) over the block; every thread gets it. `shared` holds HK_MAX_WARPS floats and is free afterwards. */
template <bool MAX> HK_FN float block_reduce(float x, float *shared, int thread, int n_threads) {
    x = MAX ? warp_max(x) : warp_sum(x);
    if ((thread & 31) == 0)
        shared[thread >> 5] = x;
    __syncthreads();
    int lane = thread & 31;
    x = lane < n_threads >> 5 ? shared[lane] : MAX ? -HK_MAX_FLOAT : 0;
    x = MAX ? warp_max(x) : warp_sum(x);
    __syncthreads();
    return x;
}

HK_FN float silu(float x) { return x / (1.0f + __expf(-x)); }
/* tanh by exp keeps 1e-6; the hardware's tanh would keep 5e-4. */
HK_FN float tanh_of(float x) {
    float e = __expf(-2.0f * fabsf(x));
    return copysignf((1.0f - e) / (1.0f + e), x);
}
HK_FN float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanh_of(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

/* --- operations by element (hk_rows_args) --- */

HK_FN float combine(int mode, float x, float y, float number) {
    switch (mode) {
    case HK_ROW_GLU_SILU:
        return silu(x) * y;
    case HK_ROW_GLU_GELU_TANH:
        return gelu_tanh(x) * y;
    case HK_ROW_ADD:
        return x + y;
    case HK_ROW_SCALE:
        return x * number;
    case HK_ROW_SOFTCAP:
        return number * tanh_of(x / number);
    default:
        return x;
    }
}
HK_FN bool has_second(int mode) {
    return mode == HK_ROW_GLU_SILU || mode == HK_ROW_GLU_GELU_TANH || mode == HK_ROW_ADD;
}
HK_FN s64 source_row(const hk_rows_args &a, int t) { return a.mode == HK_ROW_SELECT ? a.step.outputs[t] : t; }

/* Rounds four values by adding 1.5 * 2^23, which leaves the codes in the low bytes; times 0 where the unit is bad. */
HK_FN u32 four_codes(const float *v, float inverse, bool bad) {
    u32 c[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        c[j] = bad ? 0 : __float_as_uint(__fadd_rn(__fmul_rn(v[j], inverse), 12582912.0f));
    return permute(permute(c[0], c[1], 0x0040u), permute(c[2], c[3], 0x0040u), 0x5410u);
}

/* Quantises four values v of a unit that 8 neighbouring lanes hold together, all lanes of the warp taking part. i4:
 * index of the four in row t, divided by 4. */
HK_FN void quantise_quad(const float (&v)[4], s64 i4, s64 K, int t, s8 *codes, u8 *meta, bool valid) {
    float peak = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    bool bad = !(fabsf(v[0]) + fabsf(v[1]) + fabsf(v[2]) + fabsf(v[3]) <= HK_MAX_FLOAT);
#pragma unroll
    for (int o = 1; o < 8; o <<= 1) {
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, o));
        bad |= __shfl_xor_sync(~0u, (int)bad, o) != 0;
    }
    u32 word = four_codes(v, peak > 0 && !bad ? 127.0f / peak : 0, bad);
    s32 sum = dot4(word, 0x01010101u, 0);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    s32 other = __shfl_xor_sync(~0u, sum, 4);
    if (!valid)
        return;
    s64 place = ((t >> 3) * (K / 32) + (i4 >> 3)) * 8 + (t & 7);
    *(u32 *)(codes + 32 * place + 4 * (i4 & 7)) = word;
    if ((i4 & 7) == 0)
        *(u32x2 *)(meta + 8 * place) = {
            {bad ? 0x7FC00000u : __float_as_uint(peak / 127.0f), ((u32)sum & 0xFFFFu) | (u32)other << 16}};
}

/* The same for eight values v of a unit that 4 neighbouring lanes hold together. Every lane gets the unit's scale and
 * the sums of its halves. */
HK_FN u32x2 quantise_eight(const float (&v)[8], float &scale, s32 (&sums)[2]) {
    float peak = 0, total = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        peak = fmaxf(peak, fabsf(v[j]));
        total += fabsf(v[j]);
    }
    if (!(total <= HK_MAX_FLOAT))
        peak = HK_INFINITY;
    peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
    bool bad = peak == HK_INFINITY;
    float inverse = peak > 0 && !bad ? 127.0f / peak : 0;
    u32x2 w = {{four_codes(v, inverse, bad), four_codes(v + 4, inverse, bad)}};
    s32 sum = dot4(w.v[0], 0x01010101u, dot4(w.v[1], 0x01010101u, 0));
    sum += __shfl_xor_sync(~0u, sum, 1);
    s32 other = __shfl_xor_sync(~0u, sum, 2);
    bool second = threadIdx.x & 2;
    sums[0] = second ? other : sum;
    sums[1] = second ? sum : other;
    scale = bad ? __uint_as_float(0x7FC00000u) : peak * (1.0f / 127.0f);
    return w;
}

/* Stores columns 4 i .. 4 i + 3 of token t as halves; stride: tokens of a chunk. Inside a unit of 32 columns, place
 * 16 s + 8 h + 2 q + e holds column 8 q + 4 s + 2 h + e: what lane q of a quad needs for its weights (hk_unit.cuh). The
 * 16-byte pieces of a token's 128 bytes lie in the order p ^ (t % 8): the 128-byte swizzle of wgmma, with which
 * ldmatrix too touches all banks once. */
HK_FN void store_half_quad(u16 *half, s64 stride, s64 i, int t, u32 first, u32 second) {
    int q = (int)(i >> 1) & 3, piece = (int)(4 * (i >> 3 & 1) + 2 * (i & 1));
    u8 *row = (u8 *)half + ((i >> 4) * stride + t) * 128 + 4 * q;
    *(u32 *)(row + ((piece ^ (t & 7)) << 4)) = first;
    *(u32 *)(row + (((piece + 1) ^ (t & 7)) << 4)) = second;
}

#endif
