/* Pieces of weights on their way into a warp's shared memory, each with a barrier that says when it is there. From
 * compute capability 9.0 on they are bulk copies that one lane asks for, before that copies of 16 bytes by all lanes.
 */
#ifndef HK_PIECES_CUH
#define HK_PIECES_CUH

#include "hk_device.cuh"

/* n barriers of a warp. */
HK_FN void start_barriers(u64 *barriers, int n, int lane) {
#if __CUDA_ARCH__ >= 800
    if (lane < n)
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barriers + lane)),
                     "r"(__CUDA_ARCH__ >= 900 ? 1 : 32)
                     : "memory");
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncwarp();
#endif
}
/* Asks for a piece: bytes must be a multiple of 16. ONCE: it is read once a step, and L2 must not forget other things
 * because of it. */
template <bool ONCE = false> HK_FN void ask_piece(u8 *to, const u8 *from, u32 bytes, u64 *barrier, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        u32 b = shared_address(barrier);
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
        if (ONCE) {
            u64 once;
            asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], "
                         "%2, [%3], %4;" ::"r"(shared_address(to)),
                         "l"(from), "r"(bytes), "r"(b), "l"(once)
                         : "memory");
        } else {
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    shared_address(to)),
                "l"(from), "r"(bytes), "r"(b)
                : "memory");
        }
    }
#else
    for (u32 i = 16 * lane; i < bytes; i += 512)
        copy16_async(to + i, from + i, true);
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
#endif
}
HK_FN u32 is_there(u32 barrier, u32 parity) {
    u32 done = 1;
#if __CUDA_ARCH__ >= 800
    asm volatile("{ .reg .pred p; mbarrier." HK_TEST_WAIT ".parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
    return done;
}

#endif
