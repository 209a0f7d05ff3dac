#include "hk_peak.h"

#include <stddef.h>
#include <string.h>

#include "hk_cpu.h"

static const struct {
    const char *name;
    hk_peak_fn run;
} loops[] = {
    {"scalar", hk_peak_int8_scalar},
#ifdef HK_BUILT_AVX2
    {"avx2", hk_peak_int8_avx2},
#endif
#ifdef HK_BUILT_AVXVNNI
    {"avxvnni", hk_peak_int8_avxvnni},
#endif
#ifdef HK_BUILT_AVX512
    {"avx512", hk_peak_int8_avx512},
#endif
#ifdef HK_BUILT_AVX512VNNI
    {"avx512vnni", hk_peak_int8_avx512vnni},
#endif
#ifdef HK_BUILT_AMX
    {"amx", hk_peak_int8_amx},
#endif
};

hk_peak_fn hk_peak_int8(int i) {
    for (; i > 0; i--)
        for (size_t j = 0; j < sizeof loops / sizeof *loops; j++)
            if (!strcmp(loops[j].name, hk_cpu_set_name(i)))
                return loops[j].run;
    return hk_peak_int8_scalar;
}
