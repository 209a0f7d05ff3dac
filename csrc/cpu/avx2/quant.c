/* Quantised products on AVX2. 16 registers: a tile of 2 vectors times 4 columns has 8 short accumulators, 2 weights and
 * a broadcast in the inner loop; the int32 sums wait in the first cache between flushes. */
#define HK_ISA              avx2
#define HK_NC_LIST(X, f, r) X(4, f, r) X(3, f, r) X(2, f, r) X(1, f, r)
#define HK_NC_MAX           4
#define HK_FEW_COLUMNS      8
#define HK_RAW_ROWS_KERNELS /* the sets above use these too: longer vectors do not fit raw blocks */
#include "cpu/avx2/vec_int.h"
#include "cpu/loops/mac_madd.h"
#include "cpu/loops/quant_fill.h"
