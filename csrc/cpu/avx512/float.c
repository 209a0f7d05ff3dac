#include "vec_float.h"
#include "../loops/float_fill.h"

void hk_fill_float_avx512(hk_cpu_set *set) { hk_fill_float(set, "avx512"); }
