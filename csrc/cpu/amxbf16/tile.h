/* Tile registers: eight of 16 rows of 64 bytes, all of them whole.
 *
 *   0 .. 3   sums of 16 columns and 16 rows: two groups of columns times two panels
 *   4 5      columns, 32 values of each
 *   6 7      panels, 32 weights of each row */
#ifndef HK_BF16_TILE_H
#define HK_BF16_TILE_H

#include "cpu/amx/tile.h"

/* Sums of 16 columns with a panel: [column][row]. */
typedef float hk_sums[16][16];

/* Two groups of columns times two panels; tiles of each lie side by side. */
typedef struct hk_square {
    const uint8_t *a[2], *b[2];
    hk_sums *c[2][2]; /* [group][panel] */
} hk_square;

/* n tiles of each, added to the sums, or from zero. */
static inline __attribute__((always_inline)) void hk_square_run(const hk_square *s, int n, int from_zero) {
    HK_ORDER();
    if (from_zero) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, s->c[0][0], 64);
        _tile_loadd(1, s->c[0][1], 64);
        _tile_loadd(2, s->c[1][0], 64);
        _tile_loadd(3, s->c[1][1], 64);
    }
    for (int64_t at = 0; at < 1024 * (int64_t)n; at += 1024) {
        _tile_loadd(6, s->b[0] + at, 64);
        _tile_loadd(4, s->a[0] + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, s->b[1] + at, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, s->a[1] + at, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, s->c[0][0], 64);
    _tile_stored(1, s->c[0][1], 64);
    _tile_stored(2, s->c[1][0], 64);
    _tile_stored(3, s->c[1][1], 64);
    HK_ORDER();
}

#endif
