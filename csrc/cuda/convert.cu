/* Turns raw GGUF rows in device memory into the device layout (hk_unit.cuh, hk_scales.cuh): a warp makes a record, a
 * lane its share of it. Reading bytes one by one is far slower than memory, and still several times faster than the bus
 * that brought them. */
#include "hk_scales.cuh"

HK_FN u32 file_u16(const u8 *p) { return (u32)p[0] | (u32)p[1] << 8; }
/* The nibble of weight l where 16 bytes hold weights 0..15 in the low and 16..31 in the high nibbles. */
HK_FN u32 split_nibble(const u8 *qs, int l) { return l < 16 ? qs[l] & 15 : qs[l - 16] >> 4; }
HK_FN u32 bit_of(const u8 *b, int l) { return b[l >> 3] >> (l & 7) & 1; }

/* The code of weight l of the block's unit j. K-quants store 128 weights in 32 bytes (2 bits) or 64 bytes (4 bits):
 * unit j takes bits 2 (j % 4) of bytes 32 (j / 4) + l. */
HK_FN u32 file_code(unit_q4_0 *, const u8 *b, int, int l) { return split_nibble(b + 2, l); }
HK_FN u32 file_code(unit_q4_1 *, const u8 *b, int, int l) { return split_nibble(b + 4, l); }
HK_FN u32 file_code(unit_q5_0 *, const u8 *b, int, int l) { return split_nibble(b + 6, l) | bit_of(b + 2, l) << 4; }
HK_FN u32 file_code(unit_q5_1 *, const u8 *b, int, int l) { return split_nibble(b + 8, l) | bit_of(b + 4, l) << 4; }
HK_FN u32 file_code(unit_q8_0 *, const u8 *b, int, int l) { return b[2 + l]; }
HK_FN u32 file_code(unit_iq4_nl *, const u8 *b, int, int l) { return split_nibble(b + 2, l); }
HK_FN u32 file_code(unit_mxfp4 *, const u8 *b, int, int l) { return split_nibble(b + 1, l); }
HK_FN u32 file_code(unit_iq4_xs *, const u8 *b, int j, int l) { return split_nibble(b + 8 + 16 * j, l); }
HK_FN u32 file_code(unit_q2_k *, const u8 *b, int j, int l) { return b[16 + 32 * (j >> 2) + l] >> 2 * (j & 3) & 3; }
HK_FN u32 file_code(unit_q3_k *, const u8 *b, int j, int l) {
    return (b[32 + 32 * (j >> 2) + l] >> 2 * (j & 3) & 3) | (b[l] >> j & 1) << 2;
}
HK_FN u32 file_code(unit_q4_k *, const u8 *b, int j, int l) { return b[16 + 32 * (j >> 1) + l] >> 4 * (j & 1) & 15; }
HK_FN u32 file_code(unit_q5_k *, const u8 *b, int j, int l) {
    return (b[48 + 32 * (j >> 1) + l] >> 4 * (j & 1) & 15) | (b[16 + l] >> j & 1) << 4;
}
HK_FN u32 file_code(unit_q6_k *, const u8 *b, int j, int l) {
    u32 low = b[64 * (j >> 2) + 32 * (j & 1) + l] >> 4 * (j >> 1 & 1) & 15;
    return low | (b[128 + 32 * (j >> 2) + l] >> 2 * (j & 3) & 3) << 4;
}

/* Scales and the like of one block; b: the block, or NULL for padding. */
HK_FN u32 half_at(const u8 *b, int at) { return b ? file_u16(b + at) : 0; }
HK_FN u32 pair_at(const u8 *b, int at) { return half_at(b, at) | half_at(b, at + 2) << 16; }
HK_FN u32 scale_of_q4_k(const u8 *b, int j) {
    const u8 *s = b + 4;
    return !b ? 0 : j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}
HK_FN u32 min_of_q4_k(const u8 *b, int j) {
    const u8 *s = b + 4;
    return !b ? 0 : j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}
HK_FN u32 scale_of_q3_k(const u8 *b, int k) {
    const u8 *s = b + 96;
    return !b ? 0 : (k < 8 ? s[k] & 15 : s[k - 8] >> 4) | (s[8 + (k & 3)] >> 2 * (k >> 2) & 3) << 4;
}
HK_FN u32 scale_of_iq4_xs(const u8 *b, int j) {
    return !b ? 0 : (b[4 + (j >> 1)] >> 4 * (j & 1) & 15) | (file_u16(b + 2) >> 2 * j & 3) << 4;
}

