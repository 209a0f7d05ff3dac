/* Products of quantised weights with 1 to 8 columns, bound by memory: enough bytes must be under way at any moment.
 *
 * A step is 16 rows x 256 columns (hk_step.cuh). Every block has a contiguous range of row tiles, as equal in bytes as
 * can be, and shares the steps of that range out between its warps, again in contiguous pieces. A warp takes its steps
 * from a queue of its own in shared memory (hk_ring.cuh), whose copies start before the wait for the previous kernel
 * (programmatic dependent launch): weights depend on nothing, so memory stays busy while kernels change. Warps meet
 * once, at the end, for the tiles that they share: the one that began a tile adds the others' sums in order, so results
 * do not depend on timing.
 *
 * The input is prepared behind these copies (hk_input.cuh).
 *
 * Up to four matrices over the same input form a group: of one format, or first those of one and then those of another.
 * With `glu` a tile is 16 rows of the gate and the same of up, and stores act(gate) * up.
 *
 * One launch over 4096 x 11008 on an H200, in a chain, from the end of the kernel before: 0.5 us until its wait
 * returns, 1.0 until the input is in registers, 1.9 until it is quantised and sent, 2.3 until all of it is there; then
 * the steps, whose warps end within 0.9 us, and 0.4 for the tiles that warps share. Blocks of a cluster send each other
 * the input with barriers that count its bytes: cluster barriers that make stores visible took 0.7 us more. What lost:
 * 12 warps of 80 registers (+3 % Q2_K and IQ4_XS, -2 to -15 % others), 16 of 64, clusters of four (-30 %), running
 * through the preparation once with nothing before the wait (+-0), bulk prefetches into L2 behind the queue, before the
 * wait (they take bandwidth from the kernel before) or after it, a larger queue, a scale for every lane from integer
 * conversions.
 */
#include "hk_group.cuh"
#include "hk_input.cuh"

#define HK_MAX_STEP_WARPS 8

/* What is added to a result, if it was loaded before it was needed. */
struct addend {
    bool known;
    float value;
};

/* row of part: sums for column j; gate: with glu. */
HK_FN void store_result(const hk_matvec_args &a, int part, int row, int j, float value, float gate, addend early) {
    const hk_part &p = a.part[part];
    if (row >= (int)p.rows)
        return;
    if (a.glu) {
        const hk_part &up = a.part[part + 1];
        if (p.bias)
            gate += p.bias[row];
        if (up.bias)
            value += up.bias[row];
        value *= a.glu == HK_GLU_SILU ? silu(gate) : gelu_tanh(gate);
    } else {
        if (p.bias)
            value += p.bias[row];
        if (p.add)
            value += early.known ? early.value : load_fresh(p.add + j * p.add_stride + row);
    }
    p.out[j * p.out_stride + row] = value;
}

/* Sums of a tile, or of a warp's part of it. One column: lane 4 g + t has row g + 8 (t % 2), the same twice; else the
 * four of multiply_few. gate: with glu. */
template <int N> struct tile_sums {
    static constexpr int V = N == 1 ? 1 : 4;
    float y[V], gate[V];
};
template <int N>
HK_FN void store_tile(const hk_matvec_args &a, const step_place &p, int n, const tile_sums<N> &s, addend early) {
    int lane = threadIdx.x & 31, row = 16 * p.tile + (lane >> 2), t = lane & 3;
    if constexpr (N == 1) {
        if (t < 2)
            store_result(a, p.part, row + 8 * t, 0, s.y[0], s.gate[0], early);
    } else {
#pragma unroll
        for (int v = 0; v < 4; v++)
            if (2 * t + (v & 1) < n)
                store_result(a, p.part, row + 8 * (v >> 1), 2 * t + (v & 1), s.y[v], s.gate[v], early);
    }
}

