/* Columns as tiles of bf16 are all that this set adds: its other float operations are avx512's. */
#include <immintrin.h>
#include <string.h>

#include "../hk_cpu.h"

static void hk_to_tiles(const float *x, int64_t K, uint16_t *out) {
    for (int64_t k = 0; k < K; k += 32) {
        const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + k + 16), _mm512_loadu_ps(x + k));
        memcpy(out + HK_COLUMN_TILE * (k / 32), &both, sizeof both);
    }
}

void hk_fill_float_amxbf16(hk_cpu_set *set) { set->op.to_tiles = hk_to_tiles; }
