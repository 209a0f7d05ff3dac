/* The k likeliest tokens of every output row, sorted by logit, the lowest token first among equals, with the log of the
 * sum of all exponentials: what temperature, top-k, top-p and min-p need, so that the logits stay on the device.
 *
 * A key is the logit, made an unsigned integer that sorts alike, and behind it the complement of the token: keys are
 * unique, so a selection is exact. Each block reduces its chunk of the row to a superset of its k largest, at most
 * HK_TOPK_KEPT, by histograms of 11 bits from the top, of which one is nearly always enough; the last block does the
 * same with what the others kept and sorts by counting, for each key, the larger ones.
 *
 * grid (chunks, outputs), 256 threads; k <= 256, width <= 2^18 and at most 16 values of a chunk per thread.
 */
#include "hk_choice.cuh"
#include "hk_rows.cuh"

#define THREADS 256
#define BINS    2048
#define VALUES  16
#define LEFT    3072 /* candidates of all chunks that the last block holds in shared memory */
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
    u32 bins[BINS];
    u32 warp_sums[THREADS / 32];
    u32 digit, above, inside, n, least, left, count[THREADS];
    u64 keys[LEFT];
    u64 list[HK_TOPK_KEPT];
    float reduce[HK_MAX_WARPS];
};

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

/* A cut such that k to `most` of the keys that `each` visits lie at or above it, or 0 if there are no more than that.
 */
template <class EACH> HK_FN u64 cut_for(workspace &w, u32 k, u32 most, EACH each) {
    if (threadIdx.x == 0)
        w.n = 0;
    __syncthreads();
    u32 mine = 0;
    each([&](u64) { mine++; });
#pragma unroll
    for (int o = 16; o; o >>= 1)
        mine += __shfl_xor_sync(~0u, mine, o);
    if ((threadIdx.x & 31) == 0)
        atomicAdd(&w.n, mine);
    __syncthreads();
    u64 prefix = 0;
    u32 above = 0;
    if (w.n <= most)
        return 0;
    for (int shift = 39, bits = 11;;) {
        for (int i = threadIdx.x; i < BINS; i += THREADS)
            w.bins[i] = 0;
        __syncthreads();
        each([&](u64 key) {
            if (key >> (shift + bits) == prefix)
                atomicAdd(&w.bins[(u32)(key >> shift) & ((1u << bits) - 1)], 1u);
        });
        __syncthreads();
        find_bin(w, k, above);
        prefix = prefix << bits | w.digit;
        above = w.above;
        if (above + w.inside <= most || shift == 0)
            return prefix << shift;
        bits = shift > 28 ? 11 : shift > 18 ? 10 : 9; /* 39, 28, 18, 9, 0 */
        shift -= bits;
    }
}

/* The keys at or above the cut into a list, in no order; returns how many. */
template <class EACH> HK_FN u32 collect(workspace &w, u64 cut, u64 *list, EACH each) {
    __syncthreads();
    if (threadIdx.x == 0)
        w.n = 0;
    __syncthreads();
    each([&](u64 key) {
        if (key >= cut)
            list[atomicAdd(&w.n, 1u)] = key;
    });
    __syncthreads();
    return w.n;
}

/* Reduces a block's chunk of a row. */
HK_FN void keep_chunk(const hk_topk_args &a, workspace &w, int row) {
    int thread = threadIdx.x;
    s64 size = (a.width + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * size, end = min(begin + size, a.width);
    float v[VALUES], peak = -HK_INFINITY, sum = 0;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        s64 at = begin + i * THREADS + thread;
        v[i] = at < end ? load_fresh(a.logits + row * a.stride + at) : -HK_INFINITY;
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        bad |= v[i] != v[i];
        peak = fmaxf(peak, v[i]);
    }
    /* At least 64 (256) values are as large as the smallest of the peaks of 64 (256) groups: the rest is out at once.
     */
    float group = a.k <= 64 ? fmaxf(peak, __shfl_xor_sync(~0u, peak, 1)) : peak;
    group = a.k <= 64 ? fmaxf(group, __shfl_xor_sync(~0u, group, 2)) : group;
    float floor = -block_reduce<true>(-group, w.reduce, thread, THREADS);
    peak = block_reduce<true>(peak, w.reduce, thread, THREADS);
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        sum += __expf(v[i] - peak);
    sum = block_reduce<false>(sum, w.reduce, thread, THREADS);
    auto each = [&](auto take) {
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            s64 at = begin + i * THREADS + thread;
            if (at < end && v[i] >= floor)
                take(key_of(v[i], (int)at));
        }
    };
    /* Fewer candidates would cost the last block less, but more passes here. */
    u64 cut = cut_for(w, a.k, min(HK_TOPK_KEPT, a.k + a.k / 2 + 32), each);
    u32 n = collect(w, cut, a.candidates + ((s64)row * gridDim.x + blockIdx.x) * HK_TOPK_KEPT, each);
    bad = __syncthreads_or(bad);
    if (thread == 0) {
        /* `least`: at least k of this chunk's values, and so of the row's, are as large (0: nothing known). */
        u32 least = n < (u32)a.k ? 0 : (u32)(max(cut, key_of(floor, ID_MASK)) >> ID_BITS);
        f32x4 part = {{peak, sum, __int_as_float(bad), __uint_as_float(n)}};
        float *to = a.partial + 8 * ((s64)row * gridDim.x + blockIdx.x);
        *(f32x4 *)to = part;
        to[4] = __uint_as_float(least);
    }
}

