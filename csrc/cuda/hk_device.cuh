/* What every kernel file needs, without any header of the toolkit, so that NVRTC compiles the same text: integer types,
 * half precision through inline PTX, loads, warp reductions, asynchronous copies, matrix instructions and programmatic
 * dependent launch. */
#ifndef HK_DEVICE_CUH
#define HK_DEVICE_CUH

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;

#define HK_FN        static __device__ __forceinline__
#define HK_MEMBER    __device__ __forceinline__
#define HK_KERNEL    extern "C" __global__ void
#define HK_MAX_FLOAT 3.402823466e+38f
#define HK_INFINITY  __uint_as_float(0x7F800000u)

/* --- half precision: a half is a u16, a pair of halves a u32 (first in the low bits) --- */

HK_FN float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
HK_FN u16 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
HK_FN float bf16_to_float(u16 h) { return __uint_as_float((u32)h << 16); }
HK_FN u32 pack_half2(float lo, float hi) {
#if __CUDA_ARCH__ >= 800
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
#else
    return (u32)float_to_half(lo) | (u32)float_to_half(hi) << 16;
#endif
}
/* 2^x in one instruction, to 2^-22; 0 for results below 2^-126. */
HK_FN float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
HK_FN u32 half2_sub(u32 a, u32 b) {
    u32 d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
HK_FN u32 half2_mul(u32 a, u32 b) {
    u32 d;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
HK_FN u32 half2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* --- loads --- */

struct alignas(16) u32x4 {
    u32 v[4];
};
struct alignas(8) u32x2 {
    u32 v[2];
};
struct alignas(16) f32x4 {
    float v[4];
};
struct alignas(8) f32x2 {
    float v[2];
};

/* Weights: read once, never written while a step runs. "volatile" keeps these loads in front of the wait for the
 * previous kernel; they bypass L1, which the activations need. */
HK_FN u32x4 load_weights16(const void *p) {
    u32x4 r;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
                 : "l"(p));
    return r;
}
HK_FN u32x2 load_weights8(const void *p) {
    u32x2 r;
    asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(r.v[0]), "=r"(r.v[1]) : "l"(p));
    return r;
}
HK_FN u32x4 load_shared_by_lanes16(const void *p) {
    u32x4 r;
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
                 : "l"(p));
    return r;
}
HK_FN u32 load_weights4(const void *p) {
    u32 r;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(r) : "l"(p));
    return r;
}
HK_FN u16 load_weights2(const void *p) {
    u16 r;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(r) : "l"(p));
    return r;
}
HK_FN u32 load_weights1(const void *p) {
    u32 r;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(r) : "l"(p));
    return r;
}
/* Activations written by the kernel before: from L2, where every multiprocessor sees the same. */
HK_FN f32x4 load_fresh4(const float *p) {
    f32x4 r;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(r.v[0]), "=f"(r.v[1]), "=f"(r.v[2]), "=f"(r.v[3])
                 : "l"(p)
                 : "memory");
    return r;
}
HK_FN f32x2 load_fresh2(const float *p) {
    f32x2 r;
    asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];" : "=f"(r.v[0]), "=f"(r.v[1]) : "l"(p) : "memory");
    return r;
}
HK_FN u32 load_fresh_word(const u32 *p) {
    u32 r;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
    return r;
}
HK_FN float load_fresh(const float *p) {
    float r;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(r) : "l"(p) : "memory");
    return r;
}
/* Asks for [p, p + bytes) to be brought into L2; reaches over both ends to whole 16 bytes. */
HK_FN void prefetch(const void *p, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    u64 at = (u64)p & ~15ull;
    u32 size = (u32)((((u64)p & 15) + bytes + 15) & ~15ull);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(size));
#endif
}
/* How a barrier that copies arrive at is asked whether they have. */
#if __CUDA_ARCH__ >= 900
#define HK_TEST_WAIT "try_wait" /* sleeps for a while */
#else
#define HK_TEST_WAIT "test_wait"
#endif
/* A barrier of `threads` threads, one of 15 beside __syncthreads. */
HK_FN void barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
HK_FN u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

/* --- integer helpers --- */

