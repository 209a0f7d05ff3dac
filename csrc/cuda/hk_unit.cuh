/* The device layout of weights, and how the codes of each format unpack (the scales: hk_scales.cuh).
 *
 * A matrix of a quantised format is tiles of 16 rows, and a tile is records of C columns, in the order [row tile]
 * [record]: whoever walks along K reads one contiguous stream. C is 256 for formats with blocks of 256, else 64. Rows
 * are padded to 16 and columns to C, with zeros. A record holds everything of its 16 x C weights, in the file's number
 * of bytes: pieces of 512 B   bit words   scales          a row's bytes per record Q4_0     1 64              36 Q4_1
 * 1                             128             40 Q5_0     1                 128         64              44 Q5_1     1
 * 128         128             48 Q8_0     2                             64              68 IQ4_NL   1 64 36 MXFP4    1
 * 32              34 Q2_K     2                             320             84 Q3_K     3 224             110 Q4_K 4
 * 256             144 Q5_K     5                             256             176 Q6_K     6 288             210 IQ4_XS
 * 4                             128             136 F32, F16, BF16: the rows as they are.
 *
 * Codes lie as the lanes of a warp need them for the A operand of an integer or half-precision matrix instruction with
 * 16 rows. Lane 4 g + t owns rows g and g + 8 (register c: row g + 8 (c % 2)) and of every unit of 32 columns the
 * weights 8 t + 4 (c / 2) + byte, for registers c = 0 .. 3: the order of K inside a unit is free as long as both
 * operands agree. Piece p is 16 bytes a lane: word c for register c. A register of four codes is made of the words of
 * the same c: nibbles      unit u: byte i of piece u / 2 holds weight i of unit u in its low (even u) or high (odd u)
 * nibble looked up    the nibbles of one unit follow each other, even u in the low half of the word: what a byte
 * permutation wants Q5_0, Q5_1   the fifth bits of both units and all c in one word a lane: byte i, bit 4 u + c Q2_K
 * bits 2 (u % 4) of piece u / 4 Q6_K         unit k < 3 of four: low six bits of piece k; the fourth, two bits at a
 * time, in the top of the three Q5_K         units 0..4: low five bits of pieces 0..4; the other three in the top three
 * bits of the five Q3_K         units 0..5: bits 0..2 and 3..5 of pieces 0..2; the other two in the top two bits The
 * last three save shifts: integer pipes, not memory, would set the pace of a matrix-vector product with planes of
 * single bits. For the same reason a code may come shifted up, by shift(u): a power of two that scales absorb.
 */
#ifndef HK_UNIT_CUH
#define HK_UNIT_CUH

#include "hk_args.h"
#include "hk_device.cuh"

#define HK_PIECE 512

/* What a lane holds of a record: x[p][c] and the bit word. ones: all bits, where best the compiler does not know it. */
template <class F> struct lane_codes {
    u32 x[F::PIECES][4], bits, ones;
};

/* ZERO is taken off every code; PAIR_ZERO off the sum of a pair (below). SUB: columns per scale. */
template <int COLS, int N_PIECES, bool WITH_BITS, int SCALES, int SUB_COLS, int ZERO_CODE, bool WITH_MIN,
          bool IS_SIGNED, bool LOOKED_UP = false>
struct unit_head {
    static constexpr int COLUMNS = COLS, PIECES = N_PIECES, SUB = SUB_COLS, ZERO = ZERO_CODE, PAIR_ZERO = ZERO_CODE;
    static constexpr bool BITS = WITH_BITS, HAS_MIN = WITH_MIN, SIGNED = IS_SIGNED, PAIRS = LOOKED_UP;
    static constexpr int UNITS = COLS / 32, SCALES_AT = N_PIECES * HK_PIECE + (WITH_BITS ? 128 : 0);
    static constexpr int BYTES = SCALES_AT + SCALES;
};

