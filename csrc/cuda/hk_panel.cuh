/* The CPU set's panels of 16 rows (formats/hk_packed.h), read as though their blocks lay as in the file: a panel has
 * the rows of a tile of the device layout, and all bytes of the file's blocks in another order. */
#ifndef HK_PANEL_CUH
#define HK_PANEL_CUH

#include "hk_scales.cuh"

/* Where byte `at` of a row's block lies in the scale plane. Of a block's bytes that hold no codes, the halves begin at
 * HALVES, the others at BYTES; in the plane the others begin at BYTES_AT. */
template <int HALVES, int BYTES, int BYTES_AT> struct scale_places {
    HK_FN int place(int at, int row) {
        u32 h = (u32)(at - HALVES);
        return h < 4 ? 32 * (int)(h >> 1) + 2 * row + (int)(h & 1) : BYTES_AT + 16 * (at - BYTES) + row;
    }
};
template <class F> struct scale_plane;
template <> struct scale_plane<unit_q4_0> : scale_places<0, 4, 0> {};
template <> struct scale_plane<unit_q4_1> : scale_places<0, 4, 0> {};
template <> struct scale_plane<unit_q5_0> : scale_places<0, 4, 0> {};
template <> struct scale_plane<unit_q5_1> : scale_places<0, 4, 0> {};
template <> struct scale_plane<unit_q8_0> : scale_places<0, 4, 0> {};
template <> struct scale_plane<unit_iq4_nl> : scale_places<0, 4, 0> {};
template <> struct scale_plane<unit_mxfp4> : scale_places<8, 0, 0> {}; /* no halves: one byte */
template <> struct scale_plane<unit_q2_k> : scale_places<80, 0, 64> {};
template <> struct scale_plane<unit_q3_k> : scale_places<108, 96, 32> {};
template <> struct scale_plane<unit_q4_k> : scale_places<0, 4, 64> {};
template <> struct scale_plane<unit_q5_k> : scale_places<0, 4, 64> {};
template <> struct scale_plane<unit_q6_k> : scale_places<208, 192, 32> {};
template <> struct scale_plane<unit_iq4_xs> : scale_places<0, 4, 64> {};

/* Bits of the two planes of codes. */
template <class F> struct code_planes;
#define HK_QUANT(NAME, lower, low, high, codes, zero, sub, mins)                                                       \
    template <> struct code_planes<unit_##lower> {                                                                     \
        static constexpr int LOW = low, HIGH = high;                                                                   \
    };
#include "../formats/hk_quants.def"
#undef HK_QUANT

/* A block of one row of a panel. */
template <class F> struct panel_block {
    const u8 *scales, *codes;
    int row;
    HK_MEMBER u8 operator[](int at) const { return scales[scale_plane<F>::place(at, row)]; }
    HK_MEMBER operator bool() const { return scales != 0; }
};

/* The blocks of a packed matrix. */
template <class F> struct packed_panels {
    typedef panel_block<F> block;
    const u8 *panels;
    s64 per_row;
    int block_bytes, scale_bytes;
    HK_MEMBER block at(s64 row, s64 i) const {
        s64 code_bytes = 16 * (block_bytes - scale_bytes), plane = (per_row * 16 * scale_bytes + 63) & ~63ll;
        const u8 *panel = panels + (row >> 4) * (plane + ((per_row * code_bytes + 63) & ~63ll));
        return {panel + i * 16 * scale_bytes, panel + plane + i * code_bytes, (int)(row & 15)};
    }
};

/* The four codes of k-group `g` of a row, as bytes. */
template <int BITS> HK_FN u32 codes_of_group(const u8 *plane, int g, int row) {
    constexpr int GROUPS = 8 / BITS; /* in a word */
    u32 word = *(const u32 *)(plane + 64 * (g / GROUPS) + 4 * row);
    return word >> BITS * (g % GROUPS) & 0x01010101u * ((1u << BITS) - 1);
}
template <class F> HK_FN u32 four_codes(F *, const panel_block<F> &b, int j, int l) {
    constexpr int LOW = code_planes<F>::LOW, HIGH = code_planes<F>::HIGH, BLOCK = F::COLUMNS == 64 ? 32 : F::COLUMNS;
    int g = (32 * j + l) >> 2;
    u32 codes = codes_of_group<LOW>(b.codes, g, b.row);
    if constexpr (HIGH != 0)
        codes |= codes_of_group<HIGH ? HIGH : 1>(b.codes + BLOCK * 2 * LOW, g, b.row) << LOW;
    return codes;
}

/* Float formats: a panel has, for each column, the values of its 16 rows; the device layout is the rows. A lane's share
 * of 32 columns of a panel, `i` of all: one column. */
typedef u32 float_of_f32;
typedef u16 float_of_f16;
typedef u16 float_of_bf16;
template <class T> HK_FN void unpack_share(const hk_convert_args &a, s64 i, int lane) {
    s64 parts = (a.cols + 31) / 32, panel = i / parts, k = i % parts * 32 + lane;
    s64 panel_bytes = (a.cols * 16 * (s64)sizeof(T) + 63) & ~63ll;
    const T *from = (const T *)(a.raw + panel * panel_bytes) + 16 * k;
    T *to = (T *)a.to.at + 16 * panel * a.cols + k;
#pragma unroll
    for (int r = 0; r < 16; r++)
        if (k < a.cols && 16 * panel + r < a.rows)
            to[r * a.cols] = from[r];
}

#endif
