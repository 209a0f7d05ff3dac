/* Staging for matrix times many columns: a tile of rows and a column, each for a piece of 256 weights along the row, as
 * the micro-kernel reads them. Unpacking is paid once per tile and column block, and its cost vanishes over the
 * columns.
 *
 * Columns are copied because rows of K codes a power of two apart fall into few cache sets. */
#ifndef HK_QUANT_STAGE_H
#define HK_QUANT_STAGE_H

#include "cpu/loops/quant_unpack.h"

enum {
    HK_RV = 2,                      /* vectors of rows in a tile */
    HK_TILE_PANELS = HK_RV / HK_PV, /* panels in a tile */
    HK_TILE_ROWS = HK_TILE_PANELS * HK_PANEL,
    HK_PIECE = 256 /* weights along the row */
};

/* [..][rv]: rv vectors side by side, rv <= HK_RV */
typedef struct hk_tile {
    vi codes[HK_PIECE / 4 * 2 * HK_RV]; /* per k-group; int16 weights of signed formats: even bytes, then odd */
    hk_scale scale[16 * HK_RV];         /* per sub-block */
    vf mins[16 * HK_RV];                /* per sub-block */
    vf d[8 * HK_RV], m[8 * HK_RV];      /* per block */
} hk_tile;

typedef struct hk_column {
    int32_t
        codes[HK_PIECE / 4 * 2]; /* k-groups; int16 for signed formats: even bytes, and from the middle on odd bytes */
    int32_t start[16];           /* of the accumulators, per sub-block */
    float d[8], s[16];           /* scales; scale times sum of a sub-block, for minima and offsets */
} hk_column;

enum { HK_BLOCK_COLUMNS = 240, HK_BLOCK_TILES = 8 / HK_TILE_PANELS };
_Static_assert(sizeof(hk_tile) * HK_BLOCK_TILES + sizeof(hk_column) * HK_BLOCK_COLUMNS +
                       sizeof(float) * HK_BLOCK_TILES * HK_BLOCK_COLUMNS * HK_TILE_ROWS <=
                   HK_GEMM_SCRATCH,
               "staging must fit the scratch memory");

HK_INLINE vi hk_even16(vi x) { return vi_sar16(vi_shl16(x, 8), 8); }
HK_INLINE vi hk_odd16(vi x) { return vi_sar16(x, 8); }

/* Codes of one panel: n32 groups of 32 weights. s: integer scales, multiplied into int16 weights (IQ4_XS reaches 32 *
 * 127). */
HK_INLINE void hk_stage_codes(const hk_quant *q, const uint8_t *codes, int n32, const hk_sub_scales *s, vi *dst,
                              int rv) {
    const int bytes32 = 16 * q->code_bytes / (q->block / 32);
    vi w[8];
    for (int c = 0; c < n32; c++) {
        const uint8_t *block = q->block == 256 ? codes : codes + c * bytes32;
        HK_UNROLL
        for (int line = 0; line < bytes32; line += 64)
            __builtin_prefetch(codes + bytes32 * (c + 8) + line);
        HK_UNROLL
        for (int h = 0; h < HK_PV; h++) {
            hk_unpack8(q, block, q->block == 256 ? c : 0, h, w);
            vi scale = hk_is_signed(q) && q->block == 256 ? vi_rows16x2(s->s[c], h) : vi_set16(1);
            HK_UNROLL
            for (int t = 0; t < 8; t++) {
                if (!hk_is_signed(q)) {
                    vi_store(dst + (8 * c + t) * rv + h, w[t]);
                    continue;
                }
                vi_store(dst + (16 * c + 2 * t) * rv + h, vi_mullo16(hk_even16(w[t]), scale));
                vi_store(dst + (16 * c + 2 * t + 1) * rv + h, vi_mullo16(hk_odd16(w[t]), scale));
            }
        }
    }
}

/* Scales of one panel, from the sub-scales of a 256-block or from n32 blocks of 32. */
static void hk_stage_scales(const hk_quant *q, const uint8_t *plane, int n32, const hk_sub_scales *s, hk_tile *o,
                            int at, int rv) {
    for (int h = 0; h < HK_PV; h++, at++) {
        for (int i = 0; i < (q->block == 256 ? 1 : n32); i++) {
            o->d[i * rv + at] = hk_scale_d(q, plane + i * 16 * q->scale_bytes, h);
            if (q->mins)
                o->m[i * rv + at] = hk_scale_m(plane + i * 16 * q->scale_bytes, h);
        }
        if (q->block == 32)
            continue;
        for (int j = 0; j < 256 / q->sub; j++)
            o->scale[j * rv + at] = hk_scale_rows(s->s[j], h);
        for (int j = 0; q->mins && j < 256 / q->sub; j++)
            o->mins[j * rv + at] = vf_of_bytes(s->m[j], h);
    }
}

/* Column n, n32 groups of 32 weights from weight k on. */
static void hk_stage_column(const hk_quant *q, const hk_act *a, int64_t n, int64_t k, int n32, hk_column *o) {
    const int8_t *codes = a->codes + n * a->codes_stride + k;
    const int16_t *sums = a->sums + n * a->sums_stride + k / 16;
    const float *d = a->scales + n * a->scales_stride + k / 32;
    for (int i = 0; i < 32 * n32;
         i += (int)sizeof(vi)) { /* may read 32 bytes past an odd n32: rows end 64-byte aligned */
        vi x = vi_load(codes + i);
        vi_store((int8_t *)o->codes + i, hk_is_signed(q) ? hk_even16(x) : x);
        if (hk_is_signed(q))
            vi_store((int8_t *)o->codes + HK_PIECE + i, hk_odd16(x));
    }
    if (hk_zero_point(q))
        hk_starts(q, codes, sums, 32 * n32 / q->sub, o->start);
    if (q->mins)
        hk_scaled_sums(q, d, sums, n32, o->s);
    memcpy(o->d, d, (size_t)n32 * sizeof *d);
}

#endif
