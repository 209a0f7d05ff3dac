/* A warp on the host: its lanes are 32 threads, and what they do together is done over shared arrays. Matrix
 * instructions are written here as PTX defines their fragments. */
#ifndef HK_WARP_ON_HOST_H
#define HK_WARP_ON_HOST_H
#include "device_on_host.h"

#include <barrier>
#include <thread>
#include <vector>

#define __forceinline__ inline
#define __expf          expf
using std::max;
using std::min;
static std::barrier<> meeting(32);
static thread_local struct {
    int x;
} threadIdx;
static u64 exchange[32][6];

static u32 __shfl_sync(u32, u32 v, int from) {
    exchange[threadIdx.x][0] = v;
    meeting.arrive_and_wait();
    v = (u32)exchange[from & 31][0];
    meeting.arrive_and_wait();
    return v;
}
static float __shfl_sync(u32 all, float v, int from) {
    return __uint_as_float(__shfl_sync(all, __float_as_uint(v), from));
}
static s32 __shfl_xor_sync(u32 all, s32 v, int with) { return (s32)__shfl_sync(all, (u32)v, threadIdx.x ^ with); }
static float __shfl_xor_sync(u32 all, float v, int with) {
    return __uint_as_float(__shfl_sync(all, __float_as_uint(v), threadIdx.x ^ with));
}
static u32 pack_half2(float lo, float hi) { return (u32)float_to_half(lo) | (u32)float_to_half(hi) << 16; }
static float low(u32 w) { return half_to_float((u16)w); }
static float high(u32 w) { return half_to_float((u16)(w >> 16)); }
static u32 half2_mul(u32 a, u32 b) { return pack_half2(low(a) * low(b), high(a) * high(b)); }
static u32 half2_fma(u32 a, u32 b, u32 c) { return pack_half2(low(a) * low(b) + low(c), high(a) * high(b) + high(c)); }
static float load_fresh(const float *p) { return *p; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fmul_rn(float a, float b) { return a * b; }
static s32 dot4(u32 a, u32 b, s32 c) {
    for (int i = 0; i < 32; i += 8)
        c += (s8)(a >> i) * (s8)(b >> i);
    return c;
}

template <bool SIGNED> static void mma_8_bit(s32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const s32 (&start)[4]) {
    s32 c[4] = {start[0], start[1], start[2], start[3]};
    for (int i = 0; i < 6; i++)
        exchange[threadIdx.x][i] = i < 4 ? a[i] : i == 4 ? b0 : b1;
    meeting.arrive_and_wait();
    int g = threadIdx.x >> 2, t = threadIdx.x & 3;
    for (int e = 0; e < 4; e++) {
        int row_half = e >> 1, column = 2 * t + (e & 1);
        for (int k = 0; k < 32; k++) {
            int lane_k = k >> 2 & 3, byte = k & 3, half = k >> 4;
            u32 w = exchange[4 * g + lane_k][row_half + 2 * half] >> 8 * byte & 255;
            s32 x = (s8)(exchange[4 * column + lane_k][4 + half] >> 8 * byte & 255);
            c[e] += (SIGNED ? (s32)(s8)w : (s32)w) * x;
        }
    }
    meeting.arrive_and_wait();
    std::copy(c, c + 4, d);
}
static void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    for (int i = 0; i < 6; i++)
        exchange[threadIdx.x][i] = i < 4 ? a[i] : i == 4 ? b0 : b1;
    meeting.arrive_and_wait();
    int g = threadIdx.x >> 2, t = threadIdx.x & 3;
    for (int e = 0; e < 4; e++)
        for (int k = 0; k < 16; k++) {
            u32 w = (u32)exchange[4 * g + (k >> 1 & 3)][(e >> 1) + 2 * (k >> 3)];
            u32 x = (u32)exchange[4 * (2 * t + (e & 1)) + (k >> 1 & 3)][4 + (k >> 3)];
            c[e] += (k & 1 ? high(w) : low(w)) * (k & 1 ? high(x) : low(x));
        }
    meeting.arrive_and_wait();
}
static void load_matrices(u32 (&r)[4], const void *row) {
    exchange[threadIdx.x][0] = (u64)row;
    meeting.arrive_and_wait();
    for (int m = 0; m < 4; m++)
        memcpy(&r[m], (const u8 *)exchange[8 * m + (threadIdx.x >> 2)][0] + 4 * (threadIdx.x & 3), 4);
    meeting.arrive_and_wait();
}

/* What other functions of hk_rows.cuh name; nothing here calls them. */
static float warp_sum(float x) { return x; }
static float warp_max(float x) { return x; }
static void __syncthreads() {}

#endif
