/* Attention of one token (hk_token.cuh): its heads' norm, rotation and store included. */
#ifndef HK_TOKEN_ATTEND_CUH
#define HK_TOKEN_ATTEND_CUH

#include "hk_token_block.cuh"

#include "hk_head.cuh"
#include "hk_parts.cuh"

template <int HD, int TYPE> HK_FN void attend_part(token_block &b, const hk_instruction &i, const attended &p) {
    using S = chunk<HD, TYPE>;
    constexpr int SLOTS = S::SLOTS;
    static_assert(sizeof(merged<HD>) <= RING, "a warp's state needs room");
    const hk_attend_args &a = i.attend;
    int warp = b.stream.warp, lane = b.stream.lane, begin = p.begin + warp, end = p.end;
    u8 *ring = b.stream.data + b.stream.room - RING;
    part_of_cache c = {a.step.pages + b.place[0] * a.step.page_stride, p.kv_head, p.low, b.position + 1};
    int items = begin < end ? (end - begin + WARPS - 1) / WARPS * 2 : 0, early = 0;
    if (items && (a.cache.dim_k < HD || a.cache.dim_v < HD)) {
        u32x4 z = {{0, 0, 0, 0}};
        for (int k = lane; k < RING / 16; k += 32)
            ((u32x4 *)ring)[k] = z;
        __syncwarp();
    }
    while (early < min(items, SLOTS) && (begin + early / 2 * WARPS + 1) * CHUNK <= b.position)
        early += 2;
    fetch_items<HD, TYPE>(a, c, ring, begin, items, 0, early, lane);
    const hk_heads_args &h = i.heads;
    if (h.stream[0].angles && lane < (h.stream[0].half + 15) / 16) /* they were there before this kernel */
        asm volatile("prefetch.global.L1 [%0];" ::"l"(h.stream[0].angles + 32 * lane));
    wait_for_others(b, i.waits);
    STAMP(1);
    /* Queries, and for the last part of the cache the new key and value. */
    float *queries = (float *)b.input;
    int jobs = p.rows + (p.split == p.splits - 1 ? h.n_streams - 1 : 0);
    for (int j = warp; j < jobs; j += WARPS) {
        bool query = j < p.rows;
        const hk_stream &s = h.stream[query ? 0 : 1 + j - p.rows];
        int head = query ? p.first_head + j : p.kv_head;
        float *y = queries + (query ? j : 18 + j - p.rows) * HD, *v = queries + (8 + j) * HD;
        turn_head<HD / 32, false>(s, s.x + head * s.dim, s.angles, v, y, lane);
        if (s.store)
            store_head<TYPE>(plane_of<TYPE>(h.cache, b.place[1], head, s.store == 2), s.dim, b.position % HK_PAGE, y,
                             lane);
    }
    if (threadIdx.x == 0)
        memory_of_block().part = p;
    __syncthreads();
    STAMP(2);
    fetch_items<HD, TYPE>(a, c, ring, begin, items, early, SLOTS, lane);
    u32 q[HD / 8];
    int g = lane >> 2;
    load_queries<HD, TYPE, true>(a, queries + g * HD, g < p.rows, q, lane & 3);
    softmax st = {{-HK_INFINITY, -HK_INFINITY}, {0, 0}};
    float o[HD / 16][4] = {};
    walk<HD, TYPE>(a, c, ring, begin, end, q, st, o, lane);
    copies_wait<0>();
    __syncwarp();
    const attended &r = memory_of_block().part; /* the same again: registers are short in between */
    if (begin < end)
        leave_state<HD, TYPE>(*(merged<HD> *)ring, st, o, r.rows, lane);
    STAMP(3);
    const u8 *states = b.stream.data - warp * b.stream.room + b.stream.room - RING;
    finish<HD>(a, {states, (int)b.stream.room, min(WARPS, r.end - r.begin), 0, r.first_head, r.rows, r.split, r.splits,
                   a.arrived + r.tile, (float *)b.input});
    /* The memory was written by threads; copies of weights come next. */
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
template <int HD> HK_FN void attention(token_block &b, const hk_instruction &i) {
    attended p = part_of(i.attend, b.position);
    if (!p.any)
        wait_for_others(b, i.waits);
    else if (i.attend.cache.type == HK_CACHE_F16)
        attend_part<HD, HK_CACHE_F16>(b, i, p);
    else if (i.attend.cache.type == HK_CACHE_Q8_0)
        attend_part<HD, HK_CACHE_Q8_0>(b, i, p);
    else
        attend_part<HD, HK_CACHE_Q4_0>(b, i, p);
    __syncthreads();
    b.stream.give_back(b.index);
}

#endif
