/* One block of 256 weights each: the searches of supers.h, written down as the formats have it. */
#ifndef HK_KQUANTS_H
#define HK_KQUANTS_H

#include "supers.h"

/* Lanes to integers and codes: sub-block g * 8 + l. */
HK_INLINE void put_integers(const hk_v8 *lanes, int groups, int *out) {
    for (int g = 0; g < groups; g++)
        for (int l = 0; l < HK_LANES; l++)
            out[g * HK_LANES + l] = (int)lanes[g][l];
}

HK_INLINE void put_codes(const hk_super *b, int groups, int zero, uint8_t *codes) {
    int n = 32 / groups;
    for (int g = 0; g < groups; g++)
        v_codes(b->q + g * n, n, zero, codes + g * 128);
}

static void block_q2_k(hk_super *b, uint8_t *dst) {
    hk_block_q2_k *o = (hk_block_q2_k *)dst;
    uint8_t codes[256];
    int k[16], l[16];
    super_affine(b, 2, 3, 15, HK_GRID_Q2_K);
    put_codes(b, 2, 0, codes);
    put_integers(b->k, 2, k);
    put_integers(b->l, 2, l);
    for (int j = 0; j < 16; j++)
        o->scales[j] = (uint8_t)(k[j] | l[j] << 4);
    put_q2_k_codes(codes, o->qs);
    o->d = b->d_half, o->dmin = b->dmin_half;
}

static void block_q3_k(hk_super *b, uint8_t *dst) {
    hk_block_q3_k *o = (hk_block_q3_k *)dst;
    uint8_t codes[256];
    int k[16];
    super_symmetric(KIND_PLAIN, b, 2, -4, 3, -32, 31, HK_GRID_Q3_K);
    put_codes(b, 2, 4, codes);
    put_integers(b->k, 2, k);
    put_q3_k_scales(k, o->scales);
    put_q2_k_codes(codes, o->qs);
    memset(o->hmask, 0, 32);
    for (int j = 0; j < 8; j++)
        put_field32(codes + 32 * j, 2, 1, j, o->hmask);
    o->d = b->d_half;
}

static void block_q4_k(hk_super *b, uint8_t *dst) {
    hk_block_q4_k *o = (hk_block_q4_k *)dst;
    uint8_t codes[256];
    int k[8], l[8];
    super_affine(b, 1, 15, 63, HK_GRID_Q4_K);
    put_codes(b, 1, 0, codes);
    put_integers(b->k, 1, k);
    put_integers(b->l, 1, l);
    put_scale_mins(k, l, o->scales);
    put_q4_k_codes(codes, o->qs);
    o->d = b->d_half, o->dmin = b->dmin_half;
}

static void block_q5_k(hk_super *b, uint8_t *dst) {
    hk_block_q5_k *o = (hk_block_q5_k *)dst;
    uint8_t codes[256];
    int k[8], l[8];
    super_affine(b, 1, 31, 63, HK_GRID_Q5_K);
    put_codes(b, 1, 0, codes);
    put_integers(b->k, 1, k);
    put_integers(b->l, 1, l);
    put_scale_mins(k, l, o->scales);
    put_q4_k_codes(codes, o->qs);
    memset(o->qh, 0, 32);
    for (int j = 0; j < 8; j++)
        put_field32(codes + 32 * j, 4, 1, j, o->qh);
    o->d = b->d_half, o->dmin = b->dmin_half;
}

static void block_q6_k(hk_super *b, uint8_t *dst) {
    hk_block_q6_k *o = (hk_block_q6_k *)dst;
    uint8_t codes[256];
    int k[16];
    super_symmetric(KIND_PLAIN, b, 2, -32, 31, -128, 127, HK_GRID_Q6_K);
    put_codes(b, 2, 32, codes);
    put_integers(b->k, 2, k);
    for (int j = 0; j < 16; j++)
        o->scales[j] = (int8_t)k[j];
    for (int h = 0; h < 2; h++)
        put_nibbles(codes + 128 * h, 64, o->ql + 64 * h);
    memset(o->qh, 0, 64);
    for (int j = 0; j < 8; j++)
        put_field32(codes + 32 * j, 4, 3, 2 * (j % 4), o->qh + 32 * (j / 4));
    o->d = b->d_half;
}

static void block_iq4_xs(hk_super *b, uint8_t *dst) {
    hk_block_iq4_xs *o = (hk_block_iq4_xs *)dst;
    uint8_t codes[256];
    int k[8];
    super_symmetric(KIND_IQ4, b, 1, 0, 0, -32, 31, HK_GRID_IQ4_XS);
    hk_v8 t = v_ratio(v_all(1), b->d * b->k[0]);
    for (int i = 0; i < 32; i++)
        b->q[i] = index_iq4(b->x[i] * t);
    put_codes(b, 1, 0, codes);
    put_integers(b->k, 1, k);
    put_iq4_xs_scales(k, o);
    for (int j = 0; j < 8; j++)
        put_nibbles(codes + 32 * j, 16, o->qs + 16 * j);
    o->d = b->d_half;
}

#endif
