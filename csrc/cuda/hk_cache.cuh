/* The KV cache: pages of 128 tokens. In a page, every block has for every KV head a K plane and behind it a V plane:
 *
 *   f16    codes f16 [128][dim]
 *   q8_0   codes s8 [128][dim], then scales f16 [128][dim / 32]
 *   q4_0   codes of 4 bits [128][dim / 2 bytes], then scales f16 [128][dim / 32]; a word holds 8 dimensions, nibble i
 * being dimension 2 i (i < 4) or 2 (i - 4) + 1: one mask then gives a pair of halves in order
 *
 * quantised as GGUF's Q8_0 and Q4_0 define it. dim is a multiple of 8 (f16) or 32.
 */
#ifndef HK_CACHE_CUH
#define HK_CACHE_CUH

#include "hk_args.h"
#include "hk_device.cuh"

#define HK_PAGE 128

template <int TYPE> HK_FN int code_row_bytes(int dim) {
    return TYPE == HK_CACHE_F16 ? 2 * dim : TYPE == HK_CACHE_Q8_0 ? dim : dim / 2;
}
template <int TYPE> HK_FN int plane_bytes(int dim) {
    return HK_PAGE * (code_row_bytes<TYPE>(dim) + (TYPE == HK_CACHE_F16 ? 0 : dim / 16));
}
/* The K or V plane of a head in a page. */
template <int TYPE> HK_FN u8 *plane_of(const hk_cache &c, int page, int head, bool values) {
    s64 k = plane_bytes<TYPE>(c.dim_k), v = plane_bytes<TYPE>(c.dim_v);
    return c.pages + page * c.page_bytes + c.block_offset + head * (k + v) + (values ? k : 0);
}

/* Stores a head's vector x[dim] (shared or global) as token `slot` of a plane; one warp. */
template <int TYPE> HK_FN void store_head(u8 *plane, int dim, int slot, const float *x, int lane) {
    u8 *row = plane + slot * code_row_bytes<TYPE>(dim);
    u16 *scales = (u16 *)(plane + HK_PAGE * code_row_bytes<TYPE>(dim)) + slot * (dim / 32);
    for (int b = 0; b < dim; b += 32) {
        bool in = b + lane < dim;
        float v = in ? x[b + lane] : 0, peak = warp_max(fabsf(v));
        if (TYPE == HK_CACHE_F16) {
            if (in)
                ((u16 *)row)[b + lane] = float_to_half(v);
        } else if (TYPE == HK_CACHE_Q8_0) {
            float d = peak / 127.0f;
            row[b + lane] = (u8)(s8)(d > 0 ? roundf(v * (1.0f / d)) : 0);
            if (lane == 0)
                scales[b / 32] = float_to_half(d);
        } else {
            u32 holders = __ballot_sync(~0u, fabsf(v) == peak);
            float d = __shfl_sync(~0u, v, __ffs(holders) - 1) / -8.0f;
            u32 code = min(15, (int)(v * (d != 0 ? 1.0f / d : 0) + 8.5f));
            int i = lane & 7, shift = 4 * (i >> 1) + 16 * (i & 1);
            u32 word = code << shift;
            for (int o = 1; o < 8; o <<= 1)
                word |= __shfl_xor_sync(~0u, word, o);
            if (i == 0)
                *(u32 *)(row + b / 2 + lane / 2) = word;
            if (lane == 0)
                scales[b / 32] = float_to_half(d);
        }
    }
}

/* Eight dimensions from 8 e of one token as halves, the scale multiplied in. */
template <int TYPE> HK_FN u32x4 read_eight(const u8 *plane, int dim, int slot, int e) {
    const u8 *row = plane + slot * code_row_bytes<TYPE>(dim);
    if (TYPE == HK_CACHE_F16)
        return *(const u32x4 *)(row + 16 * e);
    u32 d = ((const u16 *)(plane + HK_PAGE * code_row_bytes<TYPE>(dim)))[slot * (dim / 32) + e / 4];
    d |= d << 16;
    u32x4 r;
    if (TYPE == HK_CACHE_Q8_0) {
        u32x2 w = *(const u32x2 *)(row + 8 * e);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 codes = w.v[i >> 1] ^ 0x80808080u; /* 0x6480 is 1024 + 128 */
            u32 magic = permute(codes, 0x64646464u, i & 1 ? 0x4342u : 0x4140u);
            r.v[i] = half2_mul(half2_sub(magic, 0x64806480u), d);
        }
    } else {
        u32 w = *(const u32 *)(row + 4 * e);
#pragma unroll
        for (int i = 0; i < 4; i++)
            r.v[i] = half2_mul(half2_sub((w >> 4 * i & 0x000F000Fu) | 0x64006400u, 0x64086408u), d);
    }
    return r;
}

#endif