template <class F> HK_FN void load_codes(lane_codes<F> &w, const u8 *record, int lane) {
#pragma unroll
    for (int p = 0; p < F::PIECES; p++) {
        u32x4 v = *(const u32x4 *)(record + HK_PIECE * p + 16 * lane);
#pragma unroll
        for (int c = 0; c < 4; c++)
            w.x[p][c] = v.v[c];
    }
    w.ones = ~0u;
    w.bits = F::BITS ? *(const u32 *)(record + F::PIECES * HK_PIECE + 4 * lane) : 0;
}

/* Four entries of a table of 16 int8, t[0..3], by the four nibbles of the low half of `n`. */
HK_FN u32 look_up(u32 t0, u32 t1, u32 t2, u32 t3, u32 n) {
    u32 low = n & 0x7777u;
    return permute(permute(t0, t1, low), permute(t2, t3, low), (n >> 1 & 0x4444u) | 0x3210u);
}

/* Each format: code(w, u, c), the four codes of register c of unit u, as bytes, times 1 << shift(u). And put(w, u, c,
 * i, v), which sets code i of them to v where it was 0. All but w are constants once loops are unrolled. */
template <int C, int P, int SCALES, int SUB, int ZERO, bool MIN>
struct unit_nibbles : unit_head<C, P, false, SCALES, SUB, ZERO, MIN, false> {
    static constexpr __device__ int shift(int u) { return 4 * (u & 1); }
    template <class F> HK_FN u32 code(const lane_codes<F> &w, int u, int c) {
        return w.x[u >> 1][c] & (u & 1 ? 0xF0F0F0F0u : 0x0F0F0F0Fu);
    }
    template <class F> HK_FN void put(lane_codes<F> &w, int u, int c, int i, u32 v) {
        w.x[u >> 1][c] |= v << (8 * i + 4 * (u & 1));
    }
};
struct unit_q4_0 : unit_nibbles<64, 1, 64, 32, 8, false> {};
struct unit_q4_1 : unit_nibbles<64, 1, 128, 32, 0, true> {};
struct unit_q4_k : unit_nibbles<256, 4, 256, 32, 0, true> {};

template <int SCALES, int ZERO, bool MIN>
struct unit_fifth_bits : unit_head<64, 1, true, SCALES, 32, ZERO, MIN, false> {
    static constexpr __device__ int shift(int) { return 0; }
    template <class F> HK_FN u32 code(const lane_codes<F> &w, int u, int c) {
        u32 n = u ? w.x[0][c] >> 4 : w.x[0][c], h = u ? w.bits >> c : w.bits << (4 - c);
        return (n & 0x0F0F0F0Fu) | (h & 0x10101010u);
    }
    template <class F> HK_FN void put(lane_codes<F> &w, int u, int c, int i, u32 v) {
        w.x[0][c] |= (v & 15) << (8 * i + 4 * u);
        w.bits |= (v >> 4) << (8 * i + 4 * u + c);
    }
};
struct unit_q5_0 : unit_fifth_bits<64, 16, false> {};
struct unit_q5_1 : unit_fifth_bits<128, 0, true> {};

struct unit_q8_0 : unit_head<64, 2, false, 64, 32, 0, false, true> {
    static constexpr __device__ int shift(int) { return 0; }
    template <class F> HK_FN u32 code(const lane_codes<F> &w, int u, int c) { return w.x[u][c]; }
    template <class F> HK_FN void put(lane_codes<F> &w, int u, int c, int i, u32 v) { w.x[u][c] |= v << 8 * i; }
};

/* A table of 16 values costs six instructions for four codes. As the sum of a pair it costs four: an entry of a table
 * of eight is the value where its half of the table is meant, and 0 or -1 (the sign of the entry, a mode of the
 * permutation) where not. Two matrix instructions then take one half each. */
