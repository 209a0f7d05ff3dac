/* The step of one token as one kernel: a block on every multiprocessor walks over a tape of instructions.
 *
 * A launch per operation loses 3 to 4 us at every change (its start, its first copies, the input, the last sums), while
 * memory works for less than half of them. Here weights, which depend on nothing, are asked for across instructions:
 * each warp keeps a queue of steps of whatever products come next on the tape (hk_stream.cuh), so memory goes on while
 * blocks wait for each other, prepare an input or attend.
 *
 * The tape lies in global memory; the next HK_TAPE instructions of it in shared memory. Blocks meet (a counter in
 * global memory) only in front of instructions that need what others wrote. The launch must be cooperative: all blocks
 * have to be there at the same time.
 *
 * Products: as in matvec.cu, with what differs between formats behind a switch in front of every step. Sums of a tile
 * are left in shared memory by the warp that begins it, and those of the warps that go on with it beside them; once all
 * are there, a thread per row adds them in order: results do not depend on timing.
 *
 * Attention: a block has up to 8 query heads of a KV head and a part of the cache, as in attend_decode.cu; it
 * normalises and rotates its queries itself, and whoever has the last part stores the new key and value. Its chunks lie
 * at the end of the warps' memory, which weights leave free for it if it is needed.
 *
 * WARPS and RING (bytes of a warp's cached tokens) are the including file's.
 *
 * Every wait gives up with a trap after some seconds: a step that fails is an error, and never a hang.
 */
#ifndef HK_TOKEN_CUH
#define HK_TOKEN_CUH

#include "hk_token_attend.cuh"
#include "hk_token_products.cuh"

/* --- rows --- */

/* With a norm one block does it all. */
HK_FN void one_row(token_block &b, const hk_rows_args &a) {
    s64 row = a.mode == HK_ROW_SELECT ? a.step.outputs[0] : 0;
    const float *x = a.x + row * a.x_stride, *y = has_second(a.mode) ? a.y + row * a.y_stride : 0;
    int width = (int)a.width, thread = threadIdx.x;
    float factor = 1;
    if (a.normalise) {
        if (blockIdx.x)
            return;
        float sum = 0;
        for (int i = 4 * thread; i < width; i += 4 * THREADS) {
            f32x4 v = load_fresh4(x + i);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum += v.v[j] * v.v[j];
        }
        factor = rsqrtf(block_reduce<false>(sum, b.sums, thread, THREADS) / (float)width + a.eps);
    }
    int stride = a.normalise ? THREADS : THREADS * gridDim.x;
    for (int i = a.normalise ? thread : blockIdx.x * THREADS + thread; i < width; i += stride) {
        float v = combine(a.mode, load_fresh(x + i), y ? load_fresh(y + i) : 0, a.number);
        if (a.normalise)
            v *= factor * (a.norm ? a.norm[i] : 1.0f);
        if (a.add)
            v += load_fresh(a.add + i);
        a.out[i] = v;
    }
}

/* --- the walk --- */

template <int HD> HK_FN void token(const hk_token_args &args) {
    extern __shared__ __align__(128) u8 shared[];
    int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
    token_block b = {args};
    block_memory &memory = memory_of_block(); /* at addresses that are known here: registers are short */
    hk_instruction *tape = memory.tape;
    b.sums = (float *)(shared + sizeof(block_memory) + WARPS * args.ring);
    b.rest = memory.rest, b.squares = memory.squares, b.place = memory.place;
    b.input = (u8 *)(b.sums + 16 * args.tiles);
    b.tape = {tape, 0};
    b.stream.data = shared + sizeof(block_memory) + warp * args.ring;
    b.stream.queue = memory.queues + warp;
    b.stream.room = args.ring, b.stream.area = RING;
    b.stream.warp = warp, b.stream.lane = lane;
    for (int k = thread; k < min(args.n, HK_TAPE) * (HK_INSTRUCTION_BYTES / 16); k += THREADS)
        ((u32x4 *)tape)[k] = ((const u32x4 *)args.tape)[k];
    b.stream.start();
    b.position = args.step.positions[0];
    if (thread == 0) {
        b.place[0] = args.step.sequences[0];
        b.place[1] = args.step.pages[b.place[0] * args.step.page_stride + b.position / HK_PAGE];
    }
    b.stream.outputs = args.step.counts[1] > 0;
    bool idle = args.step.counts[0] == 0;
    __syncthreads();
    for (int i = 0; i < args.n && !idle; i++) {
        const hk_instruction &it = b.tape[i];
        if (i && warp == 0 && i - 1 + HK_TAPE < args.n)
            copy16_async((u8 *)(tape + (i - 1) % HK_TAPE) + 16 * lane,
                         (const u8 *)(args.tape + i - 1 + HK_TAPE) + 16 * lane, true);
        copies_commit();
        b.tape.known = min(args.n, i + HK_TAPE - 1);
        b.index = i;
        STAMP(0);
        look_ahead(b);
        fill(b);
        if (it.kind == HK_DO_ATTEND) {
            attention<HD>(b, it);
        } else if (it.kind == HK_DO_PRODUCTS) {
            if (it.products.rows_are_outputs && !b.stream.outputs)
                wait_for_others(b, it.waits);
            else
                products(b, it);
        } else {
            wait_for_others(b, it.waits);
            STAMP(1);
            if (!it.rows.rows_are_outputs || b.stream.outputs)
                one_row(b, it.rows);
        }
        STAMP(4);
        copies_wait<0>();
        __syncthreads();
        if (i + 1 < args.n && b.tape[i + 1].waits)
            arrive(b);
    }
    /* The last block to leave makes the counters zero again. */
    if (thread == 0 && atomicAdd(args.arrived + 1, 1) == (int)gridDim.x - 1) {
        args.arrived[0] = 0;
        args.arrived[1] = 0;
    }
}

#endif
