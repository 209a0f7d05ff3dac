/* Quantisers of the formats whose blocks are 32 weights with a scale, and perhaps a minimum, of their own. A call does
 * up to eight blocks, one per lane: x, w: float [8][32], zeros behind the last block. */
#ifndef HK_BLOCKS_QUANTIZE_H
#define HK_BLOCKS_QUANTIZE_H

#include "formats/hk_half.h"
#include "put.h"
#include "search.h"

/* The scale as it is stored, and its value. */
HK_INLINE hk_v8 stored(hk_v8 s, uint16_t *half) {
    v_to_half(s, half);
    return v_from_half(half);
}

typedef struct hk_eight {
    hk_v8 x[32], w[32], q[32];
    uint16_t d[HK_LANES], m[HK_LANES];
    uint8_t codes[256];
} hk_eight;

HK_INLINE void eight_symmetric(hk_eight *e, int low, int inward, int outward, float step) {
    hk_v8 s = search_symmetric(e->x, e->w, 32, low, -low - 1, inward, outward, step).s;
    hk_v8 t = v_ratio(v_all(1), stored(s, e->d));
    for (int i = 0; i < 32; i++)
        e->q[i] = v_round(v_clamp(e->x[i] * t, (float)low, (float)(-low - 1)));
    v_codes(e->q, 32, -low, e->codes);
}

HK_INLINE void eight_affine(hk_eight *e, int high, int inward, int outward, float step) {
    hk_affine a = search_affine(e->x, e->w, 32, high, 0, inward, outward, step);
    hk_v8 t = v_ratio(v_all(1), stored(a.s, e->d)), m = stored(-a.m, e->m);
    for (int i = 0; i < 32; i++)
        e->q[i] = v_round(v_clamp((e->x[i] - m) * t, 0, (float)high));
    v_codes(e->q, 32, 0, e->codes);
}

static void blocks_q4_0(hk_eight *e, int n, uint8_t *dst) {
    hk_block_q4_0 *b = (hk_block_q4_0 *)dst;
    eight_symmetric(e, -8, HK_GRID_Q4_0);
    for (int l = 0; l < n; l++) {
        b[l].d = e->d[l];
        put_nibbles(e->codes + 32 * l, 16, b[l].qs);
    }
}

static void blocks_q5_0(hk_eight *e, int n, uint8_t *dst) {
    hk_block_q5_0 *b = (hk_block_q5_0 *)dst;
    eight_symmetric(e, -16, HK_GRID_Q5_0);
    for (int l = 0; l < n; l++) {
        b[l].d = e->d[l];
        put_nibbles(e->codes + 32 * l, 16, b[l].qs);
        put_bits32(e->codes + 32 * l, 4, b[l].qh);
    }
}

static void blocks_q4_1(hk_eight *e, int n, uint8_t *dst) {
    hk_block_q4_1 *b = (hk_block_q4_1 *)dst;
    eight_affine(e, 15, HK_GRID_Q4_1);
    for (int l = 0; l < n; l++) {
        b[l].d = e->d[l], b[l].m = e->m[l];
        put_nibbles(e->codes + 32 * l, 16, b[l].qs);
    }
}

static void blocks_q5_1(hk_eight *e, int n, uint8_t *dst) {
    hk_block_q5_1 *b = (hk_block_q5_1 *)dst;
    eight_affine(e, 31, HK_GRID_Q5_1);
    for (int l = 0; l < n; l++) {
        b[l].d = e->d[l], b[l].m = e->m[l];
        put_nibbles(e->codes + 32 * l, 16, b[l].qs);
        put_bits32(e->codes + 32 * l, 4, b[l].qh);
    }
}

/* No search: the codes are fine enough that the scale which just spans the block is as good as any. */
static void blocks_q8_0(hk_eight *e, int n, uint8_t *dst) {
    hk_block_q8_0 *b = (hk_block_q8_0 *)dst;
    hk_v8 t = v_ratio(v_all(1), stored(v_abs(extreme(e->x, 32)) / 127, e->d));
    for (int i = 0; i < 32; i++)
        e->q[i] = v_round(v_clamp(e->x[i] * t, -127, 127));
    v_codes(e->q, 32, 0, e->codes);
    for (int l = 0; l < n; l++) {
        b[l].d = e->d[l];
        memcpy(b[l].qs, e->codes + 32 * l, 32);
    }
}

static void blocks_iq4_nl(hk_eight *e, int n, uint8_t *dst) {
    hk_block_iq4_nl *b = (hk_block_iq4_nl *)dst;
    hk_v8 t = v_ratio(v_all(1), stored(search_iq4(e->x, e->w, 32, HK_GRID_IQ4).s, e->d));
    for (int i = 0; i < 32; i++)
        e->q[i] = index_iq4(e->x[i] * t);
    v_codes(e->q, 32, 0, e->codes);
    for (int l = 0; l < n; l++) {
        b[l].d = e->d[l];
        put_nibbles(e->codes + 32 * l, 16, b[l].qs);
    }
}

#endif
