/* Which compilation of rows.c runs. */
#include "hk_quantize.h"
#include <string.h>

#define HK_QUANTIZE_ISA(isa) int hk_quantize_rows_##isa(hk_quantize_job *job);
HK_QUANTIZE_ISA(scalar)
#ifdef HK_BUILT_AVX2
HK_QUANTIZE_ISA(avx2)
#endif

hk_quantize_fn hk_quantize_for(const char *isa) {
#ifdef HK_BUILT_AVX2
    if (strcmp(isa, "scalar"))
        return hk_quantize_rows_avx2;
#endif
    (void)isa;
    return hk_quantize_rows_scalar;
}
