/* Raw GGUF blocks -> one byte per code, in weight order, split into the low and the high plane of hk_packed.h. Used by
 * the packer and by the dequantiser. Plain loops of 16 or 32 bytes, which compilers turn into baseline vector code. */
#ifndef HK_CODES_H
#define HK_CODES_H

#include <string.h>
#include "hk_blocks.h"

/* n bytes of two codes each -> n low nibbles, then n high nibbles. */
static inline void hk_nibbles(const uint8_t *restrict q, int n, uint8_t *restrict out) {
    for (int i = 0; i < n; i++)
        out[i] = q[i] & 15;
    for (int i = 0; i < n; i++)
        out[n + i] = q[i] >> 4;
}

/* 32 bits -> 32 bytes of 0 or 1: each byte is copied to eight, masked to its own bit, and carried to bit 7. */
static inline void hk_bits32(const uint8_t *restrict q, uint8_t *restrict out) {
    for (int i = 0; i < 4; i++) {
        uint64_t t = (q[i] * 0x0101010101010101ull) & 0x8040201008040201ull;
        t = ((t + 0x7f7f7f7f7f7f7f7full) >> 7) & 0x0101010101010101ull;
        memcpy(out + 8 * i, &t, 8);
    }
}

/* The field of `mask` at bit `shift` of 32 bytes. */
static inline void hk_field32(const uint8_t *restrict q, int shift, int mask, uint8_t *restrict out) {
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(q[i] >> shift) & mask;
}

static inline void hk_codes_q4_0(const hk_block_q4_0 *b, uint8_t *low, uint8_t *high) {
    (void)high;
    hk_nibbles(b->qs, 16, low);
}

static inline void hk_codes_q4_1(const hk_block_q4_1 *b, uint8_t *low, uint8_t *high) {
    (void)high;
    hk_nibbles(b->qs, 16, low);
}

static inline void hk_codes_q5_0(const hk_block_q5_0 *b, uint8_t *low, uint8_t *high) {
    hk_nibbles(b->qs, 16, low);
    hk_bits32(b->qh, high);
}

static inline void hk_codes_q5_1(const hk_block_q5_1 *b, uint8_t *low, uint8_t *high) {
    hk_nibbles(b->qs, 16, low);
    hk_bits32(b->qh, high);
}

static inline void hk_codes_q8_0(const hk_block_q8_0 *b, uint8_t *low, uint8_t *high) {
    (void)high;
    memcpy(low, b->qs, 32);
}

static inline void hk_codes_iq4_nl(const hk_block_iq4_nl *b, uint8_t *low, uint8_t *high) {
    (void)high;
    hk_nibbles(b->qs, 16, low);
}

static inline void hk_codes_mxfp4(const hk_block_mxfp4 *b, uint8_t *low, uint8_t *high) {
    (void)high;
    hk_nibbles(b->qs, 16, low);
}

static inline void hk_codes_q2_k(const hk_block_q2_k *b, uint8_t *low, uint8_t *high) {
    (void)high;
    for (int j = 0; j < 8; j++)
        hk_field32(b->qs + 32 * (j / 4), 2 * (j % 4), 3, low + 32 * j);
}

static inline void hk_codes_q3_k(const hk_block_q3_k *b, uint8_t *low, uint8_t *high) {
    for (int j = 0; j < 8; j++) {
        hk_field32(b->qs + 32 * (j / 4), 2 * (j % 4), 3, low + 32 * j);
        hk_field32(b->hmask, j, 1, high + 32 * j);
    }
}

static inline void hk_codes_q4_k(const hk_block_q4_k *b, uint8_t *low, uint8_t *high) {
    (void)high;
    for (int c = 0; c < 4; c++)
        hk_nibbles(b->qs + 32 * c, 32, low + 64 * c);
}

static inline void hk_codes_q5_k(const hk_block_q5_k *b, uint8_t *low, uint8_t *high) {
    for (int c = 0; c < 4; c++)
        hk_nibbles(b->qs + 32 * c, 32, low + 64 * c);
    for (int j = 0; j < 8; j++)
        hk_field32(b->qh, j, 1, high + 32 * j);
}

static inline void hk_codes_q6_k(const hk_block_q6_k *b, uint8_t *low, uint8_t *high) {
    for (int h = 0; h < 2; h++)
        hk_nibbles(b->ql + 64 * h, 64, low + 128 * h);
    for (int j = 0; j < 8; j++)
        hk_field32(b->qh + 32 * (j / 4), 2 * (j % 4), 3, high + 32 * j);
}

static inline void hk_codes_iq4_xs(const hk_block_iq4_xs *b, uint8_t *low, uint8_t *high) {
    (void)high;
    for (int j = 0; j < 8; j++)
        hk_nibbles(b->qs + 16 * j, 16, low + 32 * j);
}

#endif
