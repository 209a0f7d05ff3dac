/* Quantised products on AVX-512 VNNI. 32 registers: a tile of 2 vectors times 12 columns has 24 accumulators, 2
 * weights, and broadcasts from memory: 14 loads for 24 multiplications, more than any load port needs. The sums of a
 * tile wait in the first cache; one load and store per flush. */
#define HK_ISA              avx512vnni
#define HK_NC_LIST(X, f, r) X(12, f, r) X(8, f, r) X(4, f, r) X(2, f, r) X(1, f, r)
#define HK_NC_MAX           12
#define HK_FEW_COLUMNS      2 /* the two parts of a precise input */
#include "cpu/avx512vnni/vec_int.h"
#include "cpu/loops/mac_dot.h"
#include "cpu/loops/quant_fill.h"
