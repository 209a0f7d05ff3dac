/* Eight floats or integers, with the vector extensions of the compiler. */
#ifndef HK_VECTORS_H
#define HK_VECTORS_H

#include <stdint.h>
#include <string.h>

#define HK_LANES 8
typedef float hk_v8 __attribute__((vector_size(32)));
typedef int32_t hk_m8 __attribute__((vector_size(32)));

#define HK_INLINE static inline __attribute__((always_inline, unused))

#endif