template <int C, int P, int SCALES> struct unit_looked_up : unit_head<C, P, false, SCALES, 32, 0, false, true, true> {
    static constexpr __device__ int shift(int) { return 0; }
    template <class F> HK_FN u32 nibbles(const lane_codes<F> &w, int u, int c) {
        return w.x[u >> 1][c] >> 16 * (u & 1);
    }
    /* For the upper half of a table, which lies backwards: ~n as -n - 1, as the pipe of logic has enough to do. */
    template <class F> HK_FN u32 turned_over(const lane_codes<F> &w, u32 n) { return multiply_add(n, w.ones, w.ones); }
    template <class F> HK_FN void put(lane_codes<F> &w, int u, int c, int i, u32 v) {
        w.x[u >> 1][c] |= v << (4 * i + 16 * (u & 1));
    }
};
template <int C, int P, int SCALES> struct unit_iq4 : unit_looked_up<C, P, SCALES> {
    template <class F> HK_FN u32 code(const lane_codes<F> &w, int u, int c) {
        return look_up(0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u, F::nibbles(w, u, c));
    }
    /* All lower entries are negative: -1 where not meant, which the upper ones, one more than the values, undo. */
    template <class F> HK_FN void code_pair(const lane_codes<F> &w, int u, int c, u32 &lower, u32 &upper) {
        u32 n = F::nibbles(w, u, c);
        lower = permute(0xBFAD9881u, 0xF6EADDCFu, n);
        upper = permute(0x36465A72u, 0x020E1A27u, F::turned_over(w, n));
    }
};
struct unit_iq4_nl : unit_iq4<64, 1, 64> {};
struct unit_iq4_xs : unit_iq4<256, 4, 128> {};
struct unit_mxfp4 : unit_looked_up<64, 1, 32> {
    static constexpr int PAIR_ZERO = -1; /* the upper entries are one less than the values, so that all are negative */
    template <class F> HK_FN u32 code(const lane_codes<F> &w, int u, int c) {
        return look_up(0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu, F::nibbles(w, u, c));
    }
    template <class F> HK_FN void code_pair(const lane_codes<F> &w, int u, int c, u32 &lower, u32 &upper) {
        u32 n = F::nibbles(w, u, c);
        lower = permute(0x03020100u, 0x0C080604u, n);
        upper = permute(0xFBF9F7F3u, 0xFFFEFDFCu, turned_over(w, n));
    }
};

