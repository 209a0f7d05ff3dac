/* The k likeliest tokens of every output row, sorted by logit, the lowest token first among equals, with the log of the
 * sum of all exponentials: what temperature, top-k, top-p and min-p need, so that the logits stay on the device.
 *
 * Every thread of the grid takes a group of up to 16 logits and leaves the group's maximum. The last block finds the
 * k-th largest of these maxima, by histograms of 11 bits from the top: at least k logits are as large, and because
 * there are many more groups than k, hardly any more. It reads the groups that hold them again and sorts by counting,
 * for each key, the larger ones. A key is the logit, made an unsigned integer that sorts alike, and behind it the
 * complement of the token: keys are unique, so the selection is exact. Where very many logits are equal, the block
 * walks over the whole row instead.
 *
 * Lost: lists of candidates by block, each with its own k largest; 64 k of them have to be looked through (16 to 120
 * us).
 *
 * grid (chunks, outputs), 256 threads; k <= 256, chunks <= 64, width <= 2^18.
 */
#include "hk_choice.cuh"
#include "hk_rows.cuh"

#define THREADS 256
#define BINS    2048
#define VALUES  16
#define CHUNKS  64
#define LEFT    3072 /* keys in shared memory */
#define SORTED  512
#define ID_BITS 18
#define ID_MASK ((1u << ID_BITS) - 1)

HK_FN u64 key_of(float x, int id) {
    u32 u = __float_as_uint(x + 0.0f); /* -0 becomes 0: equal logits have equal keys */
    u ^= (s32)u < 0 ? ~0u : 0x80000000u;
    return (u64)u << ID_BITS | (ID_MASK - (u32)id);
}
HK_FN float value_of(u64 key) {
    u32 u = (u32)(key >> ID_BITS);
    return __uint_as_float(u & 0x80000000u ? u ^ 0x80000000u : ~u);
}
HK_FN int id_of(u64 key) { return (int)(ID_MASK - ((u32)key & ID_MASK)); }

struct workspace {
    alignas(16) u32 bins[BINS];
    u32 warp_sums[THREADS / 32];
    u32 digit, above, inside, n, n_groups, floor;
    u16 groups[SORTED];
    u64 keys[LEFT], list[SORTED];
    float reduce[HK_MAX_WARPS];
};

/* Where a thread that has `mine` things to append may put them; whole warps, one atomic each. */
HK_FN u32 places(u32 &n, u32 mine) {
    u32 lane = threadIdx.x & 31, upto = mine, base = 0;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        u32 before = __shfl_up_sync(~0u, upto, o);
        upto += (int)lane >= o ? before : 0;
    }
    if (lane == 31 && upto)
        base = atomicAdd(&n, upto);
    return __shfl_sync(~0u, base, 31) + upto - mine;
}

/* The bin in which the k-th largest lies, counted from the top, `above` keys lying above all bins. */
HK_FN void find_bin(workspace &w, u32 k, u32 above) {
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    u32 count[BINS / THREADS], sum = 0;
#pragma unroll
    for (int i = 0; i < BINS / THREADS; i++)
        sum += count[i] = w.bins[thread * (BINS / THREADS) + i];
    u32 upwards = sum; /* of this lane and those behind it */
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        u32 more = __shfl_down_sync(~0u, upwards, o);
        upwards += lane + o < 32 ? more : 0;
    }
    if (lane == 0)
        w.warp_sums[warp] = upwards;
    __syncthreads();
    u32 over = above + upwards - sum;
    for (int i = warp + 1; i < THREADS / 32; i++)
        over += w.warp_sums[i];
#pragma unroll
    for (int i = BINS / THREADS - 1; i >= 0; i--) {
        if (over < k && over + count[i] >= k) {
            w.digit = thread * (BINS / THREADS) + i;
            w.above = over;
            w.inside = count[i];
        }
        over += count[i];
    }
    __syncthreads();
}

/* A cut at which k to `most` of the n keys that `each` visits lie at or above, or 0 if n is no more than that. Bits
 * below `last` are not looked at: more than `most` may be left then. */
