/* The device layout's own source compiled for the host: converts raw rows and unpacks them again, lane by lane as a
 * warp would. What hk_device.cuh gives on the device is defined here instead. */
#define HK_DEVICE_CUH
#define HK_ON_HOST
#define __device__
#define HK_FN static inline
#include <cstdint>
#include <cstring>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int32_t s32;
typedef int64_t s64;
struct u32x4 {
    u32 v[4];
};
struct u32x2 {
    u32 v[2];
};
static float __uint_as_float(u32 w) {
    float f;
    memcpy(&f, &w, 4);
    return f;
}
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
static u32 half2_sub(u32 a, u32 b) {
    u32 low = float_to_half(half_to_float((u16)a) - half_to_float((u16)b));
    return low | (u32)float_to_half(half_to_float((u16)(a >> 16)) - half_to_float((u16)(b >> 16))) << 16;
}
static float bf16_to_float(u16 h) { return __uint_as_float((u32)h << 16); }
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
#include "../../../csrc/cuda/convert.cu"

template <class F> static s32 code_of(const lane_codes<F> &w, int u, int c, int i) {
    u32 v = F::code(w, u, c) >> 8 * i & 255;
    return (F::SIGNED ? (s32)(s8)v : (s32)v) >> F::shift(u);
}
/* Returns 1 where the halves of register c are not the codes. */
template <class F> static int half_differs(const lane_codes<F> &w, int u, int c) {
    u32 a[4];
    code_halves(w, u, c >> 1, a);
    for (int i = 0; i < 4; i++) {
        u32 pair = a[(c & 1) + (i < 2 ? 0 : 2)];
        float got = half_to_float((u16)(i & 1 ? pair >> 16 : pair));
        if (got != (float)((code_of(w, u, c, i) - F::ZERO) * (1 << F::shift(u))))
            return 1;
    }
    return 0;
}
/* Returns 1 where the sum of a pair is not the code. */
template <class F> static int pair_differs(const lane_codes<F> &w, int u, int c) {
    if constexpr (F::PAIRS) {
        u32 lower, upper;
        F::code_pair(w, u, c, lower, upper);
        for (int i = 0; i < 4; i++)
            if ((s8)(lower >> 8 * i) + (s8)(upper >> 8 * i) - F::PAIR_ZERO != code_of(w, u, c, i) - F::ZERO)
                return 1;
    }
    return 0;
}
template <class F> static int there_and_back(const u8 *raw, u8 *at, float *out, s64 rows, s64 cols, int block_bytes) {
    s64 records = (cols + F::COLUMNS - 1) / F::COLUMNS, tiles = (rows + 15) / 16;
    hk_convert_args a = {raw, {at}, rows, cols};
    int wrong = 0;
    for (s64 i = 0; i < tiles * records; i++)
        for (int lane = 0; lane < 32; lane++)
            convert_share<F>(a, i, lane, block_bytes);
    for (s64 i = 0; i < tiles * records; i++)
        for (int lane = 0; lane < 32; lane++) {
            const u8 *record = record_of<F>(a.to, cols, i / records, i % records);
            lane_codes<F> w;
            load_codes(w, record, lane);
            for (int u = 0; u < F::UNITS; u++)
                for (int c = 0; c < 4; c++) {
                    wrong |= pair_differs(w, u, c) | half_differs(w, u, c);
                    for (int k = 0; k < 4; k++) {
                        int row = (lane >> 2) + 8 * (c & 1), l = 8 * (lane & 3) + 4 * (c >> 1) + k;
                        float s, m;
                        scale_of<F>(record, row, u, l >> 4, s, m);
                        s64 to =
                            (i / records * 16 + row) * records * F::COLUMNS + i % records * F::COLUMNS + 32 * u + l;
                        out[to] = s * (float)(code_of(w, u, c, k) - F::ZERO) + m;
                    }
                }
        }
    return wrong;
}

#define HK_HOST_F32(lower, id, bytes)
#define HK_HOST(lower, id, bytes)                                                                                      \
    if (type == id)                                                                                                    \
        return there_and_back<unit_##lower>(raw, at, out, rows, cols, bytes);
#define HK_HOST_Q8_32(lower, id, bytes)                          HK_HOST(lower, id, bytes)
#define HK_HOST_Q8_256(lower, id, bytes)                         HK_HOST(lower, id, bytes)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_HOST_##act(lower, id, bytes)
/* out: [rows padded to 16][cols padded to a record]. 0: fine. */
extern "C" int layout_there_and_back(int type, const u8 *raw, u8 *at, float *out, s64 rows, s64 cols) {
#include "../../../csrc/formats/hk_types.def"
    return -1;
}
