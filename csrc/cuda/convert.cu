/* Turns weights in device memory, as the file's rows or as the CPU set's panels, into the device layout (hk_unit.cuh,
 * hk_scales.cuh): a warp makes a record, a lane its share of it. Reading bytes one by one is far slower than memory,
 * and still several times faster than the bus that brought them.
 *
 * A block is anything that gives the bytes of a block of the file by their index, and is false where there is none:
 * a pointer into a row, or a block of a panel (hk_panel.cuh). */
#include "hk_panel.cuh"

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
template <class B> HK_FN u32 half_at(const B &b, int at) { return b ? (u32)b[at] | (u32)b[at + 1] << 8 : 0; }
template <class B> HK_FN u32 pair_at(const B &b, int at) { return half_at(b, at) | half_at(b, at + 2) << 16; }
template <class B> HK_FN u32 scale_of_q4_k(const B &b, int j) {
    return !b ? 0 : j < 4 ? b[4 + j] & 63 : (b[8 + j] & 15) | (b[j] >> 6) << 4;
}
template <class B> HK_FN u32 min_of_q4_k(const B &b, int j) {
    return !b ? 0 : j < 4 ? b[8 + j] & 63 : b[8 + j] >> 4 | (b[4 + j] >> 6) << 4;
}
template <class B> HK_FN u32 scale_of_q3_k(const B &b, int k) {
    return !b ? 0 : (k < 8 ? b[96 + k] & 15 : b[88 + k] >> 4) | (b[104 + (k & 3)] >> 2 * (k >> 2) & 3) << 4;
}
template <class B> HK_FN u32 scale_of_iq4_xs(const B &b, int j) {
    return !b ? 0 : (b[4 + (j >> 1)] >> 4 * (j & 1) & 15) | (half_at(b, 2) >> 2 * j & 3) << 4;
}

/* What lane 4 g + t writes into the scale area `a`. block[r][u]: of row g + 8 r, for unit u of a record of 64 columns
 * or the whole record. */
/* Without an index that the compiler does not know, for which it would put the array into memory. */
template <class B> HK_FN B of_row(const B (&b)[2][2], int r) {
    B one = b[0][0];
    if (r)
        one = b[1][0];
    return one;
}
HK_FN int order_0213(int v) { return (v & 1) << 1 | v >> 1; }

