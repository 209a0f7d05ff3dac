/* Turns raw GGUF rows in device memory into the device layout (hk_unit.cuh), one thread per unit. Reading bytes one by
 * one is far slower than memory, and still several times faster than the bus that brought them. */
#include "hk_unit.cuh"

HK_FN u16 file_u16(const u8 *p) { return (u16)(p[0] | p[1] << 8); }
HK_FN void write_u16(u8 *p, u32 v) { *(u16 *)p = (u16)v; }
HK_FN void write_u32(u8 *p, u32 v) { *(u32 *)p = v; }

/* The nibble of weight l where 16 bytes hold weights 0..15 in the low and 16..31 in the high nibbles. */
HK_FN u32 split_nibble(const u8 *qs, int l) { return l < 16 ? qs[l] & 15 : qs[l - 16] >> 4; }

/* Planes from the codes of one unit. */
template <class CODE> HK_FN void write_4_bits(u8 *to, CODE code) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 w = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            w |= (code(8 * j + i) & 15) << 8 * i | (code(8 * j + 4 + i) & 15) << (8 * i + 4);
        write_u32(to + 4 * j, w);
    }
}
template <class CODE> HK_FN void write_nibble_order(u8 *to, CODE code) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 w = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            w |= (code(8 * j + i) & 15) << 4 * i;
        write_u32(to + 4 * j, w);
    }
}
template <class CODE> HK_FN void write_2_bits(u8 *to, CODE code) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        u32 w = 0;
#pragma unroll
        for (int l = 0; l < 16; l++)
            w |= (code(16 * j + l) & 3) << (8 * (l & 3) + 2 * (l >> 2));
        write_u32(to + 4 * j, w);
    }
}
template <class CODE> HK_FN void write_1_bit(u8 *to, CODE code) {
    u32 w = 0;
#pragma unroll
    for (int l = 0; l < 32; l++)
        w |= (code(l) & 1) << (8 * (l & 3) + (l >> 2));
    write_u32(to, w);
}

/* b: the file's block; j: the unit in it; i: the unit in the matrix. */
HK_FN void convert_q4_0(const hk_matrix &m, const u8 *b, int, s64 i) {
    write_u16((u8 *)m.d + 2 * i, file_u16(b));
    write_4_bits((u8 *)m.q + 16 * i, [=](int l) { return split_nibble(b + 2, l); });
}
HK_FN void convert_q4_1(const hk_matrix &m, const u8 *b, int, s64 i) {
    write_u32((u8 *)m.d + 4 * i, file_u16(b) | (u32)file_u16(b + 2) << 16);
    write_4_bits((u8 *)m.q + 16 * i, [=](int l) { return split_nibble(b + 4, l); });
}
HK_FN void write_high_bits(const hk_matrix &m, const u8 *qh, s64 i) {
    write_1_bit((u8 *)m.h + 4 * i, [=](int l) { return (u32)(qh[l >> 3] >> (l & 7)); });
}
HK_FN void convert_q5_0(const hk_matrix &m, const u8 *b, int, s64 i) {
    write_u16((u8 *)m.d + 2 * i, file_u16(b));
    write_high_bits(m, b + 2, i);
    write_4_bits((u8 *)m.q + 16 * i, [=](int l) { return split_nibble(b + 6, l); });
}
HK_FN void convert_q5_1(const hk_matrix &m, const u8 *b, int, s64 i) {
    write_u32((u8 *)m.d + 4 * i, file_u16(b) | (u32)file_u16(b + 2) << 16);
    write_high_bits(m, b + 4, i);
    write_4_bits((u8 *)m.q + 16 * i, [=](int l) { return split_nibble(b + 8, l); });
}
HK_FN void convert_q8_0(const hk_matrix &m, const u8 *b, int, s64 i) {
    write_u16((u8 *)m.d + 2 * i, file_u16(b));
    for (int l = 0; l < 32; l++)
        ((u8 *)(l < 16 ? m.q : m.h))[16 * i + (l & 15)] = b[2 + l];
}
HK_FN void convert_iq4_nl(const hk_matrix &m, const u8 *b, int, s64 i) {
    write_u16((u8 *)m.d + 2 * i, file_u16(b));
    write_nibble_order((u8 *)m.q + 16 * i, [=](int l) { return split_nibble(b + 2, l); });
}
HK_FN void convert_mxfp4(const hk_matrix &m, const u8 *b, int, s64 i) {
    ((u8 *)m.d)[i] = b[0];
    write_nibble_order((u8 *)m.q + 16 * i, [=](int l) { return split_nibble(b + 1, l); });
}

/* K-quants store 128 weights in 32 bytes (2 bits) or 64 bytes (4 bits): unit j takes bits 2 (j % 4) of bytes 32 (j / 4)
 * + l. */
