/* Hopper's own instructions: barriers that count bytes, bulk copies, and matrix products of a warpgroup. Only code for
 * sm_90a has them (HK_HAS_WGMMA). */
#ifndef HK_WGMMA_CUH
#define HK_WGMMA_CUH

#include "hk_device.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HK_HAS_WGMMA 1

/* --- barriers in shared memory, by their 32-bit address --- */

HK_FN void barrier_init(u32 b, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
/* Makes initialised barriers known to the copy engine. */
HK_FN void barriers_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
HK_FN void barrier_arrive(u32 b) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(b) : "memory"); }
HK_FN void barrier_expect(u32 b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
HK_FN void barrier_wait(u32 b, u32 parity) {
    u32 done = 0;
#ifdef HK_SPIN_LIMIT
    for (u32 i = 0; !done && i < HK_SPIN_LIMIT; i++) {
#else
    while (!done) {
#endif
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(b), "r"(parity)
                     : "memory");
    }
}
HK_FN void copy_bulk(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* --- clusters --- */

HK_FN u32 rank_in_cluster() {
    u32 r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
HK_FN void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
HK_FN float load_of_rank(const float *p, u32 rank) {
    float v;
    asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %1, %2; ld.shared::cluster.f32 %0, [r]; }"
                 : "=f"(v)
                 : "r"(shared_address(p)), "r"(rank)
                 : "memory");
    return v;
}
/* A barrier of some of the block's threads. */
HK_FN void sync_threads(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* --- matrix products --- */

HK_FN void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
HK_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> HK_FN void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* Columns of 64 halves, 128 bytes apart, in the 128-byte swizzle: groups of 8 columns begin at multiples of 1024. */
HK_FN u64 columns_at(u32 address) { return (u64)(64u | 1u << 30) << 32 | ((address >> 4) + (1u << 16)); }

#define HK_4(d, i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HK_16(d, i) HK_4(d, i), HK_4(d, i + 4), HK_4(d, i + 8), HK_4(d, i + 12)
#define HK_64(d, i) HK_16(d, i), HK_16(d, i + 16), HK_16(d, i + 32), HK_16(d, i + 48)

/* d[64][N] += a[64][16] b[16][N]: a by lane as for m16n8k16, 16 rows a warp; b in shared memory; d like m16n8, 8
 * columns after 8. */
HK_FN void wgmma(float (&d)[16], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
                 : HK_16(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
HK_FN void wgmma(float (&d)[32], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                 : HK_16(d, 0), HK_16(d, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
HK_FN void wgmma(float (&d)[64], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
                 : HK_64(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
HK_FN void wgmma(float (&d)[128], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "{%128, %129, %130, %131}, %132, 1, 1, 1, 0;"
                 : HK_64(d, 0), HK_64(d, 64)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif
#endif
