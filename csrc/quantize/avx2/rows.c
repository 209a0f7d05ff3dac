#define HK_ISA avx2
#include "vec.h"

#include "../rows.h"
