/* The blocks of the public GGUF formats as they lie in a file: little-endian, unaligned, fp16 as uint16_t.
 *
 * Where the weights are, by index within the block:
 *   32-weight formats  qs[i] holds weight i in the low and i + 16 in the high nibble; bit i of qh is the fifth bit of
 * weight i Q4_K, Q5_K         qs[32 c + l] holds weights 64 c + l (low) and 64 c + 32 + l (high); bit 2 c and 2 c + 1
 * of qh[l] are their fifth bits Q2_K, Q3_K         bits 2 j, 2 j + 1 of qs[32 h + l] are weight 128 h + 32 j + l; bit 4
 * h + j of hmask[l] its third bit Q6_K               nibbles of ql[64 h + l]: weights 128 h + l (low), 128 h + 64 + l
 * (high), l < 64; bits 2 j, 2 j + 1 of qh[32 h + l]: the top bits of weight 128 h + 32 j + l IQ4_XS 32-weight groups of
 * 16 bytes as in the 32-weight formats
 */
#ifndef HK_BLOCKS_H
#define HK_BLOCKS_H

#include <stdint.h>

#define HK_PACKED __attribute__((packed))

typedef struct HK_PACKED {
    uint16_t d;
    uint8_t qs[16];
} hk_block_q4_0;
typedef struct HK_PACKED {
    uint16_t d, m;
    uint8_t qs[16];
} hk_block_q4_1;
typedef struct HK_PACKED {
    uint16_t d;
    uint8_t qh[4], qs[16];
} hk_block_q5_0;
typedef struct HK_PACKED {
    uint16_t d, m;
    uint8_t qh[4], qs[16];
} hk_block_q5_1;
typedef struct HK_PACKED {
    uint16_t d;
    int8_t qs[32];
} hk_block_q8_0;
typedef struct HK_PACKED {
    uint8_t scales[16], qs[64];
    uint16_t d, dmin;
} hk_block_q2_k;
typedef struct HK_PACKED {
    uint8_t hmask[32], qs[64], scales[12];
    uint16_t d;
} hk_block_q3_k;
typedef struct HK_PACKED {
    uint16_t d, dmin;
    uint8_t scales[12], qs[128];
} hk_block_q4_k;
typedef struct HK_PACKED {
    uint16_t d, dmin;
    uint8_t scales[12], qh[32], qs[128];
} hk_block_q5_k;
typedef struct HK_PACKED {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
} hk_block_q6_k;
typedef struct HK_PACKED {
    uint16_t d;
    uint8_t qs[16];
} hk_block_iq4_nl;
typedef struct HK_PACKED {
    uint16_t d, scales_h;
    uint8_t scales_l[4], qs[128];
} hk_block_iq4_xs;
typedef struct HK_PACKED {
    uint8_t e, qs[16];
} hk_block_mxfp4;

#endif
