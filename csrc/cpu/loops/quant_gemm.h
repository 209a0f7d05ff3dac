/* Matrix times many columns: the loops around the micro-kernels.
 *
 *   for each block of 128 rows, for each block of 240 columns, for each piece of 256 weights:
 *     stage the columns (L2), stage the tiles (L1 / L2)
 *     for each tile: for each group of columns: micro-kernel, results accumulate in scratch memory
 *
 * Not in the output, whose rows may lie a power of two apart: 240 of them would share a few cache sets, and every
 * piece would fetch them from far away.
 *
 * A tile of 16 or 32 rows stays in the first cache while the columns stream past it; 128 rows share the staging of the
 * columns. Pieces ascend within a result, which fixes the order of rounding whatever the blocking: a column has the
 * bits that the matrix-vector product gives it. */
#ifndef HK_QUANT_GEMM_H
#define HK_QUANT_GEMM_H

#include "cpu/loops/quant_micro.h"

typedef void (*hk_stage_codes_fn)(const uint8_t *codes, int n32, const hk_sub_scales *s, vi *dst, int rv);

/* What the loops need to know of a format. */
typedef struct hk_gemm_plan {
    const hk_quant *q;
    hk_type type;
    hk_sub_scales_fn sub_scales;
    hk_stage_codes_fn stage_codes;
    const hk_micro_fn *micro[HK_RV + 1]; /* by vectors in the tile, then by index in hk_widths */
} hk_gemm_plan;

/* Widths of the micro-kernels, descending, the last one 1. */
#define HK_WIDTH(nc, fmt, rv) nc,
static const int hk_widths[] = {HK_NC_LIST(HK_WIDTH, , )};
#undef HK_WIDTH

static void hk_stage_tile(const hk_gemm_plan *f, const uint8_t *panels, int n_panels, int64_t K, int64_t k, int n32,
                          hk_tile *o) {
    const hk_quant *q = f->q;
    const int64_t panel_bytes = hk_panel_bytes(f->type, K), plane_bytes = hk_scale_plane_bytes(f->type, K);
    for (int p = 0; p < n_panels; p++, panels += panel_bytes) {
        const uint8_t *plane = panels + k / q->block * 16 * q->scale_bytes;
        hk_sub_scales s;
        f->sub_scales(plane, &s);
        hk_stage_scales(q, plane, n32, &s, o, p * HK_PV, n_panels * HK_PV);
        f->stage_codes(panels + plane_bytes + k / q->block * 16 * q->code_bytes, n32, &s, o->codes + p * HK_PV,
                       n_panels * HK_PV);
    }
}

static void hk_run_tile(const hk_gemm_plan *f, const hk_tile *w, int rv, const hk_column *a, int64_t n, int n32,
                        float *out, int64_t stride, int first) {
    int i = 0;
    while (n) {
        while (hk_widths[i] > n)
            i++;
        f->micro[rv][i](w, a, n32, out, stride, first);
        a += hk_widths[i];
        out += hk_widths[i] * stride;
        n -= hk_widths[i];
    }
}

/* Columns n0 .. n0 + n of the piece at k. */
static void hk_stage_columns(const hk_quant *q, const hk_act *a, int64_t n0, int64_t n, int64_t k, int n32,
                             hk_column *o) {
    for (int64_t i = 0; i < n; i++)
        hk_stage_column(q, a, n0 + i, k, n32, o + i);
}

static void hk_gemm_quant(const hk_gemm_plan *f, const uint8_t *panels, int64_t n_panels, int64_t K, const hk_act *a,
                          int64_t n_cols, float *out, int64_t stride, void *scratch) {
    hk_tile *tiles = scratch;
    hk_column *columns = (hk_column *)(tiles + HK_BLOCK_TILES);
    float *sums = (float *)(columns + HK_BLOCK_COLUMNS); /* [tile][column][HK_TILE_ROWS] */
    const int64_t panel_bytes = hk_panel_bytes(f->type, K), n_pieces = (K + HK_PIECE - 1) / HK_PIECE;
    /* few columns: all their pieces are staged once, and the matrix, which is the traffic, is one sequential stream */
    const int once = n_cols * n_pieces <= HK_BLOCK_COLUMNS;
    const int64_t block_panels = (once ? 1 : HK_BLOCK_TILES) * HK_TILE_PANELS;
    for (int64_t p0 = 0; p0 < n_panels; p0 += block_panels)
        for (int64_t n0 = 0; n0 < n_cols; n0 += HK_BLOCK_COLUMNS) {
            const int64_t n = n_cols - n0 < HK_BLOCK_COLUMNS ? n_cols - n0 : HK_BLOCK_COLUMNS;
            const int64_t p1 = n_panels - p0 < block_panels ? n_panels : p0 + block_panels;
            for (int64_t k = 0; k < K; k += HK_PIECE) {
                const int n32 = K - k < HK_PIECE ? (int)(K - k) / 32 : HK_PIECE / 32;
                hk_column *staged = once ? columns + k / HK_PIECE * n : columns;
                if (!once || p0 == 0)
                    hk_stage_columns(f->q, a, n0, n, k, n32, staged);
                for (int64_t p = p0; p < p1; p += HK_TILE_PANELS) {
                    const int in_tile = p1 - p < HK_TILE_PANELS ? (int)(p1 - p) : HK_TILE_PANELS;
                    hk_tile *tile = tiles + (p - p0) / HK_TILE_PANELS;
                    hk_stage_tile(f, panels + p * panel_bytes, in_tile, K, k, n32, tile);
                    hk_run_tile(f, tile, in_tile * HK_PV, staged, n, n32,
                                sums + (p - p0) / HK_TILE_PANELS * n * HK_TILE_ROWS, HK_TILE_ROWS, k == 0);
                }
            }
            for (int64_t i = 0; i < n; i++)
                for (int64_t p = p0; p < p1; p++)
                    memcpy(out + (n0 + i) * stride + p * HK_PANEL,
                           sums + ((p - p0) / HK_TILE_PANELS * n + i) * HK_TILE_ROWS +
                               (p - p0) % HK_TILE_PANELS * HK_PANEL,
                           HK_PANEL * sizeof(float));
        }
}

#endif
