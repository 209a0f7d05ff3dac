/* hk_step.cuh, and the forms of the input that it takes, compiled for the host. */
#include "warp_on_host.h"

#include "../../../csrc/cuda/hk_precise.cuh"

/* A column [cols] in one part or two, and the meta of its units, as hk_input.cuh leaves them. */
template <class F, int PARTS> static void prepare(const float *x, s64 cols, int lane, s8 *codes, u8 *meta) {
    for (s64 i = lane; i < (cols + 255) / 256 * 32; i += 32) {
        float v[8] = {}, scale;
        if (8 * i < cols)
            std::copy(x + 8 * i, x + 8 * i + 8, v);
        if constexpr (PARTS == 1) {
            s32 sums[2];
            u32x2 word = quantise_eight(v, scale, sums);
            send_to(0, codes + 8 * i, word.v, 2, nullptr);
            if ((lane & 3) == 0)
                write_meta<F>(meta, (int)(i >> 2), scale, sums, nullptr, 0);
        } else {
            s32 sums[2][2];
            u32x4 words;
            quantise_eight(v, words, scale, sums);
            send_to(0, codes + place_of_eight((int)i), words.v, 4, nullptr);
            if ((lane & 3) == 0)
                write_meta<F>(meta, (int)(i >> 2), scale, sums, nullptr, 0);
        }
    }
}

/* y[n][rows] for n columns x [n][cols], weights in device layout. Several columns: as halves, whose memory is taken for
 * shared memory if `staged`. */
template <class F, int PARTS>
static void product(const u8 *at, s64 rows, s64 cols, const float *x, int n, int staged, float *y) {
    s64 records = (cols + F::COLUMNS - 1) / F::COLUMNS, steps = (cols + 255) / 256;
    std::vector<u32x4> parts(steps * step_of<F, PARTS>::CODES / 16);
    s8 *codes = (s8 *)parts.data();
    std::vector<u32x4> meta(steps * step_of<F, PARTS>::META / 2);
    std::vector<u16> half(steps * 256 * 8, 0x7E00); /* NaN where nobody writes */
    for (int j = 0; j < n && n > 1; j++)
        for (s64 i = 0; i < steps * 64; i++) {
            float v[4] = {};
            if (4 * i < cols)
                std::copy(x + j * cols + 4 * i, x + j * cols + 4 * i + 4, v);
            store_half_quad(half.data(), 8, i, j, pack_half2(v[0], v[1]), pack_half2(v[2], v[3]));
        }
    std::vector<std::thread> warp;
    std::vector<float> sums(32 * 4);
    for (int lane = 0; lane < 32; lane++)
        warp.emplace_back([&, lane] {
            threadIdx.x = lane;
            int g = lane >> 2, t = lane & 3;
            if (n == 1)
                prepare<F, PARTS>(x, cols, lane, codes, (u8 *)meta.data());
            meeting.arrive_and_wait();
            for (s64 tile = 0; tile < (rows + 15) / 16; tile++) {
                float one[2] = {0, 0}, few[4] = {0, 0, 0, 0};
                for (s64 step = 0; step < steps; step++) {
                    s64 first = step * step_of<F>::RECORDS;
                    const u8 *w = at + (tile * records + first) * F::BYTES;
                    s8 *c = codes + step_of<F, PARTS>::CODES * step;
                    u8 *m = (u8 *)meta.data() + 8 * step_of<F, PARTS>::META * step;
                    if constexpr (PARTS == 2)
                        multiply_two<F>(w, (int)(records - first), c, m, lane, lane_place<F>(lane), one);
                    else if (n == 1)
                        multiply_one<F>(w, (int)(records - first), column_place<F>(c, lane), m, lane, one);
                    else if (staged)
                        multiply_few<F, true>(w, (int)(records - first), (u8 *)half.data() + 4096 * step, 1024, lane,
                                              few);
                    else
                        multiply_few<F, false>(w, (int)(records - first), (u8 *)half.data() + 4096 * step, 1024, lane,
                                               few);
                }
                for (int e = 0; e < 4; e++)
                    sums[4 * lane + e] = n == 1 ? one[e & 1] : few[e];
                meeting.arrive_and_wait();
                for (int e = 0; e < 4; e++) {
                    s64 row = 16 * tile + g + 8 * (e >> 1);
                    int j = 2 * t + (e & 1);
                    if (row >= rows || j >= n)
                        continue;
                    float v = few[e] / step_weights<F>::CARRIED;
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
        if (precise)                                                                                                   \
            product<unit_##lower, 2>(at, rows, cols, x, n, staged, y);                                                 \
        else                                                                                                           \
            product<unit_##lower, 1>(at, rows, cols, x, n, staged, y);                                                 \
        return 0;                                                                                                      \
    }
#define HK_HOST_Q8_32(lower, id)                                 HK_HOST(lower, id)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_HOST_##act(lower, id)
extern "C" int product_on_host(int type, const u8 *at, s64 rows, s64 cols, const float *x, int n, int precise,
                               int staged, float *y) {
#include "../../../csrc/formats/hk_types.def"
    return -1;
}
