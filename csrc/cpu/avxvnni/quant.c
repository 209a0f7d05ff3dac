/* Quantised products on AVX-VNNI. 16 registers, as for AVX2: 8 accumulators, 2 weights and a broadcast in the inner
 * loop. */
#define HK_ISA              avxvnni
#define HK_NC_LIST(X, f, r) X(4, f, r) X(3, f, r) X(2, f, r) X(1, f, r)
#define HK_NC_MAX           4
#define HK_FEW_COLUMNS      2 /* the two parts of a precise input */
#include "cpu/avxvnni/vec_int.h"
#include "cpu/loops/mac_dot.h"
#include "cpu/loops/quant_fill.h"
