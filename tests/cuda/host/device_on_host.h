/* What csrc/cuda/hk_device.cuh gives kernels on the device, as far as the layout and one step of a product need it. */
#ifndef HK_DEVICE_ON_HOST_H
#define HK_DEVICE_ON_HOST_H
#define HK_DEVICE_CUH
#define HK_CLUSTER_CUH
#define HK_ON_HOST
#define __device__
#define HK_FN             static inline
#define HK_MEMBER         inline
#define HK_OPAQUE(p)      ((void)(p))
#define HK_OPAQUE_WORD(w) ((void)(w))
#define HK_MAX_FLOAT      3.402823466e+38f
#define HK_INFINITY       INFINITY
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
struct alignas(16) u32x4 {
    u32 v[4];
};
struct alignas(8) u32x2 {
    u32 v[2];
};
static float __uint_as_float(u32 w) {
    float f;
    memcpy(&f, &w, 4);
    return f;
}
static u32 __float_as_uint(float f) {
    u32 w;
    memcpy(&w, &f, 4);
    return w;
}
static s32 __float_as_int(float f) { return (s32)__float_as_uint(f); }
static float __int_as_float(s32 w) { return __uint_as_float((u32)w); }
static float half_to_float(u16 h) {
    _Float16 f;
    memcpy(&f, &h, 2);
    return (float)f;
}
static u16 float_to_half(float f) {
    _Float16 h = (_Float16)f;
    u16 w;
    memcpy(&w, &h, 2);
    return w;
}
static u32 multiply_add(u32 a, u32 b, u32 c) { return a * b + c; }
static u32 whole_warp() { return ~0u; }
static float larger_or_nan(float a, float b) { return a != a || a > b ? a : b; }
static float reciprocal_of(float x) { return 1 / x; }
template <bool HIGH> static s32 dot2(u32 a, u32 b, s32 c) {
    b >>= HIGH ? 16 : 0;
    return c + (s16)a * (s32)(b & 255) + (s16)(a >> 16) * (s32)(b >> 8 & 255);
}
static u32 half2_sub(u32 a, u32 b) {
    u32 low = float_to_half(half_to_float((u16)a) - half_to_float((u16)b));
    return low | (u32)float_to_half(half_to_float((u16)(a >> 16)) - half_to_float((u16)(b >> 16))) << 16;
}
static float bf16_to_float(u16 h) { return __uint_as_float((u32)h << 16); }
static void send_to(u32, void *to, const u32 *v, int words, u64 *) { memcpy(to, v, 4 * words); }
/* PTX prmt.b32 in its default mode. */
static u32 permute(u32 a, u32 b, u32 selector) {
    u64 bytes = a | (u64)b << 32;
    u32 out = 0;
    for (int i = 0; i < 4; i++) {
        u32 n = selector >> 4 * i & 15, v = (u32)(bytes >> 8 * (n & 7)) & 255;
        out |= (n & 8 ? (v & 128 ? 255 : 0) : v) << 8 * i;
    }
    return out;
}

#endif
