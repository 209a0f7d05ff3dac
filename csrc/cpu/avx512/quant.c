/* Quantised products on AVX-512 without VNNI. 32 registers: a tile of 2 vectors times 6 columns has 12 short
 * accumulators and 12 int32 sums, 2 weights, a broadcast and a product. */
#define HK_ISA              avx512
#define HK_NC_LIST(X, f, r) X(6, f, r) X(4, f, r) X(2, f, r) X(1, f, r)
#define HK_NC_MAX           6
#define HK_FEW_COLUMNS      2 /* the two parts of a precise input */
#include "cpu/avx512/vec_int.h"
#include "cpu/loops/mac_madd.h"
#include "cpu/loops/quant_fill.h"
