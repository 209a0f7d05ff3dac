/* The step of one token (hk_token.cuh) for heads of 256 values: 8 warps, which have the registers that these need. */
#if __CUDA_ARCH__ >= 900
#define WARPS 8
#define RING  17408
#include "hk_token.cuh"

HK_KERNEL __launch_bounds__(THREADS, 1) hk_token8_256(const __grid_constant__ hk_token_args a) { token<256>(a); }
#endif
