/* One byte per code -> the blocks of the GGUF formats: the inverse of formats/hk_codes.h. `codes` are in weight order,
 * both planes together. */
#ifndef HK_PUT_H
#define HK_PUT_H

#include "formats/hk_blocks.h"
#include "lanes.h"

/* 2 n codes -> n bytes: the low nibbles are the first n codes. */
HK_INLINE void put_nibbles(const uint8_t *codes, int n, uint8_t *q) {
    for (int i = 0; i < n; i++)
        q[i] = (uint8_t)((codes[i] & 15) | codes[n + i] << 4);
}

/* Bit `bit` of 32 codes -> 32 bits. */
HK_INLINE void put_bits32(const uint8_t *codes, int bit, uint8_t *q) {
    for (int i = 0; i < 4; i++) {
        int byte = 0;
        for (int j = 0; j < 8; j++)
            byte |= ((codes[8 * i + j] >> bit) & 1) << j;
        q[i] = (uint8_t)byte;
    }
}

/* The field of `mask` above `from` of 32 codes joins 32 bytes at bit `shift`. */
HK_INLINE void put_field32(const uint8_t *codes, int from, int mask, int shift, uint8_t *q) {
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)(q[i] | ((codes[i] >> from) & mask) << shift);
}

HK_INLINE void put_q4_k_codes(const uint8_t *codes, uint8_t *qs) {
    for (int c = 0; c < 4; c++)
        put_nibbles(codes + 64 * c, 32, qs + 32 * c);
}

HK_INLINE void put_q2_k_codes(const uint8_t *codes, uint8_t *qs) {
    memset(qs, 0, 64);
    for (int j = 0; j < 8; j++)
        put_field32(codes + 32 * j, 0, 3, 2 * (j % 4), qs + 32 * (j / 4));
}

/* Eight 6-bit scales and mins in the 12 bytes of Q4_K and Q5_K. */
HK_INLINE void put_scale_mins(const int *scale, const int *min, uint8_t *s) {
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)((scale[j] & 63) | (scale[j + 4] >> 4) << 6);
        s[j + 4] = (uint8_t)((min[j] & 63) | (min[j + 4] >> 4) << 6);
        s[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

/* Sixteen scales of -32 to 31 in the 12 bytes of Q3_K. */
HK_INLINE void put_q3_k_scales(const int *scale, uint8_t *s) {
    memset(s, 0, 12);
    for (int j = 0; j < 16; j++) {
        int u = scale[j] + 32;
        s[j % 8] = (uint8_t)(s[j % 8] | (u & 15) << (4 * (j / 8)));
        s[8 + j % 4] = (uint8_t)(s[8 + j % 4] | (u >> 4) << (2 * (j / 4)));
    }
}

HK_INLINE void put_iq4_xs_scales(const int *scale, hk_block_iq4_xs *b) {
    int high = 0;
    memset(b->scales_l, 0, 4);
    for (int j = 0; j < 8; j++) {
        int u = scale[j] + 32;
        b->scales_l[j / 2] = (uint8_t)(b->scales_l[j / 2] | (u & 15) << (4 * (j % 2)));
        high |= (u >> 4) << (2 * j);
    }
    b->scales_h = (uint16_t)high;
}

#endif