HK_FN void convert_q2_k(const hk_matrix &m, const u8 *b, int j, s64 i) {
    const u8 *qs = b + 16 + 32 * (j >> 2);
    write_2_bits((u8 *)m.q + 8 * i, [=](int l) { return (u32)(qs[l] >> 2 * (j & 3)); });
    write_u16((u8 *)m.s + 2 * i, b[2 * j] | b[2 * j + 1] << 8);
    if (j == 0)
        write_u32((u8 *)m.d + 4 * (i >> 3), file_u16(b + 80) | (u32)file_u16(b + 82) << 16);
}
HK_FN u32 scale_of_q3_k(const u8 *s, int k) {
    return (k < 8 ? s[k] & 15 : s[k - 8] >> 4) | (s[8 + (k & 3)] >> 2 * (k >> 2) & 3) << 4;
}
HK_FN void convert_q3_k(const hk_matrix &m, const u8 *b, int j, s64 i) {
    const u8 *qs = b + 32 + 32 * (j >> 2), *s = b + 96;
    write_2_bits((u8 *)m.q + 8 * i, [=](int l) { return (u32)(qs[l] >> 2 * (j & 3)); });
    write_1_bit((u8 *)m.h + 4 * i, [=](int l) { return (u32)(b[l] >> j); });
    u8 *to = (u8 *)m.s + 12 * (i >> 3);
    u32 s0 = scale_of_q3_k(s, 2 * j), s1 = scale_of_q3_k(s, 2 * j + 1);
    to[j] = (u8)((s0 & 15) | (s1 & 15) << 4);
    if ((j & 1) == 0) {
        u32 s2 = scale_of_q3_k(s, 2 * j + 2), s3 = scale_of_q3_k(s, 2 * j + 3);
        to[8 + (j >> 1)] = (u8)(s0 >> 4 | (s1 >> 4) << 2 | (s2 >> 4) << 4 | (s3 >> 4) << 6);
    }
    if (j == 0)
        write_u16((u8 *)m.d + 2 * (i >> 3), file_u16(b + 108));
}
/* Scale and min of unit j from the file's 12 bytes. */
HK_FN u32 scale_min_of_q4_k(const u8 *s, int j) {
    u32 sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    u32 mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    return sc | mn << 6;
}
HK_FN void write_scales_of_q4_k(const hk_matrix &m, const u8 *b, int j, s64 i) {
    if (j)
        return;
    u32 w[3] = {0, 0, 0};
#pragma unroll
    for (int k = 0; k < 8; k++) {
        u64 bits = (u64)scale_min_of_q4_k(b + 4, k) << (12 * k & 31);
        w[12 * k >> 5] |= (u32)bits;
        if ((12 * k >> 5) < 2)
            w[(12 * k >> 5) + 1] |= (u32)(bits >> 32);
    }
    u8 *to = (u8 *)m.s + 16 * (i >> 3);
    write_u32(to, file_u16(b) | (u32)file_u16(b + 2) << 16);
    for (int k = 0; k < 3; k++)
        write_u32(to + 4 + 4 * k, w[k]);
}
HK_FN void convert_q4_k(const hk_matrix &m, const u8 *b, int j, s64 i) {
    const u8 *qs = b + 16 + 32 * (j >> 1);
    write_4_bits((u8 *)m.q + 16 * i, [=](int l) { return (u32)(qs[l] >> 4 * (j & 1)); });
    write_scales_of_q4_k(m, b, j, i);
}
HK_FN void convert_q5_k(const hk_matrix &m, const u8 *b, int j, s64 i) {
    const u8 *qs = b + 48 + 32 * (j >> 1), *qh = b + 16;
    write_4_bits((u8 *)m.q + 16 * i, [=](int l) { return (u32)(qs[l] >> 4 * (j & 1)); });
    write_1_bit((u8 *)m.h + 4 * i, [=](int l) { return (u32)(qh[l] >> j); });
    write_scales_of_q4_k(m, b, j, i);
}
HK_FN void convert_q6_k(const hk_matrix &m, const u8 *b, int j, s64 i) {
    const u8 *ql = b + 64 * (j >> 2) + 32 * (j & 1), *qh = b + 128 + 32 * (j >> 2);
    write_4_bits((u8 *)m.q + 16 * i, [=](int l) { return (u32)(ql[l] >> 4 * (j >> 1 & 1)); });
    write_2_bits((u8 *)m.h + 8 * i, [=](int l) { return (u32)(qh[l] >> 2 * (j & 3)); });
    write_u16((u8 *)m.s + 2 * i, b[192 + 2 * j] | b[193 + 2 * j] << 8);
    if (j == 0)
        write_u16((u8 *)m.d + 2 * (i >> 3), file_u16(b + 208));
}
HK_FN void convert_iq4_xs(const hk_matrix &m, const u8 *b, int j, s64 i) {
    const u8 *qs = b + 8 + 16 * j;
    write_nibble_order((u8 *)m.q + 16 * i, [=](int l) { return split_nibble(qs, l); });
    if (j)
        return;
    u8 *to = (u8 *)m.s + 8 * (i >> 3);
    for (int k = 0; k < 4; k++)
        write_u16(to + 2 * k, file_u16(b + 2 * k));
}

#define HK_CONVERT(lower, block, bytes)                                                                                \
    HK_KERNEL hk_convert_##lower(const __grid_constant__ hk_convert_args a) {                                          \
        s64 per_row = a.cols / 32, i = (s64)blockIdx.x * blockDim.x + threadIdx.x;                                     \
        if (i >= a.rows * per_row)                                                                                     \
            return;                                                                                                    \
        convert_##lower(a.to, a.raw + i / (block / 32) * bytes, (int)(i % (block / 32)), i);                           \
    }
#define HK_CONVERT_F32(lower, block, bytes)
#define HK_CONVERT_Q8_32(lower, block, bytes)                    HK_CONVERT(lower, block, bytes)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_CONVERT_##act(lower, block, bytes)
#include "../formats/hk_types.def"