/* What warps leave for the one that began a tile. done: 0 the tile goes on behind it, 1 it ends there, 2 nothing. */
template <int N> struct shared_sums {
    float v[HK_MAX_STEP_WARPS][2][tile_sums<N>::V][32];
    int done[HK_MAX_STEP_WARPS];
};
template <int N> HK_FN void add_shared(const shared_sums<N> &left, int warp, int warps, tile_sums<N> &s) {
    int lane = threadIdx.x & 31, done = lane > warp && lane < warps ? left.done[lane] : 2;
    u32 ends = __ballot_sync(~0u, done == 1), takes = __ballot_sync(~0u, done != 2);
    takes &= ends ^ (ends - 1); /* up to the first that ends */
#pragma unroll
    for (int k = 1; k < HK_MAX_STEP_WARPS; k++)
        if (takes >> k & 1)
#pragma unroll
            for (int v = 0; v < tile_sums<N>::V; v++) {
                s.y[v] += left.v[k][0][v][lane];
                s.gate[v] += left.v[k][1][v][lane];
            }
}

/* A warp at its steps. */
template <class F, class G, int N, int PARTS> struct step_worker {
    static constexpr int A = N == 1 ? 2 : 4, V = tile_sums<N>::V;
    const hk_matvec_args &a;
    weight_ring &ring;
    weight_runs<F, G, N, PARTS> &runs;
    only_column x;
    const float *squares;
    float factor; /* 0: not worked out yet */
    lane_place<F> place;
    lane_place<G> place2;
    int chunk; /* more columns: bytes from 64 columns of the input to the next */
    float scale[2];

    /* `count` steps of a row of tiles, from step `first` on. */
    template <class H>
    __device__ __forceinline__ void take(int first, int count, const u8 *meta, const lane_place<H> &place,
                                         float (&y)[A]) {
        int units = (int)a.cols / 32 - 8 * first;
        const s8 *codes = x.codes + (N == 1 ? step_of<H, PARTS>::CODES : 4 * chunk) * first;
        meta += 8 * step_of<H, PARTS>::META * first;
        constexpr int PIECE = steps_of_piece<H, N, PARTS>();
        column_place<H> column(codes, ring.lane);
        for (; count > 0; count -= PIECE) {
            const u8 *w = ring.take();
            int records = (units + H::UNITS - 1) / H::UNITS;
            if constexpr (N == 1 && PARTS == 1) {
                if (count >= PIECE)
                    multiply_one<H, PIECE>(w, records, column, meta, ring.lane, y);
                else
                    multiply_one<H>(w, records, column, meta, ring.lane, y);
                column.at += 256 * PIECE;
            } else if constexpr (N == 1)
                multiply_two<H>(w, records, codes, meta, ring.lane, place, y);
            else if (a.staged)
                multiply_few<H, true>(w, records, (const u8 *)codes, chunk, ring.lane, y);
            else
                multiply_few<H, false>(w, records, (const u8 *)codes, chunk, ring.lane, y);
            ring.release();
            runs.ask(ring);
            units -= 8 * PIECE;
            codes += N == 1 ? step_of<H, PARTS>::CODES : 4 * chunk;
            meta += 8 * step_of<H, PARTS>::META * PIECE;
        }
    }
    /* `count` steps of the tile at p. */
    __device__ __forceinline__ void take_tile(const step_place &p, int count, tile_sums<N> &s) {
        int steps = runs.group.steps, at = p.at;
        while (count) {
            bool second = at >= steps; /* of gate and up */
            int first = second ? at - steps : at, n = min(count, steps - first);
            float y[A] = {};
            if (runs.group.is_first(p))
                take<F>(first, n, x.meta, place, y);
            else if constexpr (!is_same<F, G>::value)
                take<G>(first, n, x.meta2, place2, y);
            float sum[V];
            if constexpr (N == 1) {
                if (factor == 0)
                    factor = norm_factor(a, squares);
                bool upper = ring.lane & 1;
                sum[0] = (upper ? y[1] : y[0]) + __shfl_xor_sync(~0u, upper ? y[0] : y[1], 1);
                sum[0] = factor * (sum[0] + __shfl_xor_sync(~0u, sum[0], 2));
            } else {
#pragma unroll
                for (int v = 0; v < V; v++)
                    sum[v] = scale[v & 1] * y[v];
            }
#pragma unroll
            for (int v = 0; v < V; v++)
                (a.glu && !second ? s.gate[v] : s.y[v]) = sum[v];
            at += n;
            count -= n;
        }
    }
};

