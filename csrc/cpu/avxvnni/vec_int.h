/* AVX2 with VNNI in VEX encoding: 256-bit vectors, four products per lane in one operation. */
#ifndef HK_VEC_INT_AVXVNNI_H
#define HK_VEC_INT_AVXVNNI_H

#include "cpu/avx2/vec_int.h"

HK_INLINE vi vi_dot(vi acc, vi u, vi s) { return _mm256_dpbusd_avx_epi32(acc, u, s); }

#endif
