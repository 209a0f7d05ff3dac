/* A warp's own queue of pieces of weights on their way from memory into shared memory: no other warp waits for it.
 *
 * sm_90: one bulk copy a piece, and a barrier that counts its bytes. sm_80: 16 bytes a lane and copy, and a barrier
 * that the copies of every lane arrive at. Below, the copy is done when it is asked for, and there is nothing to wait
 * for.
 */
#ifndef HK_RING_CUH
#define HK_RING_CUH

#include "hk_device.cuh"

/* At most 32 slots for pieces of slot_bytes (a multiple of 16) at data, a barrier of 8 bytes each at barriers. */
struct weight_ring {
    u8 *data;
    u64 *barriers;
    u32 slot_bytes;
    int slots, put, got, lane;
    u32 parity; /* of the slot that is taken next */

    __device__ __forceinline__ void start() {
        put = got = 0, parity = 0;
#if __CUDA_ARCH__ >= 800
        if (lane < slots)
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barriers + lane)),
                         "r"(__CUDA_ARCH__ >= 900 ? 1 : 32)
                         : "memory");
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncwarp();
#endif
    }
    /* Asks for the next piece, whose slot must be free. */
    __device__ __forceinline__ void ask(const u8 *from, u32 bytes) {
        u8 *to = data + put * slot_bytes;
#if __CUDA_ARCH__ >= 900
        if (lane == 0) {
            u32 b = shared_address(barriers + put);
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    shared_address(to)),
                "l"(from), "r"(bytes), "r"(b)
                : "memory");
        }
#else
        for (u32 i = 16 * lane; i < bytes; i += 512)
            copy16_async(to + i, from + i, true);
#if __CUDA_ARCH__ >= 800
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barriers + put))
                     : "memory");
#endif
#endif
        put = put + 1 == slots ? 0 : put + 1;
    }
    /* The oldest piece that was asked for, once it is there. */
    __device__ __forceinline__ const u8 *take() {
#if __CUDA_ARCH__ >= 800
        u32 b = shared_address(barriers + got), done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier." HK_TEST_WAIT
                         ".parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(b), "r"(parity)
                         : "memory");
#else
        __syncwarp();
#endif
        return data + got * slot_bytes;
    }
    /* The piece is not needed any more. */
    __device__ __forceinline__ void release() {
        __syncwarp();
        if (++got == slots)
            got = 0, parity ^= 1;
    }
};

#endif
