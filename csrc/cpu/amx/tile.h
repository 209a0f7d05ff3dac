/* Tile registers: eight of 16 rows of 64 bytes. A product of tiles takes up to 16 columns of the input, 32 codes of
 * each, and the 8 k-groups of a packed panel as they lie in memory, and adds to int32 results [column][row of the
 * panel]: a row of the result is the vector that every kernel of this family has.
 *
 *   0 1   results of 32 weights of two operands (two panels, or the high and the low bytes of one)
 *   2 3   results of the next 32 weights
 *   4 5   codes of the columns for these
 *   6 7   weights
 *
 * Tiles are configured when a matrix product begins and released when it ends: a context switch has nothing to save
 * while the thread does anything else. */
#ifndef HK_AMX_TILE_H
#define HK_AMX_TILE_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* To the compiler tile instructions touch no memory: this stands before tiles read what was stored, and before what
 * they have stored is read. */
#define HK_ORDER() __asm__ volatile("" ::: "memory")

typedef struct hk_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} hk_tile_config;

/* n columns (1..16), k_bytes weights along the row per product. Clears the tiles. */
static inline void hk_tiles_configure(int n, int k_bytes) {
    _Alignas(64) hk_tile_config c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = (uint16_t)(i == 4 || i == 5 ? k_bytes : 64);
        c.rows[i] = (uint8_t)(i < 6 ? n : k_bytes / 4);
    }
    HK_ORDER();
    _tile_loadconfig(&c);
}

/* Two blocks of 32 weights, or one, of a few columns and two operands. */
typedef struct hk_products {
    const int8_t *a; /* columns are rows of a, `stride` bytes apart */
    int64_t stride;
    const uint8_t *b[2]; /* the operands */
    int32_t *results;    /* [operand][16][16], of the second block 4096 bytes on */
    int n_blocks;
} hk_products;

/* Part R of 0 .. 3: the result of the products before leaves tile R, and takes that of the next. */
#define HK_TILES(R, A, B)                                                                                              \
    static inline __attribute__((always_inline)) void hk_tiles_##R(const hk_products *before, const hk_products *next, \
                                                                   int unsigned_b1) {                                  \
        HK_ORDER();                                                                                                    \
        if (before->n_blocks > R / 2)                                                                                  \
            _tile_stored(R, before->results + 1024 * (R / 2) + 256 * (R % 2), 64);                                     \
        if (next->n_blocks > R / 2) {                                                                                  \
            _tile_zero(R);                                                                                             \
            if (R % 2 == 0)                                                                                            \
                _tile_loadd(A, next->a + 32 * (R / 2), next->stride);                                                  \
            _tile_loadd(B, next->b[R % 2] + 512 * (R / 2), 64);                                                        \
            if (R % 2 && unsigned_b1)                                                                                  \
                _tile_dpbsud(R, A, B);                                                                                 \
            else                                                                                                       \
                _tile_dpbssd(R, A, B);                                                                                 \
        }                                                                                                              \
        HK_ORDER();                                                                                                    \
    }
HK_TILES(0, 4, 6)
HK_TILES(1, 4, 7)
HK_TILES(2, 5, 6)
HK_TILES(3, 5, 7)

#endif
