/* The part of immintrin.h that stands in for tiles, and for bf16. */
#ifndef HK_EMULATED_TILES_H
#define HK_EMULATED_TILES_H

/* Tiles. As strict as the processor: an instruction on tiles that are not configured, or whose sizes do not fit, stops
 * the test. Rows and bytes beyond the configuration are zero. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} hk_emulated_config;
static __thread hk_emulated_config hk_tile_state __attribute__((unused));
static __thread int8_t hk_tile_data[8][16][64] __attribute__((unused));

#define HK_TILE_IS(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            __builtin_trap();                                                                                          \
    } while (0)
#define TILE static __attribute__((noinline, unused)) void

TILE hk_tile_loadconfig(const void *p) {
    hk_tile_state = *(const hk_emulated_config *)p;
    HK_TILE_IS(hk_tile_state.palette == 1 && hk_tile_state.start_row == 0);
    for (int t = 0; t < 16; t++) {
        int bytes = hk_tile_state.bytes[t], rows = hk_tile_state.rows[t];
        HK_TILE_IS(bytes <= 64 && rows <= 16 && !bytes == !rows && (t < 8 || !rows));
    }
    __builtin_memset(hk_tile_data, 0, sizeof hk_tile_data);
}
TILE hk_tile_release(void) { __builtin_memset(&hk_tile_state, 0, sizeof hk_tile_state); }
TILE hk_tile_zero(int t) {
    HK_TILE_IS(hk_tile_state.rows[t]);
    __builtin_memset(hk_tile_data[t], 0, sizeof hk_tile_data[t]);
}
TILE hk_tile_loadd(int t, const void *base, int64_t stride) {
    hk_tile_zero(t);
    for (int r = 0; r < hk_tile_state.rows[t]; r++)
        __builtin_memcpy(hk_tile_data[t][r], (const char *)base + r * stride, hk_tile_state.bytes[t]);
}
TILE hk_tile_stored(int t, void *base, int64_t stride) {
    HK_TILE_IS(hk_tile_state.rows[t]);
    for (int r = 0; r < hk_tile_state.rows[t]; r++)
        __builtin_memcpy((char *)base + r * stride, hk_tile_data[t][r], hk_tile_state.bytes[t]);
}
TILE hk_tile_dot(int d, int a, int b, int unsigned_b) {
    const hk_emulated_config *s = &hk_tile_state;
    HK_TILE_IS(s->rows[d] && s->rows[a] == s->rows[d] && s->bytes[b] == s->bytes[d] && s->bytes[a] == 4 * s->rows[b]);
    for (int m = 0; m < s->rows[d]; m++)
        for (int n = 0; n < s->bytes[d] / 4; n++) {
            int32_t sum;
            __builtin_memcpy(&sum, &hk_tile_data[d][m][4 * n], 4);
            for (int k = 0; k < s->bytes[a]; k++) {
                int w = hk_tile_data[b][k / 4][4 * n + k % 4];
                sum += hk_tile_data[a][m][k] * (unsigned_b ? w & 255 : w);
            }
            __builtin_memcpy(&hk_tile_data[d][m][4 * n], &sum, 4);
        }
}
/* bf16 as the processor multiplies it: sums of even and of odd weights, each a chain of fused steps, then both and the
 * old value; denormals count as zero. */
EMU float hk_flushed(float x) {
    return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; /* false for NaN */
}
EMU float hk_float_of_bf16(const int8_t *p) {
    uint16_t half;
    __builtin_memcpy(&half, p, 2);
    uint32_t bits = (uint32_t)half << 16;
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return hk_flushed(x);
}
TILE hk_tile_dot_bf16(int d, int a, int b) {
    const hk_emulated_config *s = &hk_tile_state;
    HK_TILE_IS(s->rows[d] && s->rows[a] == s->rows[d] && s->bytes[b] == s->bytes[d] && s->bytes[a] == 4 * s->rows[b]);
    for (int m = 0; m < s->rows[d]; m++)
        for (int n = 0; n < s->bytes[d] / 4; n++) {
            float old, sum[2] = {0, 0};
            __builtin_memcpy(&old, &hk_tile_data[d][m][4 * n], 4);
            for (int k = 0; k < s->bytes[a] / 2; k++)
                sum[k % 2] = hk_flushed(__builtin_fmaf(hk_float_of_bf16(&hk_tile_data[a][m][2 * k]),
                                                       hk_float_of_bf16(&hk_tile_data[b][k / 2][4 * n + 2 * (k % 2)]),
                                                       sum[k % 2]));
            old = hk_flushed(hk_flushed(old) + hk_flushed(sum[0] + sum[1]));
            __builtin_memcpy(&hk_tile_data[d][m][4 * n], &old, 4);
        }
}
#undef _tile_dpbf16ps
#define _tile_dpbf16ps hk_tile_dot_bf16

/* Two vectors of floats as bf16, b first: to the nearest, ties to even, denormals to zero, NaN stays one. */
#define __m512bh hk_m512i
static __attribute__((noinline, unused)) hk_m512i hk_cvtne2ps_pbh(hk_m512 a, hk_m512 b) {
    float x[32];
    uint16_t out[32];
    hk_m512i r;
    __builtin_memcpy(x, &b, 64);
    __builtin_memcpy(x + 16, &a, 64);
    for (int i = 0; i < 32; i++) {
        uint32_t u;
        float f = hk_flushed(x[i]);
        __builtin_memcpy(&u, &f, 4);
        out[i] = (uint16_t)(f != f ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    __builtin_memcpy(&r, out, 64);
    return r;
}
static __attribute__((noinline, unused)) hk_m512i hk_permutexvar_epi16(hk_m512i order, hk_m512i x) {
    uint16_t at[32], from[32], to[32];
    __builtin_memcpy(at, &order, 64);
    __builtin_memcpy(from, &x, 64);
    for (int i = 0; i < 32; i++)
        to[i] = from[at[i] & 31];
    __builtin_memcpy(&x, to, 64);
    return x;
}
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh hk_cvtne2ps_pbh
#undef _mm512_permutexvar_epi16
#define _mm512_permutexvar_epi16 hk_permutexvar_epi16

#undef _tile_loadconfig
#define _tile_loadconfig hk_tile_loadconfig
#undef _tile_release
#define _tile_release hk_tile_release
#undef _tile_zero
#define _tile_zero hk_tile_zero
#undef _tile_loadd
#define _tile_loadd hk_tile_loadd
#undef _tile_stored
#define _tile_stored hk_tile_stored
#undef _tile_dpbssd
#define _tile_dpbssd(d, a, b) hk_tile_dot(d, a, b, 0)
#undef _tile_dpbsud
#define _tile_dpbsud(d, a, b) hk_tile_dot(d, a, b, 1)

#endif
