/* Row arithmetic that several kernels share: block sums, activations, and the quantised form of a row.
 *
 * A quantised row of K values: codes [2][K / 2] and meta [K / 32][8 B]. The first plane holds weights 0..15 of every
 * unit of 32, the second 16..31, so that neighbouring lanes read neighbouring 16 bytes. Meta is the scale (f32) and the
 * two sums (s16) of the unit's halves. scale = max|x| / 127, code = round(x * (127 / max|x|)), to even; a unit with a
 * NaN or an infinity gets the scale NaN and codes 0, so that the fault stays visible.
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

/* Quantises four values v of a unit that 8 neighbouring lanes hold together (lane % 8 = quarter of a half), all lanes
 * of the warp taking part. i4: index of the four in the row / 4. */
HK_FN void quantise_quad(const float (&v)[4], s64 i4, s64 K, s8 *codes, u8 *meta, bool valid) {
    float peak = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    bool bad = !(fabsf(v[0]) + fabsf(v[1]) + fabsf(v[2]) + fabsf(v[3]) <= HK_MAX_FLOAT);
#pragma unroll
    for (int o = 1; o < 8; o <<= 1) {
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, o));
        bad |= __shfl_xor_sync(~0u, (int)bad, o) != 0;
    }
    float inverse = peak > 0 && !bad ? 127.0f / peak : 0;
    u32 word = 0;
    s32 sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        s32 c = bad ? 0 : __float2int_rn(v[j] * inverse);
        sum += c;
        word |= (u32)(c & 255) << 8 * j;
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    s32 other = __shfl_xor_sync(~0u, sum, 4);
    if (!valid)
        return;
    s64 unit = i4 >> 3;
    int at = (int)(i4 & 7);
    *(u32 *)(codes + (at < 4 ? 0 : K / 2) + 16 * unit + 4 * (at & 3)) = word;
    if (at == 0) {
        *(float *)(meta + 8 * unit) = bad ? __uint_as_float(0x7FC00000u) : peak / 127.0f;
        *(u32 *)(meta + 8 * unit + 4) = ((u32)sum & 0xFFFFu) | (u32)other << 16;
    }
}

/* The same for eight values v of a unit that 4 neighbouring lanes hold together. Rounds by adding 1.5 * 2^23, which
 * leaves the code in the low byte. */
HK_FN void quantise_eight(const float (&v)[8], int i8, int K, s8 *codes, u8 *meta, bool valid) {
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
    u32 word[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 c[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            c[j] = bad ? 0 : __float_as_uint(__fadd_rn(__fmul_rn(v[4 * h + j], inverse), 12582912.0f));
        word[h] = permute(permute(c[0], c[1], 0x0040u), permute(c[2], c[3], 0x0040u), 0x5410u);
    }
    s32 sum = dot4(word[0], 0x01010101u, dot4(word[1], 0x01010101u, 0));
    sum += __shfl_xor_sync(~0u, sum, 1);
    s32 other = __shfl_xor_sync(~0u, sum, 2);
    if (!valid)
        return;
    int unit = i8 >> 2, at = i8 & 3;
    u32x2 w = {{word[0], word[1]}};
    *(u32x2 *)(codes + (at < 2 ? 0 : K / 2) + 16 * unit + 8 * (at & 1)) = w;
    if (at == 0) {
        u32x2 m = {{bad ? 0x7FC00000u : __float_as_uint(peak / 127.0f), ((u32)sum & 0xFFFFu) | (u32)other << 16}};
        *(u32x2 *)(meta + 8 * unit) = m;
    }
}

#endif
