/* The device layout's own source compiled for the host: converts raw rows and unpacks them again, lane by lane as a
 * warp would. The same of packed panels, without unpacking: what they become must be what the rows become. */
#include "device_on_host.h"

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
            convert_share<F>(a, i, lane, file_source<F>(a, block_bytes));
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
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_HOST_##act(lower, id, bytes)
/* out: [rows padded to 16][cols padded to a record]. 0: fine. */
extern "C" int layout_there_and_back(int type, const u8 *raw, u8 *at, float *out, s64 rows, s64 cols) {
#include "../../../csrc/formats/hk_types.def"
    return -1;
}

template <class F> static int from_panels(const hk_convert_args &a, int block_bytes, int scale_bytes) {
    s64 records = (a.cols + F::COLUMNS - 1) / F::COLUMNS;
    for (s64 i = 0; i < (a.rows + 15) / 16 * records; i++)
        for (int lane = 0; lane < 32; lane++)
            convert_share<F>(a, i, lane, panel_source<F>(a, block_bytes, scale_bytes));
    return 0;
}
template <class T> static int floats_from_panels(const hk_convert_args &a) {
    for (s64 i = 0; i < (a.rows + 15) / 16 * ((a.cols + 31) / 32); i++)
        for (int lane = 0; lane < 32; lane++)
            unpack_share<T>(a, i, lane);
    return 0;
}
#undef HK_HOST_F32
#undef HK_HOST_Q8_32
#undef HK_TYPE
#define HK_HOST_F32(lower, bytes, scale_bytes)   return floats_from_panels<float_of_##lower>(a);
#define HK_HOST_Q8_32(lower, bytes, scale_bytes) return from_panels<unit_##lower>(a, bytes, scale_bytes);
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act)                                                       \
    if (type == id)                                                                                                    \
    HK_HOST_##act(lower, bytes, scale_bytes)
extern "C" int layout_of_panels(int type, const u8 *panels, u8 *at, s64 rows, s64 cols) {
    hk_convert_args a = {panels, {at}, rows, cols};
#include "../../../csrc/formats/hk_types.def"
    return -1;
}
