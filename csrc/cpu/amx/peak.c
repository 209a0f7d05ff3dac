#include "cpu/amx/tile.h"
#include "cpu/hk_peak.h"

/* tdpbssd: 16 x 16 x 64 products an instruction, on four independent accumulators. */
int64_t hk_peak_int8_amx(int64_t rounds) {
    hk_tiles_configure(16, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
    return rounds * 4 * 16 * 16 * 64;
}