template <class EACH> HK_FN u64 cut_for(workspace &w, u32 k, u32 most, u32 n, int last, EACH each) {
    u64 prefix = 0;
    u32 above = 0;
    if (n <= most)
        return 0;
    for (int shift = 39, bits = 11;;) {
        for (int i = threadIdx.x; i < BINS / 4; i += THREADS)
            ((u32x4 *)w.bins)[i] = {{0, 0, 0, 0}};
        __syncthreads();
        each([&](u64 key) {
            if (key >> (shift + bits) == prefix)
                atomicAdd(&w.bins[(u32)(key >> shift) & ((1u << bits) - 1)], 1u);
        });
        __syncthreads();
        find_bin(w, k, above);
        prefix = prefix << bits | w.digit;
        above = w.above;
        if (above + w.inside <= most || shift == last)
            return prefix << shift;
        bits = shift > 28 ? 11 : shift > 18 ? 10 : 9; /* 39, 28, 18, 9, 0 */
        shift -= bits;
    }
}

/* A group's maximum as the upper part of a key, 0 where it is empty. */
HK_FN u32 *group_peaks(const hk_topk_args &a, int row) { return a.peaks + (s64)row * CHUNKS * THREADS; }
HK_FN int chunk_size(const hk_topk_args &a) { return ((int)a.width + (int)gridDim.x - 1) / (int)gridDim.x; }
/* The token that is value i of group g, -1 if there is none; size: of a chunk. */
HK_FN int token_at(const hk_topk_args &a, int size, int g, int i) {
    int inside = i * THREADS + g % THREADS, at = g / THREADS * size + inside;
    return inside < size && at < (int)a.width ? at : -1;
}

/* Maximum and sum of a block's chunk of a row, and the maxima of its groups. */
HK_FN void leave_chunk(const hk_topk_args &a, workspace &w, int row) {
    int group = blockIdx.x * THREADS + threadIdx.x, size = chunk_size(a);
    const float *logits = a.logits + row * a.stride;
    float v[VALUES], peak = -HK_INFINITY, sum = 0;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int at = token_at(a, size, group, i);
        v[i] = at >= 0 ? load_fresh(logits + at) : -HK_INFINITY;
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        bad |= v[i] != v[i];
        peak = fmaxf(peak, v[i]);
    }
    group_peaks(a, row)[group] = token_at(a, size, group, 0) >= 0 ? (u32)(key_of(peak, 0) >> ID_BITS) : 0;
    peak = block_reduce<true>(peak, w.reduce, threadIdx.x, THREADS);
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        sum += __expf(v[i] - peak);
    sum = block_reduce<false>(sum, w.reduce, threadIdx.x, THREADS);
    bad = __syncthreads_or(bad);
    if (threadIdx.x == 0) {
        f32x4 part = {{peak, sum, __int_as_float(bad), 0}};
        *(f32x4 *)(a.partial + 4 * ((s64)row * CHUNKS + blockIdx.x)) = part;
    }
}