template <class B> HK_FN void write_halves(u8 *a, int lane, const B (&b)[2][2]) {
    if ((lane & 3) == 0)
#pragma unroll
        for (int v = 0; v < 4; v++)
            ((u16 *)(a + 2 * lane))[v] = (u16)half_at(b[v >> 1][v & 1], 0);
}
template <class B> HK_FN void write_pairs(u8 *a, int lane, const B (&b)[2][2]) {
    if ((lane & 3) == 0)
#pragma unroll
        for (int v = 0; v < 4; v++)
            ((u32 *)(a + 4 * lane))[v] = pair_at(b[v >> 1][v & 1], 0);
}
template <class B> HK_FN void write_scales(unit_q4_0 *, u8 *a, int lane, const B (&b)[2][2]) {
    write_halves(a, lane, b);
}
template <class B> HK_FN void write_scales(unit_q5_0 *, u8 *a, int lane, const B (&b)[2][2]) {
    write_halves(a, lane, b);
}
template <class B> HK_FN void write_scales(unit_q8_0 *, u8 *a, int lane, const B (&b)[2][2]) {
    write_halves(a, lane, b);
}
template <class B> HK_FN void write_scales(unit_iq4_nl *, u8 *a, int lane, const B (&b)[2][2]) {
    write_halves(a, lane, b);
}
template <class B> HK_FN void write_scales(unit_q4_1 *, u8 *a, int lane, const B (&b)[2][2]) {
    write_pairs(a, lane, b);
}
template <class B> HK_FN void write_scales(unit_q5_1 *, u8 *a, int lane, const B (&b)[2][2]) {
    write_pairs(a, lane, b);
}
template <class B> HK_FN void write_scales(unit_mxfp4 *, u8 *a, int lane, const B (&b)[2][2]) {
    if ((lane & 3) == 0)
#pragma unroll
        for (int v = 0; v < 4; v++)
            a[lane + v] = b[v >> 1][v & 1] ? b[v >> 1][v & 1][0] : 0;
}
template <class B> HK_FN void write_six_bit_pairs(u8 *a, int lane, const B (&b)[2][2]) {
    u32 low = 0, high = 0;
#pragma unroll
    for (int v = 0; v < 4; v++) {
        const B &p = b[v >> 1][0];
        int j = 2 * (lane & 3) + (v & 1);
        u32 m = min_of_q4_k(p, j);
        low |= (scale_of_q4_k(p, j) | (m & 3) << 6) << 8 * v;
        high |= m >> 2 << 4 * order_0213(v);
    }
    ((u32 *)a)[lane] = low;
    ((u16 *)(a + 128))[lane] = (u16)high;
    if ((lane & 3) < 2)
        ((u32 *)(a + 192))[2 * (lane >> 2) + (lane & 1)] = pair_at(of_row(b, lane & 1), 0);
}
template <class B> HK_FN void write_scales(unit_q4_k *, u8 *a, int lane, const B (&b)[2][2]) {
    write_six_bit_pairs(a, lane, b);
}
template <class B> HK_FN void write_scales(unit_q5_k *, u8 *a, int lane, const B (&b)[2][2]) {
    write_six_bit_pairs(a, lane, b);
}
/* Which of a row's 16 scales is value v of lane t. */
HK_FN int sixteenth(int t, int v) { return 8 * (v >> 1 & 1) + 2 * t + (v & 1); }
template <class B> HK_FN void write_scales(unit_q2_k *, u8 *a, int lane, const B (&b)[2][2]) {
#pragma unroll
    for (int v = 0; v < 8; v++)
        a[8 * lane + v] = b[v >> 2][0] ? b[v >> 2][0][sixteenth(lane & 3, v)] : 0;
    if ((lane & 3) < 2)
        ((u32 *)(a + 256))[2 * (lane >> 2) + (lane & 1)] = pair_at(of_row(b, lane & 1), 80);
}
template <class B> HK_FN void write_scales(unit_q6_k *, u8 *a, int lane, const B (&b)[2][2]) {
#pragma unroll
    for (int v = 0; v < 8; v++)
        a[8 * lane + v] = b[v >> 2][0] ? b[v >> 2][0][192 + sixteenth(lane & 3, v)] : 0;
    if ((lane & 3) < 2)
        ((u16 *)(a + 256))[2 * (lane >> 2) + (lane & 1)] = (u16)half_at(of_row(b, lane & 1), 208);
}
template <class B> HK_FN void write_scales(unit_q3_k *, u8 *a, int lane, const B (&b)[2][2]) {
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
        ((u16 *)(a + 192))[2 * (lane >> 2) + (lane & 1)] = (u16)half_at(of_row(b, lane & 1), 108);
}
template <class B> HK_FN void write_scales(unit_iq4_xs *, u8 *a, int lane, const B (&b)[2][2]) {
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
        ((u16 *)(a + 96))[2 * (lane >> 2) + (lane & 1)] = (u16)half_at(of_row(b, lane & 1), 0);
}

/* Four codes of unit j, from weight l on, as bytes. Those of a panel lie together (hk_panel.cuh). */
template <class F> HK_FN u32 four_codes(F *f, const u8 *b, int j, int l) {
    return file_code(f, b, j, l) | file_code(f, b, j, l + 1) << 8 | file_code(f, b, j, l + 2) << 16 |
           file_code(f, b, j, l + 3) << 24;
}

/* The blocks of a matrix as the file has it. */
struct file_rows {
    typedef const u8 *block;
    const u8 *raw;
    s64 per_row;
    int block_bytes;
    HK_MEMBER block at(s64 row, s64 i) const { return raw + (row * per_row + i) * block_bytes; }
};