template <class F, class G, int N, int PARTS = 1> HK_FN void matvec(const hk_matvec_args &a) {
    extern __shared__ __align__(128) u8 shared[];
    constexpr int F_PIECE = steps_of_piece<F, N, PARTS>() * step_of<F>::BYTES;
    constexpr int G_PIECE = steps_of_piece<G, N, PARTS>() * step_of<G>::BYTES;
    constexpr int SLOT = F_PIECE > G_PIECE ? F_PIECE : G_PIECE, V = tile_sums<N>::V;
    allow_next();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    shared_sums<N> *left = (shared_sums<N> *)(shared + warps * a.slots * SLOT);
    u64 *barriers = (u64 *)(left + 1);
    float *squares = (float *)(barriers + (warps * a.slots + 1) / 2 * 2);
    weight_ring ring = {shared + warp * a.slots * SLOT, barriers + warp * a.slots, SLOT, a.slots};
    ring.lane = lane;
    ring.start();
    group_of_parts<F, G> group(a);
    int steps, asked = 0;
    step_place p = group.range(warp, warps, steps);
    weight_runs<F, G, N, PARTS> runs = {group, p, steps};
    while (asked < a.slots && runs.ask(ring))
        asked++;
    only_column x = {};
    x.codes = (s8 *)(squares + 32);
    if (N == 1) {
        x.ready = (u64 *)x.codes;
        x.codes += 16;
        if (threadIdx.x == 0)
            start_bytes(x.ready, bytes_of_input<F, G, PARTS>(group.steps, a.normalise));
        __syncthreads();
        cluster_arrive();
    }
    /* What is needed at the end, into the constant cache: it was cold, and took 0.3 us there. */
    const hk_part &soon = a.part[min(p.part, HK_MAX_PARTS - 1)];
    asm volatile("" ::"l"(soon.out), "l"(soon.bias), "l"(soon.add), "l"(soon.rows));
    int n = min(N, a.step.counts[a.rows_are_outputs]); /* written before the first kernel of a step */
    if (n == 0) {
        if (N == 1)
            cluster_wait();
        wait_for_previous();
        for (; asked; asked--) { /* copies that are still under way would write into the next block's memory */
            ring.take();
            ring.release();
        }
        return;
    }
    if constexpr (N == 1) {
        x.meta = (u8 *)x.codes + step_of<F, PARTS>::CODES * group.steps;
        x.meta2 = x.meta + 8 * step_of<F, PARTS>::META * group.steps;
        if (a.normalise)
            prepare_input<F, G, 4 / HK_CLUSTER_SIZE, true, PARTS>(a, x, squares);
        else
            prepare_input<F, G, 6 / HK_CLUSTER_SIZE, false, PARTS>(a, x, squares);
    } else {
        wait_for_previous();
        if (a.staged) {
            copy_tokens(a, (u8 *)x.codes, group.steps, n);
        } else {
            forget_l1();
            x.codes = (s8 *)a.half;
        }
    }
    step_worker<F, G, N, PARTS> worker = {
        a, ring, runs, x, squares, a.normalise ? 0.0f : 1.0f, lane_place<F>(lane), lane_place<G>(lane)};
    if constexpr (N > 1) {
        worker.chunk = a.staged ? 1024 : 128 * (int)a.half_stride;
        for (int j = 0; j < 2; j++) {
            int token = 2 * (lane & 3) + j;
            worker.scale[j] = token < n ? load_fresh(a.half_scale + token) * (1 / step_weights<F>::CARRIED) : 0;
        }
    }
    int done = 2;
    bool met = false;
    while (steps) {
        int count = min(group.per_tile - p.at, steps);
        bool ends = p.at + count == group.per_tile;
        tile_sums<N> s = {};
        addend early = {};
        if (N == 1 && !a.glu && p.at == 0 && !ends) { /* needed only when others are done with it: asked for now */
            int row = 16 * p.tile + (lane >> 2) + 8 * (lane & 1);
            const hk_part &part = a.part[p.part];
            early.known = part.add && row < (int)part.rows;
            if (early.known)
                early.value = load_fresh(part.add + row);
        }
        worker.take_tile(p, count, s);
        steps -= count;
        if (p.at) { /* begun by another warp */
#pragma unroll
            for (int v = 0; v < V; v++) {
                left->v[warp][0][v][lane] = s.y[v];
                left->v[warp][1][v][lane] = s.gate[v];
            }
            done = ends;
        } else {
            if (!ends) { /* other warps go on with it; this one's last */
                if (lane == 0)
                    left->done[warp] = done;
                __syncthreads();
                met = true;
                add_shared<N>(*left, warp, warps, s);
            }
            store_tile<N>(a, p, n, s, early);
        }
        p = group.behind(p, count);
    }
    if (met)
        return;
    if (lane == 0)
        left->done[warp] = done;
    __syncthreads();
}