/* At most SORTED keys, the k largest among them, into w.list; returns how many. */
HK_FN u32 select(const hk_topk_args &a, workspace &w, int row) {
    int thread = threadIdx.x;
    u32 peak[CHUNKS], filled = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        peak[c] = c < (int)gridDim.x ? load_fresh_word(group_peaks(a, row) + c * THREADS + thread) : 0;
    if (thread == 0) {
        w.n = w.n_groups = 0;
        w.floor = ~0u;
    }
    __syncthreads();
    /* At least 64 (256) maxima are as large as the smallest of the peaks of 64 (256) parts: the rest is out at once. */
    u32 floor = 0, most = min(SORTED, 2 * a.k + 64);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        floor = max(floor, peak[c]);
    for (int o = 1; o < 4 && a.k <= 64; o <<= 1)
        floor = max(floor, __shfl_xor_sync(~0u, floor, o));
    for (int o = 1; o < 32; o <<= 1)
        floor = min(floor, __shfl_xor_sync(~0u, floor, o));
    if ((thread & 31) == 0)
        atomicMin(&w.floor, floor);
    __syncthreads();
    floor = max(w.floor, 1u);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        filled += peak[c] >= floor;
    filled = (u32)block_reduce<false>((float)filled, w.reduce, thread, THREADS);
    u64 cut = cut_for(w, a.k, most, filled, ID_BITS, [&](auto take) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if (peak[c] >= floor)
                take((u64)peak[c] << ID_BITS);
    });
    cut = max(cut, (u64)floor << ID_BITS);
    u32 mine = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        mine += (u64)peak[c] << ID_BITS >= cut;
    u32 to = places(w.n_groups, mine);
    if (mine)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if ((u64)peak[c] << ID_BITS >= cut) {
                if (to < SORTED)
                    w.groups[to] = (u16)(c * THREADS + thread);
                to++;
            }
    __syncthreads();
    u32 n_groups = w.n_groups, total = n_groups * VALUES;
    int size = chunk_size(a);
    const float *logits = a.logits + row * a.stride;
    if (n_groups <= SORTED)
        for (u32 base = 0; base < total; base += 8 * THREADS) {
            float v[8];
            int at[8];
#pragma unroll
            for (int i = 0; i < 8; i++) { /* together: they come from far away */
                u32 j = base + i * THREADS + thread;
                at[i] = j < total ? token_at(a, size, w.groups[j / VALUES], j % VALUES) : -1;
                v[i] = at[i] >= 0 ? load_fresh(logits + at[i]) : 0;
            }
            u32 taken = 0;
#pragma unroll
            for (int i = 0; i < 8; i++)
                taken |= (u32)(at[i] >= 0 && key_of(v[i], at[i]) >= cut) << i;
            to = places(w.n, __popc(taken));
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (taken >> i & 1) {
                    if (to < LEFT)
                        w.keys[to] = key_of(v[i], at[i]);
                    to++;
                }
        }
    __syncthreads();
    bool fits = n_groups <= SORTED && w.n <= LEFT;
    u32 left = fits ? w.n : (u32)a.width;
    auto each = [&](auto take) {
        if (fits)
            for (u32 i = thread; i < left; i += THREADS)
                take(w.keys[i]);
        else
            for (s64 i = thread; i < a.width; i += THREADS)
                take(key_of(load_fresh(logits + i), (int)i));
    };
    cut = cut_for(w, a.k, a.k + 48, left, 0, each); /* sorting costs the square */
    __syncthreads();
    if (thread == 0)
        w.n = 0;
    __syncthreads();
    each([&](u64 key) {
        if (key >= cut)
            w.list[atomicAdd(&w.n, 1u)] = key;
    });
    __syncthreads();
    return w.n;
}

HK_KERNEL __launch_bounds__(THREADS, 1) hk_topk(const __grid_constant__ hk_topk_args a) {
    __shared__ workspace w;
    allow_next();
    wait_for_previous();
    int row = blockIdx.y, thread = threadIdx.x, chunks = gridDim.x;
    if (row >= a.step.counts[1])
        return;
    leave_chunk(a, w, row);
    __threadfence();
    if (!__syncthreads_or(thread == 0 && atomicAdd(a.arrived + row, 1) == chunks - 1))
        return;
    __threadfence();
    f32x4 p = {{-HK_MAX_FLOAT, 0, 0, 0}};
    if (thread < chunks)
        p = load_fresh4(a.partial + 4 * ((s64)row * CHUNKS + thread));
    float best = block_reduce<true>(p.v[0], w.reduce, thread, THREADS);
    float sum = block_reduce<false>(p.v[1] * __expf(p.v[0] - best), w.reduce, thread, THREADS);
    bool bad = __syncthreads_or(__float_as_int(p.v[2])) || !(sum > 0) || !(best <= HK_MAX_FLOAT);
    float nan = __uint_as_float(0x7FC00000u), lse = bad ? nan : best + logf(sum);
    int *ids = a.ids + (s64)row * a.k;
    float *values = a.values + (s64)row * a.k;
    u32 n = bad ? 0 : select(a, w, row);
    for (u32 i = thread; i < n; i += THREADS) {
        u64 key = w.list[i];
        u32 rank = 0;
#pragma unroll 8
        for (u32 j = 0; j < n; j++)
            rank += w.list[j] > key;
        if (rank < (u32)a.k) {
            ids[rank] = id_of(key);
            values[rank] = value_of(key);
            if (rank == 0)
                w.digit = (u32)id_of(key);
        }
    }
    for (int i = n + thread; i < a.k; i += THREADS) {
        ids[i] = -1;
        values[i] = bad ? nan : -HK_INFINITY;
    }
    if (a.to.host)
        __threadfence_system();
    __syncthreads();
    if (thread)
        return;
    a.arrived[row] = 0;
    a.total[2 * row] = bad ? nan : best;
    a.total[2 * row + 1] = lse;
    hand_over(a.to, a.step, row, bad ? -1 : (int)w.digit, bad ? nan : best, lse);
}
