/* Rows of floats -> rows of a GGUF format. */
#ifndef HK_QUANTIZE_H
#define HK_QUANTIZE_H

#include "formats/hk_formats.h"

enum {
    HK_QUANTIZE_OK,
    HK_QUANTIZE_NOT_FINITE, /* NaN or infinity in the source */
    HK_QUANTIZE_TOO_LARGE,  /* a value or a scale beyond what the format can hold */
    HK_QUANTIZE_NO_FORMAT   /* nothing reads `from` or writes `to` */
};

typedef struct hk_quantize_job {
    hk_type from, to;        /* from: F32, F16 or BF16 */
    const uint8_t *src;      /* [rows][cols], contiguous */
    int64_t rows, cols;      /* cols: a multiple of the block of `to` */
    const float *importance; /* [cols], 0 or more, or NULL: all alike */
    uint8_t *dst;
    int64_t fault; /* out: index of the weight, or of one in the same 256, that gave the error */
} hk_quantize_job;

/* Quantises all rows in the calling thread, with the best instruction set compiled in whose name is `isa` or below. */
typedef int (*hk_quantize_fn)(hk_quantize_job *job);
hk_quantize_fn hk_quantize_for(const char *isa);

#endif
