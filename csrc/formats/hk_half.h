/* fp16 and bf16 in plain C, bit for bit what F16C gives: round to nearest even, subnormals kept. */
#ifndef HK_HALF_H
#define HK_HALF_H

#include <stdint.h>
#include <string.h>

static inline float hk_bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t hk_float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float hk_bf16_to_float(uint16_t h) { return hk_bits_float((uint32_t)h << 16); }

/* Moving the 15 bits below the sign into a float's place leaves the exponent 112 too small: multiplying by 2^112 mends
 * it exactly and normalises subnormals on the way. Only infinities and NaN (exponent 31) need a branch. */
static inline float hk_half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    if (rest >= 0x0f800000)
        return hk_bits_float(sign | 0x70000000 | rest | (rest > 0x0f800000 ? 0x00400000 : 0));
    float v = hk_bits_float(rest) * 0x1p112f;
    return hk_bits_float(hk_float_bits(v) | sign);
}

/* Below 2^-14 the result is subnormal: adding 0.5 puts the fp16 grid's last place on the float's last place, so the
 * addition rounds to nearest even. Above, half of the dropped bits minus one plus the kept last bit does. */
static inline uint16_t hk_float_to_half(float f) {
    uint32_t u = hk_float_bits(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000)
        return (uint16_t)(sign | (hk_float_bits(hk_bits_float(a) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13));
}

#endif