HK_FN s32 dot4(u32 a, u32 b, s32 c) {
    s32 d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
HK_FN u32 permute(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

/* c + the two s16 of a times the bytes 0 and 1 (HIGH: 2 and 3) of b, which are unsigned. */
template <bool HIGH> HK_FN s32 dot2(u32 a, u32 b, s32 c) {
    s32 d;
    if (HIGH)
        asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else
        asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
/* a * b + c, on the pipe of multiplications whatever b and c are. */
HK_FN u32 multiply_add(u32 a, u32 b, u32 c) {
    u32 d;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
/* All bits, if all lanes are here; nothing that the compiler could know. */
HK_FN u32 whole_warp() {
    u32 mask;
    asm volatile("activemask.b32 %0;" : "=r"(mask));
    return mask;
}
/* The larger; NaN if one is. */
HK_FN float larger_or_nan(float a, float b) {
    float d;
#if __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
#else
    d = a != a || a > b ? a : b;
#endif
    return d;
}
/* 1 / x for normal x and results, to an ulp. */
HK_FN float reciprocal_of(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* --- warps --- */

HK_FN float warp_sum(float x) {
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}
HK_FN float warp_max(float x) {
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

/* --- programmatic dependent launch: no-ops below sm_90 --- */

/* Everything before may overlap the previous kernel and must not touch what that one reads or writes. */
HK_FN void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* L1 may hold lines from before the previous kernel wrote: plain loads behind this see what it wrote. */
HK_FN void forget_l1() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
/* The next kernel may be placed on multiprocessors that have room; it still waits for our end before it reads. */
HK_FN void allow_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* --- asynchronous copies of 16 bytes, zeros where !valid; plain copies below sm_80 --- */

HK_FN void copy16_async(void *shared, const void *global, bool valid) {
#if __CUDA_ARCH__ >= 800
    u32 size = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(size)
                 : "memory");
#else
    u32x4 z = {{0, 0, 0, 0}};
    *(u32x4 *)shared = valid ? *(const u32x4 *)global : z;
#endif
}
HK_FN void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING> HK_FN void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

/* --- matrix instructions --- */

/* d[16][8] = c[16][8] + a[16][32] b[32][8] in integers, a of u8 or s8, b of s8, fragments as PTX defines them for
 * m16n8k32; four m8n8k16 on sm_75. */
#if __CUDA_ARCH__ >= 800
#define HK_MMA_8(type)                                                                                                 \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." type                                                                  \
        ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"                                            \
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                                               \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]))
#else
#define HK_MMA_8_QUARTER(type, i, c, a, b)                                                                             \
    asm("mma.sync.aligned.m8n8k16.row.col.s32." type ".s8.s32 {%0,%1}, {%2}, {%3}, {%4,%5};"                           \
        : "=r"(d[2 * i]), "=r"(d[2 * i + 1])                                                                           \
        : "r"(a), "r"(b), "r"(c[2 * i]), "r"(c[2 * i + 1]))
#define HK_MMA_8(type)                                                                                                 \
    HK_MMA_8_QUARTER(type, 0, c, a[0], b0);                                                                            \
    HK_MMA_8_QUARTER(type, 0, d, a[2], b1);                                                                            \
    HK_MMA_8_QUARTER(type, 1, c, a[1], b0);                                                                            \
    HK_MMA_8_QUARTER(type, 1, d, a[3], b1)
#endif
template <bool SIGNED> HK_FN void mma_8_bit(s32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const s32 (&c)[4]) {
    if (SIGNED) {
        HK_MMA_8("s8");
    } else {
        HK_MMA_8("u8");
    }
}

/* c[16][8] += a[16][16] b[16][8], fragments as PTX defines them for m16n8k16; two m16n8k8 on sm_75. */
HK_FN void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}
/* The compiler does not see through these: what is computed from the value later, is computed there. */
#define HK_OPAQUE(pointer)   asm volatile("" : "+l"(pointer))
#define HK_OPAQUE_WORD(word) asm("" : "+r"(word))

/* The transpose of an 8x8 matrix of halves: lane l holds columns 2 (l % 4) and the next of row l / 4, before and after.
 */
HK_FN u32 turned(u32 pair) {
    u32 r;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
}
/* Four 8x8 matrices of halves; lane l gives the address of row l % 8 of matrix l / 8. */
HK_FN void load_matrices(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
HK_FN void load_matrices_transposed(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#endif
