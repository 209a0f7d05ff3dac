/* AVX-512 with bf16: bytes to floats, floats to the pairs that tiles multiply. */
#ifndef HK_VEC_BF16_H
#define HK_VEC_BF16_H

#include <string.h>

#include "cpu/amx/vec_int.h"

/* Byte i of 16 groups of four, signed, times 2^24: in the upper byte of a lane it needs no sign extension, and 2^-24 is
 * free where a scale follows. */
HK_INLINE vf vf_of_byte(vi x, int i) {
    const int z = 0x808080, at = (int)((unsigned)i << 24) | z;
    const vi pick = _mm512_broadcast_i32x4(_mm_setr_epi32(at, at + (4 << 24), at + (8 << 24), at + (12 << 24)));
    return vf_of_int(_mm512_shuffle_epi8(x, pick));
}

/* bf16, to the nearest, ties to even: lane r is (even[r], odd[r]) */
HK_INLINE vi vi_bf16_pairs(vf even, vf odd) {
    static const _Alignas(64) uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512bh both = _mm512_cvtne2ps_pbh(odd, even);
    vi x;
    memcpy(&x, &both, sizeof x);
    return _mm512_permutexvar_epi16(vi_load(order), x);
}

#endif
