/* hk_quants.def and hk_types.def as constants that an inlined kernel folds away, and the numbers that formats share. */
#ifndef HK_QUANTS_H
#define HK_QUANTS_H

#include "hk_formats.h"
#include "hk_half.h"

typedef enum hk_codes { HK_CODES_PLAIN, HK_CODES_SIGNED, HK_CODES_IQ4, HK_CODES_MXFP4 } hk_codes;

typedef struct hk_quant {
    int block, scale_bytes, code_bytes; /* per row and block */
    int low, high, codes, zero, sub, mins;
    int e8m0; /* the scale of a block is a power of two in one byte, not fp16 */
} hk_quant;

enum {
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act)                                                       \
    HK_BLOCK_##NAME = block, HK_BYTES_##NAME = bytes, HK_SCALE_BYTES_##NAME = scale_bytes,
#include "hk_types.def"
#undef HK_TYPE
};

#define HK_QUANT(NAME, lower, low, high, codes, zero, sub, mins)                                                       \
    static const hk_quant hk_quant_##lower __attribute__((unused)) = {HK_BLOCK_##NAME,                                 \
                                                                      HK_SCALE_BYTES_##NAME,                           \
                                                                      HK_BYTES_##NAME - HK_SCALE_BYTES_##NAME,         \
                                                                      low,                                             \
                                                                      high,                                            \
                                                                      HK_CODES_##codes,                                \
                                                                      zero,                                            \
                                                                      sub,                                             \
                                                                      mins,                                            \
                                                                      HK_SCALE_BYTES_##NAME == 1};
#include "hk_quants.def"
#undef HK_QUANT

/* The codebooks of the formats (IQ4_NL and IQ4_XS; MXFP4 holds twice the FP4 values, its scale half of the power). */
#define HK_TABLE_IQ4   -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define HK_TABLE_MXFP4 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* Half of the power of two of an E8M0 exponent: 2^(e - 128), denormal for e < 2. */
static inline float hk_f32_of_e8m0_half(uint8_t e) {
    return hk_bits_float(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

#endif