HK_KERNEL __launch_bounds__(THREADS) hk_topk(const __grid_constant__ hk_topk_args a) {
    __shared__ workspace w;
    allow_next();
    wait_for_previous();
    int row = blockIdx.y, thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, chunks = gridDim.x;
    if (row >= a.step.counts[1])
        return;
    keep_chunk(a, w, row);
    __threadfence();
    if (!__syncthreads_or(thread == 0 && atomicAdd(a.arrived + row, 1) == chunks - 1))
        return;
    __threadfence();
    const float *part = a.partial + 8 * (s64)row * chunks;
    float peak = -HK_MAX_FLOAT, sum = 0;
    bool bad = false;
    if (thread == 0)
        w.least = 0;
    __syncthreads();
    if (thread < chunks) {
        f32x4 p = load_fresh4(part + 8 * thread);
        peak = p.v[0];
        sum = p.v[1];
        bad = __float_as_int(p.v[2]) != 0;
        w.count[thread] = __float_as_uint(p.v[3]);
        atomicMax(&w.least, __float_as_uint(load_fresh(part + 8 * thread + 4)));
    }
    float best = block_reduce<true>(peak, w.reduce, thread, THREADS);
    sum = block_reduce<false>(sum * __expf(peak - best), w.reduce, thread, THREADS);
    bad = __syncthreads_or(bad) || !(sum > 0) || !(best <= HK_MAX_FLOAT);
    float nan = __uint_as_float(0x7FC00000u), lse = bad ? nan : best + logf(sum);
    int *ids = a.ids + (s64)row * a.k;
    float *values = a.values + (s64)row * a.k;
    u32 n = 0;
    if (!bad) {
        const u64 *kept = a.candidates + (s64)row * chunks * HK_TOPK_KEPT;
        u64 least = (u64)w.least << ID_BITS;
        auto kept_by_all = [&](auto take) {
            for (int c = warp; c < chunks; c += 4 * THREADS / 32) {
                u64 key[4][2];
#pragma unroll
                for (int i = 0; i < 8; i++) { /* together: they come from far away */
                    int chunk = c + (i >> 1) * THREADS / 32;
                    u32 at = lane + 32 * (i & 1);
                    key[i >> 1][i & 1] =
                        chunk < chunks && at < w.count[chunk] ? load_fresh8(kept + chunk * HK_TOPK_KEPT + at) : 0;
                }
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (key[i >> 1][i & 1] > least)
                        take(key[i >> 1][i & 1]);
                for (int i = 0; i < 4; i++) {
                    int chunk = c + i * THREADS / 32;
                    for (u32 at = lane + 64; chunk < chunks && at < w.count[chunk]; at += 32) {
                        u64 one = load_fresh8(kept + chunk * HK_TOPK_KEPT + at);
                        if (one > least)
                            take(one);
                    }
                }
            }
        };
        /* Nearly always what is left fits into shared memory, and further passes are cheap. */
        if (thread == 0)
            w.left = 0;
        __syncthreads();
        kept_by_all([&](u64 key) {
            u32 at = atomicAdd(&w.left, 1u);
            if (at < LEFT)
                w.keys[at] = key;
        });
        __syncthreads();
        bool fits = w.left <= LEFT;
        auto each = [&](auto take) {
            if (fits)
                for (u32 i = thread; i < w.left; i += THREADS)
                    take(w.keys[i]);
            else
                kept_by_all(take);
        };
        n = collect(w, cut_for(w, a.k, HK_TOPK_KEPT, each), w.list, each);
        for (u32 i = thread; i < n; i += THREADS) {
            u64 key = w.list[i];
            u32 rank = 0;
            for (u32 j = 0; j < n; j++)
                rank += w.list[j] > key;
            if (rank < (u32)a.k) {
                ids[rank] = id_of(key);
                values[rank] = value_of(key);
                if (rank == 0)
                    w.digit = (u32)id_of(key);
            }
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
