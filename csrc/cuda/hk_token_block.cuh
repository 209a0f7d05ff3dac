/* What a block of the one-token kernel (hk_token.cuh) works with, how blocks wait for each other, and how weights are
 * asked for. */
#ifndef HK_TOKEN_BLOCK_CUH
#define HK_TOKEN_BLOCK_CUH

#define HK_CLUSTER 1
#ifndef HK_STEP_CODES
#define HK_STEP_CODES 256
#endif
#define MOST_WAITED 10000000000ull /* nanoseconds */
#include "hk_chunk.cuh"
#include "hk_stream.cuh"

#define THREADS (32 * WARPS)

HK_FN u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
#ifdef HK_STAMPS
#define STAMP(k)                                                                                                       \
    if (blockIdx.x == 0 && threadIdx.x == 0)                                                                           \
    b.args.stamps[6 * b.index + k] = nanoseconds()
#else
#define STAMP(k)
#endif

/* A block's part: chunks [begin, end) of the heads of one KV head, or of up to 8 of them. */
struct attended {
    int tile, kv_head, first_head, rows, split, splits, low, begin, end;
    bool any;
};
/* The part of shared memory whose size does not depend on the model: behind it weights on their way [WARPS][ring], sums
 * [tiles][16], the input. rest: of warps that go on with a tile; squares: of warps; place: the token's sequence, and
 * the page that its key and value go to. */
struct __align__(128) block_memory {
    hk_instruction tape[HK_TAPE];
    warp_queue queues[WARPS];
    float rest[16 * WARPS], squares[16];
    int place[2];
    attended part; /* for what comes behind the walk over the cache */
};
HK_FN block_memory &memory_of_block() {
    extern __shared__ __align__(128) u8 shared[];
    return *(block_memory *)shared;
}

/* What a block works with. */
struct token_block {
    const hk_token_args &args;
    weight_stream<WARPS> stream;
    tape_window tape;
    float *sums, *rest, *squares;
    u8 *input;
    int *place;
    int index, position; /* of the instruction; of the token */
};

/* --- blocks wait for each other --- */

HK_FN void arrive(const token_block &b) { /* behind a barrier of the block */
    if (threadIdx.x == 0)
        asm volatile("fence.acq_rel.gpu; red.relaxed.gpu.global.add.s32 [%0], 1;" ::"l"(b.args.arrived) : "memory");
}
HK_FN void wait_for_others(token_block &b, int waits) {
    if (!waits)
        return;
    int n = 0;
    if (threadIdx.x == 0) {
        int target = waits * (int)gridDim.x;
        u64 start = 0;
        for (int tries = 1;; tries++) {
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(b.args.arrived) : "memory");
            if (n >= target)
                break;
            if ((tries & 0xFFFF) == 0) {
                u64 now = nanoseconds();
                start = start ? start : now;
                if (now - start > MOST_WAITED)
                    asm volatile("trap;");
            }
        }
    }
    __syncthreads();
}

/* --- which part of attention a block has --- */

HK_FN attended part_of(const hk_attend_args &a, int position) {
    attended p;
    int group = a.n_head / a.cache.n_kv, per_head = (group + 7) / 8, block = blockIdx.x;
    p.low = a.window > 0 ? max(0, position + 1 - a.window) : 0;
    int chunk0 = p.low / CHUNK, chunks = position / CHUNK + 1 - chunk0;
    p.splits = min(a.splits, (chunks + WARPS - 1) / WARPS);
    p.tile = block / p.splits, p.split = block - p.tile * p.splits;
    p.any = p.tile < a.cache.n_kv * per_head;
    p.kv_head = p.tile / per_head;
    p.first_head = (p.tile - p.kv_head * per_head) * 8;
    p.rows = min(8, group - p.first_head);
    p.first_head += p.kv_head * group;
    p.begin = chunk0 + p.split * chunks / p.splits;
    p.end = chunk0 + (p.split + 1) * chunks / p.splits;
    return p;
}
HK_FN bool attends(const token_block &b, const hk_instruction &i, int warp) {
    attended p = part_of(i.attend, b.position);
    return p.any && p.begin + warp < p.end;
}

/* Asks for weights as far as there is room; works out what is asked for next. */
HK_FN void fill(token_block &b) {
    b.stream.fill(b.tape, [&](const hk_instruction &i) { return attends(b, i, b.stream.warp); });
}

HK_FN void look_ahead(token_block &b) {
    b.stream.look_ahead(b.tape, [&](const hk_instruction &i) { return attends(b, i, b.stream.warp); });
}

#endif
