/* hk_halves.cuh and the half form of hk_rows.cuh compiled for the host; what reads the tokens, as the 128-byte swizzle
 * defines them. */
#include "warp_on_host.h"

#include "../../../csrc/cuda/hk_halves.cuh"

#define BLOCKS 2 /* of 8 tokens */

/* out[n][rows] += x w + bias for up to 16 columns x [n][cols], weights in device layout. */
template <class F>
static void product(const u8 *at, s64 rows, s64 cols, const float *x, int n, const float *scales, const float *bias,
                    float *out) {
    typedef typename step_type<F>::type W;
    s64 steps = (cols + HK_STEP - 1) / HK_STEP, records = (cols + F::COLUMNS - 1) / F::COLUMNS, stride = 8 * BLOCKS;
    std::vector<u16> half(steps * HK_STEP * stride, 0x7E00); /* NaN where nobody writes */
    for (int j = 0; j < n; j++)
        for (s64 i = 0; i < steps * HK_STEP / 4; i++) {
            float v[4] = {0, 0, 0, 0};
            if (4 * i < cols)
                std::copy(x + j * cols + 4 * i, x + j * cols + 4 * i + 4, v);
            store_half_quad(half.data(), stride, i, j, pack_half2(v[0], v[1]), pack_half2(v[2], v[3]));
        }
    u32 a[32][4];
    hk_part p = {};
    p.out = out, p.add = out, p.bias = bias, p.rows = rows, p.out_stride = p.add_stride = rows;
    std::vector<float> scaled(scales, scales + n);
    scaled.resize(8 * BLOCKS, 0);
    for (float &s : scaled)
        s /= W::CARRIED;
    std::vector<std::thread> warp;
    for (int lane = 0; lane < 32; lane++)
        warp.emplace_back([&, lane] {
            threadIdx.x = lane;
            int g = lane >> 2, t = lane & 3;
            for (s64 tile = 0; tile < (rows + 15) / 16; tile++) {
                float acc[4 * BLOCKS] = {};
                for (s64 step = 0; step < steps; step++) {
                    W w;
                    s64 first = step * W::RECORDS;
                    w.load(at + (tile * records + first) * F::BYTES, (int)(records - first), lane);
                    for (int j = 0; j < 4; j++)
                        for (int k = 0; k < 4; k++) {
                            w.fragment(j, k, lane, a[lane]);
                            meeting.arrive_and_wait();
                            for (int e = 0; e < 4 * BLOCKS; e++) {
                                int row = g + 8 * (e >> 1 & 1), token = 8 * (e >> 2) + 2 * t + (e & 1);
                                for (int c = 0; c < 16; c++) {
                                    u32 pair = a[4 * (row & 7) + (c >> 1 & 3)][(row >> 3) + 2 * (c >> 3)];
                                    int piece = (16 * k + c) / 8 ^ (token & 7);
                                    u16 b = half[((4 * step + j) * stride + token) * 64 + 8 * piece + c % 8];
                                    acc[e] += (c & 1 ? high(pair) : low(pair)) * half_to_float(b);
                                }
                            }
                            meeting.arrive_and_wait();
                        }
                }
                store_blocks<BLOCKS>(p, (int)(16 * tile) + g, 0, n, scaled.data(), acc);
            }
        });
    for (std::thread &one : warp)
        one.join();
}

#define HK_HOST_F32(lower, id)
#define HK_HOST(lower, id)                                                                                             \
    if (type == id) {                                                                                                  \
        product<unit_##lower>(at, rows, cols, x, n, scales, bias, out);                                                \
        return 0;                                                                                                      \
    }
#define HK_HOST_Q8_32(lower, id)                                 HK_HOST(lower, id)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_HOST_##act(lower, id)
extern "C" int halves_on_host(int type, const u8 *at, s64 rows, s64 cols, const float *x, int n, const float *scales,
                              const float *bias, float *out) {
#include "../../../csrc/formats/hk_types.def"
    return -1;
}