/* What lane 4 g + t writes into the scale area `a`. block[r][u]: of row g + 8 r, for unit u of a record of 64 columns
 * or the whole record. */
typedef const u8 *row_blocks[2][2];
HK_FN int order_0213(int v) { return (v & 1) << 1 | v >> 1; }

HK_FN void write_halves(u8 *a, int lane, const row_blocks &b) {
    if ((lane & 3) == 0)
#pragma unroll
        for (int v = 0; v < 4; v++)
            ((u16 *)(a + 2 * lane))[v] = (u16)half_at(b[v >> 1][v & 1], 0);
}
HK_FN void write_pairs(u8 *a, int lane, const row_blocks &b) {
    if ((lane & 3) == 0)
#pragma unroll
        for (int v = 0; v < 4; v++)
            ((u32 *)(a + 4 * lane))[v] = pair_at(b[v >> 1][v & 1], 0);
}
HK_FN void write_scales(unit_q4_0 *, u8 *a, int lane, const row_blocks &b) { write_halves(a, lane, b); }
HK_FN void write_scales(unit_q5_0 *, u8 *a, int lane, const row_blocks &b) { write_halves(a, lane, b); }
HK_FN void write_scales(unit_q8_0 *, u8 *a, int lane, const row_blocks &b) { write_halves(a, lane, b); }
HK_FN void write_scales(unit_iq4_nl *, u8 *a, int lane, const row_blocks &b) { write_halves(a, lane, b); }
HK_FN void write_scales(unit_q4_1 *, u8 *a, int lane, const row_blocks &b) { write_pairs(a, lane, b); }
HK_FN void write_scales(unit_q5_1 *, u8 *a, int lane, const row_blocks &b) { write_pairs(a, lane, b); }
HK_FN void write_scales(unit_mxfp4 *, u8 *a, int lane, const row_blocks &b) {
    if ((lane & 3) == 0)
#pragma unroll
        for (int v = 0; v < 4; v++)
            a[lane + v] = b[v >> 1][v & 1] ? b[v >> 1][v & 1][0] : 0;
}
HK_FN void write_six_bit_pairs(u8 *a, int lane, const row_blocks &b) {
    u32 low = 0, high = 0;
#pragma unroll
    for (int v = 0; v < 4; v++) {
        const u8 *p = b[v >> 1][0];
        int j = 2 * (lane & 3) + (v & 1);
        u32 m = min_of_q4_k(p, j);
        low |= (scale_of_q4_k(p, j) | (m & 3) << 6) << 8 * v;
        high |= m >> 2 << 4 * order_0213(v);
    }
    ((u32 *)a)[lane] = low;
    ((u16 *)(a + 128))[lane] = (u16)high;
    if ((lane & 3) < 2)
        ((u32 *)(a + 192))[2 * (lane >> 2) + (lane & 1)] = pair_at(b[lane & 1][0], 0);
}
HK_FN void write_scales(unit_q4_k *, u8 *a, int lane, const row_blocks &b) { write_six_bit_pairs(a, lane, b); }
HK_FN void write_scales(unit_q5_k *, u8 *a, int lane, const row_blocks &b) { write_six_bit_pairs(a, lane, b); }
/* Which of a row's 16 scales is value v of lane t. */
HK_FN int sixteenth(int t, int v) { return 8 * (v >> 1 & 1) + 2 * t + (v & 1); }
HK_FN void write_scales(unit_q2_k *, u8 *a, int lane, const row_blocks &b) {
#pragma unroll
    for (int v = 0; v < 8; v++)
        a[8 * lane + v] = b[v >> 2][0] ? b[v >> 2][0][sixteenth(lane & 3, v)] : 0;
    if ((lane & 3) < 2)
        ((u32 *)(a + 256))[2 * (lane >> 2) + (lane & 1)] = pair_at(b[lane & 1][0], 80);
}
HK_FN void write_scales(unit_q6_k *, u8 *a, int lane, const row_blocks &b) {
#pragma unroll
    for (int v = 0; v < 8; v++)
        a[8 * lane + v] = b[v >> 2][0] ? b[v >> 2][0][192 + sixteenth(lane & 3, v)] : 0;
    if ((lane & 3) < 2)
        ((u16 *)(a + 256))[2 * (lane >> 2) + (lane & 1)] = (u16)half_at(b[lane & 1][0], 208);
}
HK_FN void write_scales(unit_q3_k *, u8 *a, int lane, const row_blocks &b) {
    u32 low = 0, high = 0;
#pragma unroll
    for (int v = 0; v < 8; v++) {
        u32 s = scale_of_q3_k(b[v >> 2][0], sixteenth(lane & 3, v));
        int i = v & 3, upper = v >> 2;
        low |= (s & 15) << (8 * i + 4 * upper);
        high |= s >> 4 << (8 * (i & 1) + (upper ? 0 : 4) + 2 * (i >> 1));
    }
    ((u32 *)a)[lane] = low;
    ((u16 *)(a + 128))[lane] = (u16)high;
    if ((lane & 3) < 2)
        ((u16 *)(a + 192))[2 * (lane >> 2) + (lane & 1)] = (u16)half_at(b[lane & 1][0], 108);
}
HK_FN void write_scales(unit_iq4_xs *, u8 *a, int lane, const row_blocks &b) {
    u32 low = 0, high = 0;
#pragma unroll
    for (int v = 0; v < 4; v++) {
        u32 s = scale_of_iq4_xs(b[v >> 1][0], 2 * (lane & 3) + (v & 1));
        low |= (s & 15) << 4 * order_0213(v);
        high |= s >> 4 << 2 * v;
    }
    ((u16 *)a)[lane] = (u16)low;
    a[64 + lane] = (u8)high;
    if ((lane & 3) < 2)
        ((u16 *)(a + 96))[2 * (lane >> 2) + (lane & 1)] = (u16)half_at(b[lane & 1][0], 0);
}

