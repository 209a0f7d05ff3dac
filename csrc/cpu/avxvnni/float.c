/* Integer dot products are all that this set adds: its float operations are avx2's. */
#include "../hk_cpu.h"

void hk_fill_float_avxvnni(hk_cpu_set *set) { (void)set; }
