/* Raw GGUF rows -> the packed panels of hk_packed.h.
 *
 * Works on one block of 16 rows at a time (a few KB, so both sides stay in the first cache): per row, the codes are
 * spread to bytes, the scales go to the scale plane, and the code planes are assembled 4 bytes (one k-group of one row)
 * at a time. Assembling a word costs one load, shift and or per 4 weights, so packing runs at a few GB/s per core in
 * portable C; transposing bit by bit was the obvious way and is an order of magnitude slower.
 */
#include "hk_packed.h"
#include "hk_codes.h"
#include "hk_quants.h"

/* The words of row r in a plane of n codes of `bits` bits, one code per byte in c: k-group t of a word is shifted up by
 * t * bits within each byte, which no code leaves. */
static inline void put_plane(const uint8_t *restrict c, int n, int bits, uint8_t *restrict dst, int r) {
    int groups = 8 / bits; /* k-groups in a word */
    for (int v = 0; v < n / (4 * groups); v++, c += 4 * groups) {
        uint32_t w = 0, x;
        for (int t = 0; t < groups; t++) {
            memcpy(&x, c + 4 * t, 4);
            w |= x << (bits * t);
        }
        memcpy(dst + 64 * v + 4 * r, &w, 4);
    }
}

static inline void put16(uint8_t *dst, int r, uint16_t x) { memcpy(dst + 2 * r, &x, 2); }

static inline void put_bytes(uint8_t *dst, int r, const uint8_t *src, int n) {
    for (int i = 0; i < n; i++)
        dst[16 * i + r] = src[i];
}

/* Scales of row r of one block -> the block's part of the scale plane, one function per format. */
#define SCALES_D(fmt)                                                                                                  \
    static inline void scales_##fmt(const hk_block_##fmt *b, uint8_t *s, int r) { put16(s, r, b->d); }
#define SCALES_DM(fmt)                                                                                                 \
    static inline void scales_##fmt(const hk_block_##fmt *b, uint8_t *s, int r) {                                      \
        put16(s, r, b->d);                                                                                             \
        put16(s + 32, r, b->m);                                                                                        \
    }
#define SCALES_DS(fmt, n)                                                                                              \
    static inline void scales_##fmt(const hk_block_##fmt *b, uint8_t *s, int r) {                                      \
        put16(s, r, b->d);                                                                                             \
        put_bytes(s + 32, r, (const uint8_t *)b->scales, n);                                                           \
    }
#define SCALES_DMINS(fmt, n)                                                                                           \
    static inline void scales_##fmt(const hk_block_##fmt *b, uint8_t *s, int r) {                                      \
        put16(s, r, b->d);                                                                                             \
        put16(s + 32, r, b->dmin);                                                                                     \
        put_bytes(s + 64, r, b->scales, n);                                                                            \
    }
SCALES_D(q4_0)
SCALES_D(q5_0)
SCALES_D(q8_0)
SCALES_D(iq4_nl)
SCALES_DM(q4_1)
SCALES_DM(q5_1)
SCALES_DS(q3_k, 12)
SCALES_DS(q6_k, 16)
SCALES_DMINS(q2_k, 16)
SCALES_DMINS(q4_k, 12)
SCALES_DMINS(q5_k, 12)

static inline void scales_mxfp4(const hk_block_mxfp4 *b, uint8_t *s, int r) { s[r] = b->e; }

static inline void scales_iq4_xs(const hk_block_iq4_xs *b, uint8_t *s, int r) {
    put16(s, r, b->d);
    put16(s + 32, r, b->scales_h);
    put_bytes(s + 64, r, b->scales_l, 4);
}

/* One block of n_rows rows (row_bytes apart) into its places in the two planes of a panel. */
typedef void (*pack_block_fn)(const uint8_t *raw, int64_t row_bytes, int n_rows, uint8_t *scales, uint8_t *codes);

#define HK_QUANT(NAME, fmt, low_bits, high_bits, kind, zero, sub, mins)                                                \
    static void pack_##fmt(const uint8_t *raw, int64_t row_bytes, int n_rows, uint8_t *scales, uint8_t *codes) {       \
        for (int r = 0; r < n_rows; r++, raw += row_bytes) {                                                           \
            const hk_block_##fmt *b = (const hk_block_##fmt *)raw;                                                     \
            uint8_t low[HK_BLOCK_##NAME], high[HK_BLOCK_##NAME];                                                       \
            _Static_assert(sizeof *b == HK_BYTES_##NAME, "block struct and hk_types.def disagree");                    \
            scales_##fmt(b, scales, r);                                                                                \
            hk_codes_##fmt(b, low, high);                                                                              \
            put_plane(low, HK_BLOCK_##NAME, low_bits, codes, r);                                                       \
            if (high_bits)                                                                                             \
                put_plane(high, HK_BLOCK_##NAME, high_bits ? high_bits : 1, codes + HK_BLOCK_##NAME * 2 * low_bits,    \
                          r);                                                                                          \
        }                                                                                                              \
    }
#include "hk_quants.def"
#undef HK_QUANT

static const pack_block_fn pack_block[HK_N_TYPES] = {
#define HK_QUANT(NAME, fmt, low_bits, high_bits, kind, zero, sub, mins) [HK_##NAME] = pack_##fmt,
#include "hk_quants.def"
#undef HK_QUANT
};

/* Float formats: for each k the 16 rows' values; `size` bytes each. */
static inline void pack_float(const uint8_t *raw, int64_t row_bytes, int n_rows, int64_t cols, int size, uint8_t *dst) {
    for (int64_t k0 = 0; k0 < cols; k0 += 32)
        for (int r = 0; r < n_rows; r++)
            for (int64_t k = k0; k < cols && k < k0 + 32; k++)
                memcpy(dst + (k * HK_PANEL + r) * size, raw + r * row_bytes + k * size, (size_t)size);
}

void hk_pack(hk_type t, const uint8_t *raw, int64_t row_bytes, int64_t rows, int64_t cols, int64_t p0, int64_t p1,
             uint8_t *dst) {
    const hk_type_info *ti = &hk_types[t];
    int64_t panel_bytes = hk_panel_bytes(t, cols), plane = hk_scale_plane_bytes(t, cols), n_blocks = cols / ti->block;
    int64_t s_step = (int64_t)HK_PANEL * ti->scale_bytes, c_step = (int64_t)HK_PANEL * (ti->bytes - ti->scale_bytes);
    for (int64_t p = p0; p < p1; p++) {
        const uint8_t *src = raw + p * HK_PANEL * row_bytes;
        uint8_t *panel = dst + p * panel_bytes, *codes = panel + plane;
        int n_rows = rows - p * HK_PANEL < HK_PANEL ? (int)(rows - p * HK_PANEL) : HK_PANEL;
        if (n_rows < HK_PANEL) /* rows that do not exist are zero bytes */
            memset(panel, 0, (size_t)panel_bytes);
        memset(panel + n_blocks * s_step, 0, (size_t)(plane - n_blocks * s_step));
        memset(codes + n_blocks * c_step, 0, (size_t)(panel_bytes - plane - n_blocks * c_step));
        if (t == HK_F32)
            pack_float(src, row_bytes, n_rows, cols, 4, panel);
        else if (t == HK_F16 || t == HK_BF16)
            pack_float(src, row_bytes, n_rows, cols, 2, panel);
        else
            for (int64_t b = 0; b < n_blocks; b++)
                pack_block[t](src + b * ti->bytes, row_bytes, n_rows, panel + b * s_step, codes + b * c_step);
    }
}