/* A lane's share of record `i` of the matrix. */
template <class F, class S> HK_FN void convert_share(const hk_convert_args &a, s64 i, int lane, const S &source) {
    constexpr int BLOCKS = F::COLUMNS == 64 ? 2 : 1; /* of the file in a row of a record */
    s64 records = (a.cols + F::COLUMNS - 1) / F::COLUMNS, record = i % records;
    typename S::block b[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int u = 0; u < 2; u++) {
            s64 row = i / records * 16 + (lane >> 2) + 8 * r, at = record * BLOCKS + u % BLOCKS;
            bool there = row < a.rows && at < source.per_row;
            b[r][u] = there ? source.at(row, at) : typename S::block();
        }
    lane_codes<F> w = {};
#pragma unroll
    for (int u = 0; u < F::UNITS; u++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const typename S::block &p = b[c & 1][u % BLOCKS];
            u32 codes = p ? four_codes((F *)0, p, BLOCKS == 2 ? 0 : u, 8 * (lane & 3) + 4 * (c >> 1)) : 0;
#pragma unroll
            for (int k = 0; k < 4; k++)
                F::put(w, u, c, k, codes >> 8 * k & 255);
        }
    u8 *to = (u8 *)a.to.at + i * F::BYTES;
#pragma unroll
    for (int p = 0; p < F::PIECES; p++)
        *(u32x4 *)(to + HK_PIECE * p + 16 * lane) = {{w.x[p][0], w.x[p][1], w.x[p][2], w.x[p][3]}};
    if (F::BITS)
        *(u32 *)(to + HK_PIECE * F::PIECES + 4 * lane) = w.bits;
    write_scales((F *)0, to + F::SCALES_AT, lane, b);
}

/* Weights in a block of the file. */
template <class F> constexpr __device__ int block_of() { return F::COLUMNS == 64 ? 32 : F::COLUMNS; }
template <class F> HK_FN file_rows file_source(const hk_convert_args &a, int block_bytes) {
    return {a.raw, a.cols / block_of<F>(), block_bytes};
}
template <class F> HK_FN packed_panels<F> panel_source(const hk_convert_args &a, int block_bytes, int scale_bytes) {
    return {a.raw, a.cols / block_of<F>(), block_bytes, scale_bytes};
}

#ifndef HK_ON_HOST
template <class F, class S> HK_FN void convert(const hk_convert_args &a, const S &source) {
    s64 i = ((s64)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (i < (a.rows + 15) / 16 * ((a.cols + F::COLUMNS - 1) / F::COLUMNS))
        convert_share<F>(a, i, threadIdx.x & 31, source);
}
template <class T> HK_FN void unpack(const hk_convert_args &a) {
    s64 i = ((s64)blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (i < (a.rows + 15) / 16 * ((a.cols + 31) / 32))
        unpack_share<T>(a, i, threadIdx.x & 31);
}
#define HK_CONVERT_Q8_32(lower, bytes, scale_bytes)                                                                    \
    HK_KERNEL hk_convert_##lower(const __grid_constant__ hk_convert_args a) {                                          \
        convert<unit_##lower>(a, file_source<unit_##lower>(a, bytes));                                                 \
    }                                                                                                                  \
    HK_KERNEL hk_convert_packed_##lower(const __grid_constant__ hk_convert_args a) {                                   \
        convert<unit_##lower>(a, panel_source<unit_##lower>(a, bytes, scale_bytes));                                   \
    }
#define HK_CONVERT_F32(lower, bytes, scale_bytes)                                                                      \
    HK_KERNEL hk_convert_packed_##lower(const __grid_constant__ hk_convert_args a) { unpack<float_of_##lower>(a); }
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_CONVERT_##act(lower, bytes, scale_bytes)
#include "../formats/hk_types.def"
#undef HK_TYPE
#endif
