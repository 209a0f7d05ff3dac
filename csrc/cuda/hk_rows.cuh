/* Row arithmetic that several kernels share: block sums, activations, and the forms in which products take rows. */
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

/* Rounds four values by adding 1.5 * 2^23, which leaves the codes in the low bytes. */
HK_FN u32 four_codes(const float *v, float inverse) {
    u32 c[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        c[j] = __float_as_uint(__fadd_rn(__fmul_rn(v[j], inverse), 12582912.0f));
    return permute(permute(c[0], c[1], 0x0040u), permute(c[2], c[3], 0x0040u), 0x5410u);
}

/* max|v| of a unit of 32 of which 4 neighbouring lanes hold eight values each; NaN if there is one among them. */
HK_FN float unit_peak(const float (&v)[8]) {
    float m[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        m[j] = larger_or_nan(fabsf(v[j]), fabsf(v[j + 4]));
    float peak = larger_or_nan(larger_or_nan(m[0], m[1]), larger_or_nan(m[2], m[3]));
    peak = larger_or_nan(peak, __shfl_xor_sync(~0u, peak, 1));
    return larger_or_nan(peak, __shfl_xor_sync(~0u, peak, 2));
}
/* most / peak, correctly rounded, for peaks that are finite; 0 for those below 1e-34. As the compiler's own division,
 * but without a branch for extreme numbers: brought to where there are none. */
HK_FN float inverse_of(float peak, float most) {
    float p = peak * (1.0f / 4096), r = reciprocal_of(p);
    r = fmaf(r, fmaf(-p, r, 1.0f), r);
    most *= 1.0f / 4096;
    float q = most * r;
    return peak > 1e-34f ? fmaf(r, fmaf(-p, q, most), q) : 0;
}
HK_FN float scale_of_peak(float peak, float most) {
    return peak <= HK_MAX_FLOAT ? peak * (1.0f / most) : __uint_as_float(0x7FC00000u);
}
/* Eight values v of a unit of 32 that 4 neighbouring lanes hold together: scale = max|v| / 127, rounded to even; a unit
 * with a NaN or an infinity gets the scale NaN, so that the fault stays visible. Every lane gets the unit's scale and
 * the sums of its halves. */
HK_FN u32x2 quantise_eight(const float (&v)[8], float &scale, s32 (&sums)[2]) {
    float peak = unit_peak(v);
    float inverse = inverse_of(peak, 127.0f);
    u32x2 w = {{four_codes(v, inverse), four_codes(v + 4, inverse)}};
    s32 sum = dot4(w.v[0], 0x01010101u, dot4(w.v[1], 0x01010101u, 0));
    sum += __shfl_xor_sync(~0u, sum, 1);
    s32 other = __shfl_xor_sync(~0u, sum, 2);
    bool second = threadIdx.x & 2;
    sums[0] = second ? other : sum;
    sums[1] = second ? sum : other;
    scale = scale_of_peak(peak, 127.0f);
    return w;
}

/* The same in two parts: v = scale * (128 * high + low), to half of scale = max|v| / 16256. words: high and low codes.
 * sums: of both parts' halves. */
HK_FN void quantise_eight(const float (&v)[8], u32x4 &words, float &scale, s32 (&sums)[2][2]) {
    float peak = unit_peak(v);
    float inverse = inverse_of(peak, 16256.0f);
    u32 c[8];
#pragma unroll
    for (int j = 0; j < 8; j++) /* adding 1.5 * 2^23 rounds; 64 makes low = (code & 127) - 64, high = code >> 7 */
        c[j] = __float_as_uint(fmaf(v[j], inverse, 12582912.0f + 64));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 first = permute(c[4 * h], c[4 * h + 1], 0x5410u), second = permute(c[4 * h + 2], c[4 * h + 3], 0x5410u);
        words.v[h] = permute(first >> 7, second >> 7, 0x6420u);
        u32 low = (permute(first, second, 0x6420u) & 0x7F7F7F7Fu) | 0x80808080u;
        words.v[2 + h] = (low - 0x40404040u) ^ 0x80808080u; /* no byte borrows from the next */
    }
    /* Both parts' sums in one word: those of 16 low codes are within 1024. */
    s32 sum = dot4(words.v[2], 0x01010101u, dot4(words.v[3], 0x01010101u, 0));
    sum += dot4(words.v[0], 0x01010101u, dot4(words.v[1], 0x01010101u, 0)) * 65536;
    sum += __shfl_xor_sync(~0u, sum, 1);
    s32 other = __shfl_xor_sync(~0u, sum, 2);
    bool second = threadIdx.x & 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s32 both = (h == 1) == second ? sum : other;
        sums[1][h] = (s16)both;
        sums[0][h] = (both - sums[1][h]) >> 16;
    }
    scale = scale_of_peak(peak, 16256.0f);
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
