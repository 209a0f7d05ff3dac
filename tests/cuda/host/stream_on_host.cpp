/* hk_stream.cuh compiled for the host: every warp of every block walks over a tape, its 32 lanes one after the other.
 */
#include "device_on_host.h"

#define __forceinline__ inline
using std::min;
static struct {
    int x;
} blockIdx, gridDim;
static void __syncwarp() {}
static void copy16_async(void *to, const void *from, bool) { memcpy(to, from, 16); }
#include "../../../csrc/cuda/hk_stream.cuh"
#include <vector>

static constexpr int WARPS = 4;

/* Weights hold their own offset from `weights` in every four bytes. attends [n][blocks][WARPS]. visits [n][steps]: how
 * often a step of an instruction was taken, steps being those of its parts one behind the other. Returns the number of
 * words that were not what they should be, or minus the instruction that nothing could be taken for. */
extern "C" int stream_on_host(const hk_instruction *tape, int n, int blocks, int ring, int area, int outputs,
                              const u8 *attends, const u8 *weights, int *visits, int most_steps) {
    int wrong = 0;
    gridDim.x = blocks;
    for (int block = 0; block < blocks; block++)
        for (int warp = 0; warp < WARPS; warp++) {
            blockIdx.x = block;
            std::vector<u32> memory(ring / 4, 0xFFFFFFFF);
            std::vector<hk_instruction> window(HK_TAPE);
            std::vector<warp_queue> queues(32);
            std::vector<weight_stream<WARPS>> lanes(32);
            for (int lane = 0; lane < 32; lane++) {
                weight_stream<WARPS> &s = lanes[lane];
                s.data = (u8 *)memory.data(), s.room = ring, s.area = area, s.queue = &queues[lane];
                s.warp = warp, s.lane = lane, s.outputs = outputs;
                s.start();
            }
            int now = 0;
            auto wants = [&](const hk_instruction &i) {
                for (int k = now; k < n; k++) /* the instruction's number is in its padding */
                    if (i.waits == k)
                        return attends[(k * blocks + block) * WARPS + warp] != 0;
                return false;
            };
            tape_window view = {window.data(), 0};
            auto fill = [&] {
                for (auto &s : lanes)
                    s.fill(view, wants);
            };
            auto look_ahead = [&] {
                for (auto &s : lanes)
                    s.look_ahead(view, wants);
            };
            for (int k = 0; k < min(n, HK_TAPE); k++)
                window[k] = tape[k];
            for (; now < n; now++) {
                if (now && now - 1 + HK_TAPE < n)
                    memset(&window[(now - 1) % HK_TAPE], 0xA5, sizeof window[0]); /* on its way */
                view.known = min(n, now + HK_TAPE - 1);
                fill();
                look_ahead();
                const hk_instruction &i = view[now];
                if (i.kind == HK_DO_ATTEND) {
                    if (wants(i))
                        memset(lanes[0].data + ring - area, 0xEE, area);
                    for (auto &s : lanes)
                        s.give_back(now);
                } else if (i.kind == HK_DO_PRODUCTS && (outputs || !i.products.rows_are_outputs)) {
                    const hk_matvec_args &a = i.products;
                    block_share s = share_of(a, block, blocks);
                    for (int k = first_step(s, warp, WARPS); k < first_step(s, warp + 1, WARPS); k++) {
                        int v = k / s.steps, step = k % s.steps;
                        tile_place p = place_of(a, s, v);
                        const hk_format &f = i.format[p.second];
                        s64 records = (a.cols + f.columns - 1) / f.columns, first = step * (256 / f.columns);
                        s64 bytes = min<s64>(256 / f.columns, records - first) * f.record;
                        s64 at = a.part[p.part].w.at - weights + (p.tile * records + first) * f.record;
                        if (lanes[0].put == lanes[0].got)
                            return -now - 1;
                        const u8 *piece = lanes[0].take();
                        for (s64 b = 0; b < bytes; b += 4)
                            wrong += *(const u32 *)(piece + b) != (u32)(at + b);
                        s64 index = 0;
                        for (int q = 0; q < p.part; q++)
                            index += (a.part[q].rows + 15) / 16 * s.steps;
                        visits[now * most_steps + index + p.tile * s.steps + step]++;
                        for (auto &lane : lanes)
                            lane.release();
                        fill();
                    }
                }
                if (now && now - 1 + HK_TAPE < n)
                    window[(now - 1) % HK_TAPE] = tape[now - 1 + HK_TAPE];
            }
            wrong += lanes[0].put != lanes[0].got;
        }
    return wrong;
}
