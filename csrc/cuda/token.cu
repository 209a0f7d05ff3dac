/* The step of one token (hk_token.cuh) for heads of up to 128 values, with 12 warps: 16 have too few registers for it
 * (549 tokens a second of Llama 2 7B instead of 583). Compiled where weights come by bulk copies. */
#if __CUDA_ARCH__ >= 900
#define WARPS 12
#define RING  8704
#include "hk_token.cuh"

HK_KERNEL __launch_bounds__(THREADS, 1) hk_token_64(const __grid_constant__ hk_token_args a) { token<64>(a); }
HK_KERNEL __launch_bounds__(THREADS, 1) hk_token_128(const __grid_constant__ hk_token_args a) { token<128>(a); }
#endif