#define HK_MATVEC_THREADS     256
#define HK_MATVEC_FEW_THREADS 256
#define HK_MATVEC(lower)                                                                                               \
    HK_KERNEL HK_CLUSTERED __launch_bounds__(HK_MATVEC_THREADS, 2)                                                     \
        hk_matvec_##lower(const __grid_constant__ hk_matvec_args a) {                                                  \
        matvec<unit_##lower, unit_##lower, 1>(a);                                                                      \
    }                                                                                                                  \
    HK_KERNEL HK_CLUSTERED __launch_bounds__(HK_MATVEC_THREADS, 2)                                                     \
        hk_matvec2_##lower(const __grid_constant__ hk_matvec_args a) {                                                 \
        matvec<unit_##lower, unit_##lower, 1, 2>(a);                                                                   \
    }                                                                                                                  \
    HK_KERNEL __launch_bounds__(HK_MATVEC_FEW_THREADS, 2)                                                              \
        hk_matvec8_##lower(const __grid_constant__ hk_matvec_args a) {                                                 \
        matvec<unit_##lower, unit_##lower, 8>(a);                                                                      \
    }
#define HK_MATVEC_MIXED(one, other)                                                                                    \
    HK_KERNEL HK_CLUSTERED __launch_bounds__(HK_MATVEC_THREADS, 2)                                                     \
        hk_matvec_##one##_##other(const __grid_constant__ hk_matvec_args a) {                                          \
        matvec<unit_##one, unit_##other, 1>(a);                                                                        \
    }
#define HK_MATVEC_F32(lower)
#define HK_MATVEC_Q8_32(lower) HK_MATVEC(lower)
#ifdef HK_ONLY
#define HK_APPLY(name) HK_MATVEC(name)
HK_APPLY(HK_ONLY)
#else
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_MATVEC_##act(lower)
#include "../formats/hk_types.def"
/* What files mix among q, k and v. */
HK_MATVEC_MIXED(q4_k, q6_k)
HK_MATVEC_MIXED(q5_k, q6_k)
HK_MATVEC_MIXED(q4_k, q5_k)
HK_MATVEC_MIXED(q3_k, q4_k)
HK_MATVEC_MIXED(q3_k, q5_k)
HK_MATVEC_MIXED(q2_k, q3_k)
HK_MATVEC_MIXED(q2_k, q4_k)
#endif