struct unit_q2_k : unit_head<256, 2, false, 320, 16, 0, true, false> {
    static constexpr __device__ int shift(int u) { return 2 * (u & 3); }
    template <class F> HK_FN u32 code(const lane_codes<F> &w, int u, int c) {
        return w.x[u >> 2][c] & 0x03030303u << shift(u);
    }
    template <class F> HK_FN void put(lane_codes<F> &w, int u, int c, int i, u32 v) {
        w.x[u >> 2][c] |= v << (8 * i + shift(u));
    }
};
struct unit_q3_k : unit_head<256, 3, false, 224, 16, 4, false, false> {
    static constexpr __device__ int shift(int u) { return u >= 6 ? 5 : 3 * (u & 1); }
    template <class F> HK_FN u32 code(const lane_codes<F> &w, int u, int c) {
        if (u < 6)
            return w.x[u >> 1][c] & (u & 1 ? 0x38383838u : 0x07070707u);
        return (w.x[u - 6][c] & 0xC0C0C0C0u) | (w.x[2][c] >> (u - 5) & 0x20202020u);
    }
    template <class F> HK_FN void put(lane_codes<F> &w, int u, int c, int i, u32 v) {
        if (u < 6) {
            w.x[u >> 1][c] |= v << (8 * i + 3 * (u & 1));
        } else {
            w.x[u - 6][c] |= v >> 1 << (8 * i + 6);
            w.x[2][c] |= (v & 1) << (8 * i + u);
        }
    }
};
struct unit_q5_k : unit_head<256, 5, false, 256, 32, 0, true, false> {
    static constexpr __device__ int shift(int u) { return u < 5 ? 0 : 3; }
    template <class F> HK_FN u32 code(const lane_codes<F> &w, int u, int c) {
        if (u < 5)
            return w.x[u][c] & 0x1F1F1F1Fu;
        u32 top = w.x[u - 5][c] & 0xE0E0E0E0u;
        if (u < 7)
            return top | (w.x[u - 2][c] >> 3 & 0x18181818u);
        return top | (w.x[3][c] >> 1 & 0x10101010u) | (w.x[4][c] >> 2 & 0x08080808u);
    }
    template <class F> HK_FN void put(lane_codes<F> &w, int u, int c, int i, u32 v) {
        if (u < 5) {
            w.x[u][c] |= v << 8 * i;
            return;
        }
        w.x[u - 5][c] |= v >> 2 << (8 * i + 5);
        if (u < 7) {
            w.x[u - 2][c] |= (v & 3) << (8 * i + 6);
        } else {
            w.x[3][c] |= (v >> 1 & 1) << (8 * i + 5);
            w.x[4][c] |= (v & 1) << (8 * i + 5);
        }
    }
};
struct unit_q6_k : unit_head<256, 6, false, 288, 16, 32, false, false> {
    static constexpr __device__ int shift(int u) { return (u & 3) == 3 ? 2 : 0; }
    template <class F> HK_FN u32 code(const lane_codes<F> &w, int u, int c) {
        int p = 3 * (u >> 2), k = u & 3;
        if (k < 3)
            return w.x[p + k][c] & 0x3F3F3F3Fu;
        return (w.x[p + 2][c] & 0xC0C0C0C0u) | (w.x[p + 1][c] >> 2 & 0x30303030u) | (w.x[p][c] >> 4 & 0x0C0C0C0Cu);
    }
    template <class F> HK_FN void put(lane_codes<F> &w, int u, int c, int i, u32 v) {
        int p = 3 * (u >> 2), k = u & 3;
        if (k < 3) {
            w.x[p + k][c] |= v << 8 * i;
            return;
        }
#pragma unroll
        for (int n = 0; n < 3; n++)
            w.x[p + n][c] |= (v >> 2 * n & 3) << (8 * i + 6);
    }
};

/* (code - ZERO) << shift(u) as exact halves, in the A registers of the half-precision m16n8k16 number `step` (0 or 1)
 * of unit u: for its columns, lane t gives the weights 8 t + 4 step .. + 3, the first two as its k = 2 t, the others as
 * its k = 8 + 2 t. */
template <class F> HK_FN void code_halves(const lane_codes<F> &w, int u, int step, u32 (&a)[4]) {
    u32 zero = 0x10001u * (0x6400u + (F::SIGNED ? 128u : (u32)F::ZERO << F::shift(u))); /* of 1024 + code */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        u32 codes = F::code(w, u, 2 * step + r) ^ (F::SIGNED ? 0x80808080u : 0);
        a[r] = half2_sub(permute(codes, 0x64646464u, 0x4140u), zero);
        a[2 + r] = half2_sub(permute(codes, 0x64646464u, 0x4342u), zero);
    }
}

/* Float formats: element i of the rows as they are. */
struct unit_f32 {
    HK_FN float value(const hk_matrix &m, s64 i) { return ((const float *)m.at)[i]; }
};
struct unit_f16 {
    HK_FN float value(const hk_matrix &m, s64 i) { return half_to_float(((const u16 *)m.at)[i]); }
};
struct unit_bf16 {
    HK_FN float value(const hk_matrix &m, s64 i) { return bf16_to_float(((const u16 *)m.at)[i]); }
};

/* Where a record of a row tile lies. */
template <class F> HK_FN const u8 *record_of(const hk_matrix &m, s64 cols, s64 row_tile, s64 record) {
    s64 records = (cols + F::COLUMNS - 1) / F::COLUMNS;
    return m.at + (row_tile * records + record) * F::BYTES;
}

#endif
