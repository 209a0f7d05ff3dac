/* A warp's own queue of pieces of weights on their way from memory into shared memory: no other warp waits for it.
 *
 * sm_90: one bulk copy a piece, and a barrier that counts its bytes. sm_80: 16 bytes a lane and copy, and a barrier
 * that the copies of every lane arrive at. Below, the copy is done when it is asked for, and there is nothing to wait
 * for.
 */
#ifndef HK_RING_CUH
#define HK_RING_CUH

#include "hk_pieces.cuh"

/* At most 32 slots for pieces of slot_bytes (a multiple of 16) at data, a barrier of 8 bytes each at barriers. */
struct weight_ring {
    u8 *data;
    u64 *barriers;
    u32 slot_bytes;
    int slots, put, got, lane;
    u32 parity; /* of the slot that is taken next */
    u8 *to;     /* the slots that are asked for and taken next */
    const u8 *from;

    __device__ __forceinline__ void start() {
        put = got = 0, parity = 0;
        from = to = data;
        start_barriers(barriers, slots, lane);
    }
    /* Asks for the next piece, whose slot must be free. */
    __device__ __forceinline__ void ask(const u8 *piece, u32 bytes) {
        ask_piece(to, piece, bytes, barriers + put, lane);
        to += slot_bytes;
        if (++put == slots)
            put = 0, to = data;
    }
    /* The oldest piece that was asked for, once it is there. */
    __device__ __forceinline__ const u8 *take() {
#if __CUDA_ARCH__ >= 800
        u32 b = shared_address(barriers + got);
        while (!is_there(b, parity))
            ;
#else
        __syncwarp();
#endif
        return from;
    }
    /* The piece is not needed any more. */
    __device__ __forceinline__ void release() {
        __syncwarp();
        from += slot_bytes;
        if (++got == slots)
            got = 0, parity ^= 1, from = data;
    }
};

#endif
