/* AVX-512 with VNNI: four products per lane in one operation, the activation as an embedded broadcast. */
#ifndef HK_VEC_INT_AVX512VNNI_H
#define HK_VEC_INT_AVX512VNNI_H

#include "cpu/avx512/vec_int.h"

HK_INLINE vi vi_dot(vi acc, vi u, vi s) { return _mm512_dpbusd_epi32(acc, u, s); }

#endif
