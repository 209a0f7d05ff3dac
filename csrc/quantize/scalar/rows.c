#define HK_ISA scalar
#include "vec.h"

#include "../rows.h"
