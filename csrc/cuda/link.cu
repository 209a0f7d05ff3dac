/* Crossings of small steps: rows go to mapped host memory, or come from there, and a flag says that they are complete.
 * One block: it holds a single multiprocessor while it waits, and the flag needs no counting. What crosses is a few
 * rows, which 1024 threads move 16 bytes each: with narrower accesses or fewer threads the bus's latency shows several
 * times. */
#include "hk_args.h"
#include "hk_device.cuh"

#define HK_LINK_THREADS 1024
#define HK_LINK_NS      120000000000ull /* the host gives up long before */

HK_FN int look_at(const int *p) {
    int v;
    asm volatile("ld.relaxed.sys.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
HK_FN int load_flag(const int *p) {
    int v;
    asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
HK_FN u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
/* Past every cache, as the host writes and reads the other end. */
HK_FN u32x4 load_host4(const float *p) {
    u32x4 r;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
                 : "l"(p)
                 : "memory");
    return r;
}
/* What the kernel before wrote: from L2. */
HK_FN u32x4 load_here4(const float *p) {
    f32x4 v = load_fresh4(p);
    return {{__float_as_uint(v.v[0]), __float_as_uint(v.v[1]), __float_as_uint(v.v[2]), __float_as_uint(v.v[3])}};
}
HK_FN void store_host4(float *p, const u32x4 &r) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(r.v[0]), "r"(r.v[1]), "r"(r.v[2]),
                 "r"(r.v[3])
                 : "memory");
}

template <bool RECEIVE> HK_FN void move_rows(const hk_link_args &a) {
    for (int p = 0; p < a.n_rows; p++) {
        const hk_link_rows &r = a.rows[p];
        int unit = a.quads ? 4 : 1, per_row = r.width / unit, total = a.step.counts[r.outputs] * per_row;
        for (int i = threadIdx.x; i < total; i += HK_LINK_THREADS) {
            int row = i / per_row, at = (i - row * per_row) * unit;
            float *here = r.at + row * r.stride + at, *there = r.host + (s64)row * r.width + at;
            if (a.quads && RECEIVE)
                *(u32x4 *)here = load_host4(there);
            else if (a.quads)
                store_host4(there, load_here4(here));
            else if (RECEIVE)
                *here = *(volatile float *)there;
            else
                *(volatile float *)there = load_fresh(here);
        }
    }
}

HK_KERNEL __launch_bounds__(HK_LINK_THREADS, 1) hk_link_send(const __grid_constant__ hk_link_args a) {
    allow_next();
    wait_for_previous();
    move_rows<false>(a);
    __syncthreads();
    /* One fence, which covers what all threads wrote: fences for the whole system wait for the bus one by one. */
    if (threadIdx.x == 0)
        asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(a.flag), "r"(a.step.counts[2]) : "memory");
}

HK_KERNEL __launch_bounds__(HK_LINK_THREADS, 1) hk_link_receive(const __grid_constant__ hk_link_args a) {
    allow_next();
    if (threadIdx.x == 0) {
        int step = a.step.counts[2];
        u64 end = nanoseconds() + HK_LINK_NS;
        for (int i = 1; look_at(a.flag) != step; i++)
            if (i % 64 == 0 && (look_at(a.abort) == step || nanoseconds() > end))
                break;
        load_flag(a.flag);
    }
    __syncthreads();
    wait_for_previous();
    move_rows<true>(a);
}
