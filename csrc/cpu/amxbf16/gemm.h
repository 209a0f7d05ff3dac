/* Matrix times many columns with tiles of bf16.
 *
 *   for each block of 16 panels, for each block of 256 columns, for each piece of 1024 weights along the row:
 *     for each two panels: stage them; for each 32 columns: products over the piece, sums in four tiles
 *
 * Sums lie in scratch memory between pieces. The columns of a piece, 512 KB, stay in the second cache; the whole of
 * them does not, and comes from the third once for each block of panels.
 *
 * What limits it, GMAC/s of one undisturbed core / of 16 at once (Emerald Rapids, virtual): products in registers 1400
 * / 19500, with a tile load from the first cache for each 1380 / 10000 to 14000, with columns and panels from the
 * second 500 to 700 / 4800 to 6300, and with staging 400 to 500 / 4300 to 4900. Four products want 4 KB, and a core
 * gets 25 to 32 bytes a cycle from its second cache: whoever is to be faster must find what he needs in the first.
 *
 * What lost (Q4_K, 512 columns, 16 threads; figures of one line are of one run): columns a power of two apart, which
 * meet in few cache sets: 3575 instead of 4735 GMAC/s, without staging. 8 panels times 512 columns in a call, tokens/s
 * of the 7B shape: 363 instead of 401. Pieces of 512: 364. A hint that columns are not needed again (tileloaddt1): 357,
 * with pieces of 512 380. Four panels times 16 columns over pieces of 256, so that panels stay in the first cache: 406,
 * the same. Staging the next panels between the products, fetching tiles 1, 2 or 4 ahead into the first cache: the same
 * within 5
 * %. All four loads in front of the products: 3926 instead of 4379 GMAC/s. */
#ifndef HK_BF16_GEMM_H
#define HK_BF16_GEMM_H

#include "cpu/amxbf16/stage.h"
#include "cpu/amxbf16/tile.h"

enum { HK_BF16_PIECE = 1024, HK_BF16_PANELS = 16, HK_BF16_COLUMNS = 256, HK_GROUP = 16 };

typedef struct hk_bf16_scratch {
    _Alignas(64) uint8_t panels[2][HK_BF16_PIECE / 32 * HK_BF16_TILE];
    hk_sums sums[HK_BF16_PANELS][HK_BF16_COLUMNS / HK_GROUP];
} hk_bf16_scratch;
_Static_assert(sizeof(hk_bf16_scratch) <= HK_GEMM_SCRATCH, "staging must fit the scratch memory");

/* n tiles of a panel into scratch memory. */
typedef void (*hk_stage_fn)(const uint8_t *plane, const uint8_t *codes, int n, uint8_t *out);

/* np panels times n columns over n_tiles * 32 weights. plane, codes: the first panel's, at the first weight. */
static void hk_run_piece(hk_stage_fn stage, const uint8_t *plane, const uint8_t *codes, int64_t panel_bytes, int np,
                         const uint16_t *a, int64_t a_stride, int64_t n, int n_tiles, int first, hk_bf16_scratch *s) {
    for (int p = 0; p < np; p += 2) {
        const int second = p + 1 < np;
        for (int h = 0; h <= second; h++)
            stage(plane + (p + h) * panel_bytes, codes + (p + h) * panel_bytes, n_tiles, s->panels[h]);
        for (int64_t i = 0; HK_GROUP * i < n; i += 2) {
            /* what does not exist is computed twice: the sums of pairs are there in any case */
            const int64_t next = HK_GROUP * (i + 1) < n ? a_stride : 0;
            const uint16_t *columns = a + i * a_stride;
            const hk_square q = {{(const uint8_t *)columns, (const uint8_t *)(columns + next)},
                                 {s->panels[0], s->panels[second]},
                                 {{&s->sums[p][i], &s->sums[p + 1][i]}, {&s->sums[p][i + 1], &s->sums[p + 1][i + 1]}}};
            hk_square_run(&q, n_tiles, first);
        }
    }
}

HK_INLINE void hk_bf16_gemm(const hk_quant *q, hk_type t, hk_stage_fn stage, const uint8_t *panels, int64_t n_panels,
                            int64_t K, const hk_act *a, int64_t n_cols, float *out, int64_t stride,
                            hk_bf16_scratch *s) {
    const int64_t bytes = hk_panel_bytes(t, K), planes = hk_scale_plane_bytes(t, K);
    hk_tiles_configure(HK_GROUP, 64);
    for (int64_t p0 = 0; p0 < n_panels; p0 += HK_BF16_PANELS)
        for (int64_t n0 = 0; n0 < n_cols; n0 += HK_BF16_COLUMNS) {
            const int64_t n = n_cols - n0 < HK_BF16_COLUMNS ? n_cols - n0 : HK_BF16_COLUMNS;
            const int np = n_panels - p0 < HK_BF16_PANELS ? (int)(n_panels - p0) : HK_BF16_PANELS;
            for (int64_t k = 0; k < K; k += HK_BF16_PIECE) {
                const uint8_t *plane = panels + p0 * bytes + k / q->block * 16 * q->scale_bytes;
                const uint8_t *codes = panels + p0 * bytes + planes + k / q->block * 16 * q->code_bytes;
                const uint16_t *columns = a->tiles + n0 / HK_GROUP * a->tiles_stride + k / 32 * HK_COLUMN_TILE;
                hk_run_piece(stage, plane, codes, bytes, np, columns, a->tiles_stride, n,
                             (int)((K - k < HK_BF16_PIECE ? K - k : HK_BF16_PIECE) / 32), k == 0, s);
            }
            for (int64_t i = 0; i < n; i++)
                for (int p = 0; p < np; p++)
                    vf_store(out + (n0 + i) * stride + (p0 + p) * HK_PANEL,
                             vf_load(s->sums[p][i / HK_GROUP][i % HK_GROUP]));
        }
    _tile_release();
}

#endif