/* A lane's share of record `i` of the matrix. block_bytes: of a block of the file, which is 32 or 256 weights. */
template <class F> HK_FN void convert_share(const hk_convert_args &a, s64 i, int lane, int block_bytes) {
    constexpr int BLOCKS = F::COLUMNS == 64 ? 2 : 1; /* of the file in a row of a record */
    s64 records = (a.cols + F::COLUMNS - 1) / F::COLUMNS, record = i % records;
    s64 per_row = a.cols / (F::COLUMNS / BLOCKS);
    row_blocks b;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int u = 0; u < 2; u++) {
            s64 row = i / records * 16 + (lane >> 2) + 8 * r, at = record * BLOCKS + u % BLOCKS;
            b[r][u] = row < a.rows && at < per_row ? a.raw + (row * per_row + at) * block_bytes : (const u8 *)0;
        }
    lane_codes<F> w = {};
#pragma unroll
    for (int u = 0; u < F::UNITS; u++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const u8 *p = b[c & 1][u % BLOCKS];
            if (p)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    F::put(w, u, c, k, file_code((F *)0, p, BLOCKS == 2 ? 0 : u, 8 * (lane & 3) + 4 * (c >> 1) + k));
        }
    u8 *to = (u8 *)a.to.at + i * F::BYTES;
#pragma unroll
    for (int p = 0; p < F::PIECES; p++)
        *(u32x4 *)(to + HK_PIECE * p + 16 * lane) = {{w.x[p][0], w.x[p][1], w.x[p][2], w.x[p][3]}};
    if (F::BITS)
        *(u32 *)(to + HK_PIECE * F::PIECES + 4 * lane) = w.bits;
    write_scales((F *)0, to + F::SCALES_AT, lane, b);
}

#ifndef HK_ON_HOST
template <class F> HK_FN void convert(const hk_convert_args &a, int block_bytes) {
    s64 i = ((s64)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (i < (a.rows + 15) / 16 * ((a.cols + F::COLUMNS - 1) / F::COLUMNS))
        convert_share<F>(a, i, threadIdx.x & 31, block_bytes);
}
#define HK_CONVERT(lower, bytes)                                                                                       \
    HK_KERNEL hk_convert_##lower(const __grid_constant__ hk_convert_args a) { convert<unit_##lower>(a, bytes); }
#define HK_CONVERT_F32(lower, bytes)
#define HK_CONVERT_Q8_32(lower, bytes)                           HK_CONVERT(lower, bytes)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_CONVERT_##act(lower, bytes)
#include "../formats/hk_types.def"
#undef HK_TYPE
#endif
