/* The integer scales of one block of a packed panel, spread to bytes: 16 rows side by side, one line per sub-block.
 *
 * Loops over 16 rows are plain C and become 128-bit vector code; the decoding is a few percent of a block's work. All
 * scales fit int8: 6-bit ones as 0..63 or -32..31, 4-bit as 0..15, those of Q6_K as they are. Mins are 0..63. */
#ifndef HK_SCALES_H
#define HK_SCALES_H

#include "hk_quants.h"

typedef struct hk_sub_scales {
    _Alignas(64) int8_t s[16][16]; /* [sub-block][row] */
    uint8_t m[16][16];
} hk_sub_scales;

#define HK_ROWS for (int r = 0; r < 16; r++)

/* Byte i of the 12 (s[i]): scale i and min i of the first four sub-blocks in the low 6 bits of bytes i and i + 4; the
 * other four in the nibbles of byte i + 8 with their top bits in the top bits of bytes i and i + 4. */
static inline void hk_sub_scales_q4_k(const uint8_t *plane, hk_sub_scales *o) {
    const uint8_t(*s)[16] = (const uint8_t(*)[16])(plane + 64);
    for (int i = 0; i < 4; i++) {
        HK_ROWS o->s[i][r] = (int8_t)(s[i][r] & 63);
        HK_ROWS o->m[i][r] = s[i + 4][r] & 63;
        HK_ROWS o->s[i + 4][r] = (int8_t)((s[i + 8][r] & 15) | ((s[i][r] >> 2) & 48));
        HK_ROWS o->m[i + 4][r] = (s[i + 8][r] >> 4) | ((s[i + 4][r] >> 2) & 48);
    }
}

static inline void hk_sub_scales_q5_k(const uint8_t *plane, hk_sub_scales *o) { hk_sub_scales_q4_k(plane, o); }

static inline void hk_sub_scales_q2_k(const uint8_t *plane, hk_sub_scales *o) {
    const uint8_t(*s)[16] = (const uint8_t(*)[16])(plane + 64);
    for (int j = 0; j < 16; j++) {
        HK_ROWS o->s[j][r] = (int8_t)(s[j][r] & 15);
        HK_ROWS o->m[j][r] = s[j][r] >> 4;
    }
}

/* Scale j: its low nibble is nibble j / 8 of byte j % 8, its top 2 bits are bits 2 (j / 4) of byte 8 + j % 4; minus 32.
 */
static inline void hk_sub_scales_q3_k(const uint8_t *plane, hk_sub_scales *o) {
    const uint8_t(*s)[16] = (const uint8_t(*)[16])(plane + 32);
    for (int i = 0; i < 4; i++) {
        HK_ROWS o->s[i][r] = (int8_t)((s[i][r] & 15) | ((s[8 + i][r] << 4) & 48)) - 32;
        HK_ROWS o->s[i + 4][r] = (int8_t)((s[i + 4][r] & 15) | ((s[8 + i][r] << 2) & 48)) - 32;
        HK_ROWS o->s[i + 8][r] = (int8_t)((s[i][r] >> 4) | (s[8 + i][r] & 48)) - 32;
        HK_ROWS o->s[i + 12][r] = (int8_t)((s[i + 4][r] >> 4) | ((s[8 + i][r] >> 2) & 48)) - 32;
    }
}

static inline void hk_sub_scales_q6_k(const uint8_t *plane, hk_sub_scales *o) { memcpy(o->s, plane + 32, 256); }

/* Scales 2 i and 2 i + 1: the nibbles of byte i of scales_l; their top 2 bits at 4 i and 4 i + 2 of scales_h; minus 32. The
 * 16-bit words are spread into the upper bits first, in 16 bits, because mixed widths do not vectorise. */
static inline void hk_sub_scales_iq4_xs(const uint8_t *plane, hk_sub_scales *o) {
    uint16_t words[16];
    uint8_t top[8][16], l[4][16];
    memcpy(words, plane + 32, 32);
    memcpy(l, plane + 64, 64);
    for (int j = 0; j < 8; j++)
        HK_ROWS top[j][r] = (uint8_t)((uint16_t)((uint16_t)(words[r] >> (2 * j)) << 4) & 48);
    for (int i = 0; i < 4; i++) {
        HK_ROWS o->s[2 * i][r] = (int8_t)((l[i][r] & 15) | top[2 * i][r]) - 32;
        HK_ROWS o->s[2 * i + 1][r] = (int8_t)((l[i][r] >> 4) | top[2 * i + 1][r]) - 32;
    }
}

/* The 32-weight formats have none. */
#define HK_NO_SUB_SCALES(fmt)                                                                                          \
    static inline void hk_sub_scales_##fmt(const uint8_t *plane, hk_sub_scales *o) { (void)plane, (void)o; }
HK_NO_SUB_SCALES(q4_0)
HK_NO_SUB_SCALES(q4_1)
HK_NO_SUB_SCALES(q5_0)
HK_NO_SUB_SCALES(q5_1)
HK_NO_SUB_SCALES(q8_0)
HK_NO_SUB_SCALES(iq4_nl)
HK_NO_SUB_SCALES(mxfp4)
#undef HK_NO_SUB_SCALES
#undef HK_ROWS

#endif
