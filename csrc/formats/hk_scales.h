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

/* The even bytes of x, side by side. */
static inline uint64_t hk_even_bytes(uint64_t x) {
    x &= 0x00ff00ff00ff00ffull;
    x = (x | x >> 8) & 0x0000ffff0000ffffull;
    return (x | x >> 16) & 0xffffffffull;
}

/* Scale j: nibble j % 2 of byte j / 2 of scales_l; its top 2 bits at 2 j of scales_h; minus 32, which is a sign
 * extension from bit 5 after that bit is flipped. Eight rows in a 64-bit word: loops over bytes and 16-bit words
 * together do not vectorise, and were half of the kernel. */
static inline void hk_sub_scales_iq4_xs(const uint8_t *plane, hk_sub_scales *o) {
    const uint64_t bit5 = 0x2020202020202020ull;
    for (int half = 0; half < 2; half++) {
        uint64_t a, b, l[4];
        memcpy(&a, plane + 32 + 16 * half, 8);
        memcpy(&b, plane + 40 + 16 * half, 8);
        uint64_t h[2] = {hk_even_bytes(a) | hk_even_bytes(b) << 32, hk_even_bytes(a >> 8) | hk_even_bytes(b >> 8)
                                                                                                << 32};
        for (int i = 0; i < 4; i++)
            memcpy(&l[i], plane + 64 + 16 * i + 8 * half, 8);
        for (int j = 0; j < 8; j++) {
            uint64_t x = l[j / 2] >> (4 * (j % 2)) & 0x0f0f0f0f0f0f0f0full;
            x |= (h[j / 4] >> (2 * (j % 4)) & 0x0303030303030303ull) << 4;
            x ^= bit5;
            x |= (x & bit5) << 1 | (x & bit5) << 2;
            memcpy(&o->s[j][8 * half], &x, 8);
        }
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
