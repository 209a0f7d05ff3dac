#include "vec_float.h"
#include "../loops/float_fill.h"

void hk_fill_float_scalar(hk_cpu_set *set) { hk_fill_float(set, "scalar"); }
