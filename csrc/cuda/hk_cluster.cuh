/* Clusters: blocks that run at the same time and write into each other's shared memory; of one block below sm_90. */
#ifndef HK_CLUSTER_CUH
#define HK_CLUSTER_CUH

#include "hk_device.cuh"

#ifndef HK_CLUSTER
#define HK_CLUSTER 2
#endif
#if __CUDA_ARCH__ >= 900 && HK_CLUSTER > 1
#define HK_CLUSTERED    __cluster_dims__(HK_CLUSTER, 1, 1)
#define HK_CLUSTER_SIZE HK_CLUSTER
#else
#define HK_CLUSTERED
#define HK_CLUSTER_SIZE 1
#endif
HK_FN u32 cluster_rank() { return HK_CLUSTER_SIZE > 1 ? blockIdx.x % HK_CLUSTER_SIZE : 0; }
/* Blocks of a cluster meet, without making anything visible but barriers of start_bytes. */
HK_FN void cluster_arrive() {
#if HK_CLUSTER_SIZE > 1
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
HK_FN void cluster_wait() {
#if HK_CLUSTER_SIZE > 1
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
/* What blocks send into each other's shared memory is counted in bytes by a barrier of the block that gets it. Where
 * blocks meet instead, as in cluster barriers that make stores visible, every thread waits for all of its own memory
 * traffic. Without a cluster these are stores, and a barrier of the block. One thread starts it, before blocks meet. */
HK_FN void start_bytes(u64 *barrier, u32 bytes) {
#if HK_CLUSTER_SIZE > 1
    u32 b = shared_address(barrier);
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(b) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
#endif
}
/* Stores to the same place of the shared memory of block `rank` of the cluster. */
HK_FN void send_to(u32 rank, void *to, const u32 *v, int words, u64 *barrier) {
#if HK_CLUSTER_SIZE > 1
    u32 at, b;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(to)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(b) : "r"(shared_address(barrier)), "r"(rank));
#define HK_SEND "st.async.shared::cluster.mbarrier::complete_tx::bytes"
    if (words == 1)
        asm volatile(HK_SEND ".u32 [%0], %1, [%2];" ::"r"(at), "r"(v[0]), "r"(b) : "memory");
    if (words == 2)
        asm volatile(HK_SEND ".v2.u32 [%0], {%1,%2}, [%3];" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(b) : "memory");
    if (words == 4)
        asm volatile(HK_SEND ".v4.u32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]),
                     "r"(b)
                     : "memory");
#undef HK_SEND
#else
#pragma unroll
    for (int i = 0; i < words; i++)
        ((u32 *)to)[i] = v[i];
#endif
}
/* Of every block. */
HK_FN void send_to_all(void *to, const u32 *v, int words, u64 *barrier) {
#pragma unroll
    for (u32 r = 0; r < HK_CLUSTER_SIZE; r++)
        send_to(r, to, v, words, barrier);
}
/* Until all of them are there, which every thread of the block calls. */
HK_FN void wait_for_bytes(u64 *barrier) {
#if HK_CLUSTER_SIZE > 1
    u32 done = 0;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(barrier))
                     : "memory");
    while (!done);
#else
    __syncthreads();
#endif
}

#endif
