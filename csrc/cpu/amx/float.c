/* Products of quantised weights with many columns are all that this set adds: its float operations are avx512's. */
#include "../hk_cpu.h"

void hk_fill_float_amx(hk_cpu_set *set) { (void)set; }
