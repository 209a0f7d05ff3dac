/* hk_step.cuh compiled for the host: a warp is 32 threads, and what its lanes do together is done over shared arrays.
 * The matrix instruction is written here as PTX defines its fragments. */
#include "device_on_host.h"

#include <barrier>
#include <thread>
#include <vector>

static std::barrier<> meeting(32);
static thread_local int own_lane;
static u32 exchange[32][6];

template <bool SIGNED>
static void mma_8_bit(s32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const s32 (&start)[4]) {
    s32 c[4] = {start[0], start[1], start[2], start[3]};
    for (int i = 0; i < 4; i++)
        exchange[own_lane][i] = a[i];
    exchange[own_lane][4] = b0;
    exchange[own_lane][5] = b1;
    meeting.arrive_and_wait();
    int g = own_lane >> 2, t = own_lane & 3;
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
static u32 shuffle(u32 v, int from) {
    exchange[own_lane][0] = v;
    meeting.arrive_and_wait();
    v = exchange[from & 31][0];
    meeting.arrive_and_wait();
    return v;
}
static float __shfl_sync(u32, float v, int from) {
    u32 w;
    memcpy(&w, &v, 4);
    return __uint_as_float(shuffle(w, from));
}
#include "../../../csrc/cuda/hk_step.cuh"

/* y[n][rows] for n columns: codes [n][cols] and scales [n][cols / 32], weights in device layout. */
template <class F>
static void product(const u8 *at, s64 rows, s64 cols, const s8 *codes, const float *scales, int n, float *y) {
    s64 records = (cols + F::COLUMNS - 1) / F::COLUMNS, steps = (cols + 255) / 256, units = cols / 32;
    std::vector<s8> x(n == 1 ? steps * 256 : units * 256, 0);
    std::vector<u8> meta(n == 1 ? steps * 8 * step_of<F>::META : units * 64, 0);
    for (int j = 0; j < n; j++)
        for (s64 u = 0; u < (n == 1 ? steps * 8 : units); u++) {
            s32 sums[2] = {0, 0};
            for (int l = 0; l < 32 && u < units; l++) {
                s8 c = codes[j * cols + 32 * u + l];
                sums[l >> 4] += c;
                x[n == 1 ? 32 * u + l : 256 * u + 32 * j + l] = c;
            }
            float scale = u < units ? scales[j * units + u] : 0;
            if (n == 1) {
                write_meta<F>(meta.data(), (int)u, scale, sums);
            } else {
                memcpy(&meta[64 * u + 8 * j], &scale, 4);
                u32 both = ((u32)sums[0] & 0xFFFF) | (u32)sums[1] << 16;
                memcpy(&meta[64 * u + 8 * j + 4], &both, 4);
            }
        }
    std::vector<std::thread> warp;
    std::vector<float> sums(32 * 4);
    for (int lane = 0; lane < 32; lane++)
        warp.emplace_back([&, lane] {
            own_lane = lane;
            int g = lane >> 2, t = lane & 3;
            for (s64 tile = 0; tile < (rows + 15) / 16; tile++) {
                float one[2] = {0, 0}, few[4] = {0, 0, 0, 0};
                for (s64 step = 0; step < steps; step++) {
                    s64 first = step * step_of<F>::RECORDS;
                    const u8 *w = at + (tile * records + first) * F::BYTES;
                    if (n == 1)
                        multiply_one<F>(w, (int)(records - first), x.data() + 256 * step,
                                        meta.data() + 8 * step_of<F>::META * step, lane, one);
                    else
                        multiply_few<F>(w, (int)(units - 8 * step), x.data() + 2048 * step, meta.data() + 512 * step,
                                        lane, few);
                }
                for (int e = 0; e < 4; e++)
                    sums[4 * lane + e] = n == 1 ? one[e & 1] : few[e];
                meeting.arrive_and_wait();
                for (int e = 0; e < 4; e++) {
                    s64 row = 16 * tile + g + 8 * (e >> 1);
                    int j = 2 * t + (e & 1);
                    if (row >= rows || j >= n)
                        continue;
                    float v = few[e];
                    if (n == 1) {
                        v = 0;
                        for (int q = 0; q < 4; q++)
                            v += sums[4 * (4 * g + q) + (e >> 1)];
                    }
                    y[j * rows + row] = v;
                }
                meeting.arrive_and_wait();
            }
        });
    for (std::thread &one : warp)
        one.join();
}

#define HK_HOST_F32(lower, id)
#define HK_HOST(lower, id)                                                                                             \
    if (type == id) {                                                                                                  \
        product<unit_##lower>(at, rows, cols, codes, scales, n, y);                                                    \
        return 0;                                                                                                      \
    }
#define HK_HOST_Q8_32(lower, id)                                 HK_HOST(lower, id)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_HOST_##act(lower, id)
extern "C" int product_on_host(int type, const u8 *at, s64 rows, s64 cols, const s8 *codes, const float *scales, int n,
                               float *y) {
#include "../../../csrc/formats/hk_types.def"
    return -1;
}
