/* hk_dequant_<format>_scalar for every quantised format: raw GGUF blocks -> floats. */
#ifndef HK_DEQUANT_SCALAR_H
#define HK_DEQUANT_SCALAR_H

#include <stdint.h>

#define HK_QUANT(NAME, fmt, low, high, codes, zero, sub, mins)                                                         \
    void hk_dequant_##fmt##_scalar(const uint8_t *raw, int64_t n_blocks, float *out);
#include "formats/hk_quants.def"
#undef HK_QUANT

#endif
