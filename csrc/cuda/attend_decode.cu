/* Attention of a step with few tokens: bound by reading the cache, so everything here is about bytes in flight.
 *
 * A block serves up to 8 query heads of one KV head and a part of the cache; each warp walks chunks of 16 tokens of its
 * own (hk_chunk.cuh), with a ring of asynchronous copies in shared memory and a softmax state of its own. No barrier
 * stands between them until they merge at the end; the block that comes last combines the parts of its heads.
 *
 * The tokens of a chunk are the 16 rows of a matrix instruction and the heads its 8 columns, so that a single head (no
 * grouped queries) costs a quarter of the issue slots there are: scores = K Q, out = V' P, the weights P turned by
 * movmatrix. Codes of quantised caches become halves in registers, in whatever order of dimensions the loads give: the
 * queries are loaded in the same order, and the results are stored through it.
 *
 * Tokens outside of the window are zeros in shared memory and their scales are zeroed in registers, never what a page
 * happens to hold: 0 * NaN is NaN.
 *
 * Pages before the first token of this step were written by earlier steps, and a step's graph starts when the one
 * before it has ended: their copies may start before wait_for_previous(), beside the kernels that make q, k and v.
 *
 * Lost, 8,192 tokens of 32 heads of 128 (32 us now): barriers between warps and one step in flight (64 us); 8 KiB a
 * ring, 4 or 8 warps (39-41 us); 16 KiB and three blocks (34 us); clusters of 8 blocks that combine through each
 * other's shared memory (43-52 us: they need 8 places in one group of multiprocessors at once; 128 tokens took twice
 * the time too). Norm, rotation and store of the heads in this launch saved as much as they cost without a context, and
 * lost 1.5 to 3 us a block with one: they stand in front of every block's first score, the launch of their own beside
 * the copies.
 */
#include "hk_chunk.cuh"
#include "hk_parts.cuh"

/* grid (splits, kv heads * tiles of 8 heads, tokens). */
template <int HD, int TYPE> HK_FN void decode(const hk_attend_args &a) {
    using S = chunk<HD, TYPE>;
    constexpr int SLOTS = S::SLOTS;
    extern __shared__ __align__(16) u8 rings[];
    allow_next();
    int token = blockIdx.z, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int group = a.n_head / a.cache.n_kv, tiles = (group + 7) / 8, split = blockIdx.x;
    int first_head = blockIdx.y % tiles * 8, rows = min(8, group - first_head);
    if (token >= a.step.counts[0]) {
        wait_for_previous();
        return;
    }
    int sequence = a.step.sequences[token], position = a.step.positions[token], settled = position;
    for (int i = 0; i < a.step.counts[0]; i++)
        if (a.step.sequences[i] == sequence)
            settled = min(settled, a.step.positions[i]);
    part_of_cache c = {a.step.pages + sequence * a.step.page_stride, (int)blockIdx.y / tiles,
                       a.window > 0 ? max(0, position + 1 - a.window) : 0, position + 1};
    int chunk0 = c.low / CHUNK, chunks = (c.high + CHUNK - 1) / CHUNK - chunk0;
    int splits = min(a.splits, (chunks + WARPS - 1) / WARPS);
    if (split >= splits) {
        wait_for_previous();
        return;
    }
    int begin = chunk0 + (int)((s64)split * chunks / splits) + warp;
    int end = chunk0 + (int)((s64)(split + 1) * chunks / splits);
    u8 *ring = rings + warp * RING;
    if (a.cache.dim_k < HD || a.cache.dim_v < HD) {
        u32x4 z = {{0, 0, 0, 0}};
        for (int i = lane; i < RING / 16; i += 32)
            ((u32x4 *)ring)[i] = z;
        __syncwarp();
    }
    /* Item 2 k is the keys of the warp's chunk k, 2 k + 1 its values. */
    int items = begin < end ? (end - begin + WARPS - 1) / WARPS * 2 : 0, early = 0;
    while (early < min(items, SLOTS) && (begin + early / 2 * WARPS + 1) * CHUNK <= settled)
        early += 2;
    fetch_items<HD, TYPE>(a, c, ring, begin, items, 0, early, lane);
    wait_for_previous();
    fetch_items<HD, TYPE>(a, c, ring, begin, items, early, SLOTS, lane);
    u32 q[HD / 8];
    int head = c.head * group + first_head;
    load_queries<HD, TYPE>(a, a.q + token * a.q_stride + (s64)(head + g) * a.cache.dim_k, g < rows, q, t);
    softmax st = {{-HK_INFINITY, -HK_INFINITY}, {0, 0}};
    float o[HD / 16][4] = {};
    walk<HD, TYPE>(a, c, ring, begin, end, q, st, o, lane);
    copies_wait<0>();
    __syncwarp();
    leave_state<HD, TYPE>(*(merged<HD> *)ring, st, o, rows, lane);
    int *arrived = a.arrived + token * gridDim.y + blockIdx.y;
    finish<HD>(a, {rings, RING, WARPS, token, head, rows, split, splits, arrived, (float *)rings});
}

#define HK_DECODE(name, type, hd)                                                                                      \
    HK_KERNEL __launch_bounds__(WARPS * 32, 2) hk_decode##hd##_##name(const __grid_constant__ hk_attend_args a) {      \
        decode<hd, type>(a);                                                                                           \
    }
#define HK_DECODE_SIZES(name, type) HK_DECODE(name, type, 64) HK_DECODE(name, type, 128) HK_DECODE(name, type, 256)
HK_DECODE_SIZES(f16, HK_CACHE_F16)
HK_DECODE_SIZES(q8_0, HK_CACHE_Q8_0)
HK_DECODE_SIZES(q4_0, HK_CACHE_Q4_0)
