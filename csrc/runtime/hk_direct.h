/* Kernels called directly, outside of any tape: packing, and products for users of the public NumPy interface. */
#ifndef HK_DIRECT_H
#define HK_DIRECT_H

#include "hk_tape.h"

/* hk_pack of all panels, divided over the threads. */
int hk_direct_pack(hk_type t, const uint8_t *raw, int64_t row_bytes, int64_t rows, int64_t cols, uint8_t *dst,
                   int n_threads);
/* out[n][out_stride] = x[n][x_stride] times the packed matrix, rows of both padded to 16 floats and 64-byte aligned. */
int hk_direct_matmul(const hk_cpu_set *set, hk_type t, const uint8_t *panels, int64_t rows, int64_t cols, float *x,
                     int64_t x_stride, int64_t n, float *out, int64_t out_stride, int n_threads);
/* How fast n_threads together read `bytes` of memory, in bytes per second. */
double hk_direct_read_rate(const uint8_t *p, int64_t bytes, int n_threads);

#endif
