/* Products of quantised weights with 1 to 8 columns, bound by memory: enough bytes must be under way at any moment.
 *
 * A step is 16 rows x 256 columns (hk_step.cuh). Every block has a contiguous range of row tiles, as equal in bytes as
 * can be, and shares the steps of that range out between its warps, again in contiguous pieces. A warp takes its steps
 * from a queue of its own in shared memory (hk_ring.cuh), whose copies start before the wait for the previous kernel
 * (programmatic dependent launch): weights depend on nothing, so memory stays busy while kernels change. Warps meet
 * once, at the end, for the tiles that they share: the one that began a tile adds the others' sums in order, so results
 * do not depend on timing.
 *
 * With one column every block normalises and quantises the input for itself, behind these copies: a kernel of its own
 * for that costs a launch and a round trip through L2. With more columns the input comes quantised from hk_rows, and is
 * read through L1.
 *
 * Up to four matrices over the same input form a group: of one format, or first those of one and then those of another.
 * With `glu` a tile is 16 rows of the gate and the same of up, and stores act(gate) * up.
 */
#include "hk_ring.cuh"
#include "hk_rows.cuh"
#include "hk_step.cuh"

#define HK_MAX_STEP_WARPS 16

template <class F, class G> struct is_same {
    static constexpr bool value = false;
};
template <class F> struct is_same<F, F> {
    static constexpr bool value = true;
};

/* A position in the group's steps: of a part, a tile, and of its steps (with glu: of both). */
struct step_place {
    int part, tile, at;
};

template <class F, class G> struct group_of_parts {
    const hk_matvec_args &a;
    int steps, per_tile, n_parts; /* steps of a row, of a tile; parts that have tiles */

    __device__ __forceinline__ group_of_parts(const hk_matvec_args &args) : a(args) {
        steps = ((int)a.cols + 255) / 256;
        per_tile = a.glu ? 2 * steps : steps;
        n_parts = a.glu ? 1 : a.n_parts;
    }
    __device__ __forceinline__ bool is_first(int p) const { return is_same<F, G>::value || p < a.n_first; }
    __device__ __forceinline__ int tiles(int p) const { return ((int)a.part[p].rows + 15) / 16; }
    /* What a step costs, in bytes / 32 if formats differ. */
    __device__ __forceinline__ u32 cost(int p) const {
        return is_same<F, G>::value ? 1 : is_first(p) ? step_of<F>::BYTES / 32 : step_of<G>::BYTES / 32;
    }
    __device__ __forceinline__ u32 cost_before(const step_place &p) const {
        u32 c = 0;
        for (int i = 0; i < p.part; i++)
            c += (u32)(tiles(i) * per_tile) * cost(i);
        return p.part < n_parts ? c + (u32)(p.tile * per_tile + p.at) * cost(p.part) : c;
    }
    /* The first step that costs before it reach; the end of the group if there is none. */
    __device__ __forceinline__ step_place place(u32 reach, bool whole_tiles) const {
        for (int p = 0; p < n_parts; p++) {
            u32 n = (u32)(tiles(p) * per_tile), unit = cost(p);
            if (reach < n * unit) {
                u32 i = (reach + unit - 1) / unit;
                if (whole_tiles)
                    i = (i + per_tile - 1) / per_tile * per_tile;
                if (i < n)
                    return {p, (int)(i / per_tile), (int)(i % per_tile)};
                reach = n * unit;
            }
            reach -= n * unit;
        }
        return {n_parts, 0, 0};
    }
    __device__ __forceinline__ step_place behind(step_place p) const {
        if (++p.at == per_tile) {
            p.at = 0;
            if (++p.tile == tiles(p.part))
                p.tile = 0, p.part++;
        }
        return p;
    }
    template <class H> __device__ __forceinline__ const u8 *address(const step_place &p, u32 &bytes) const {
        bool second = p.at >= steps; /* of gate and up */
        int step = second ? p.at - steps : p.at;
        u32 records = ((u32)a.cols + H::COLUMNS - 1) / H::COLUMNS, first = step * step_of<H>::RECORDS;
        u32 left = records - first;
        bytes = (left < step_of<H>::RECORDS ? left : step_of<H>::RECORDS) * H::BYTES;
        return a.part[p.part + second].w.at + ((s64)p.tile * records + first) * H::BYTES;
    }
    __device__ __forceinline__ void ask(weight_ring &ring, const step_place &p) const {
        u32 bytes;
        const u8 *from = is_first(p.part) ? address<F>(p, bytes) : address<G>(p, bytes);
        ring.ask(from, bytes);
    }
};

/* The input of the only column into shared memory, zero up to whole steps. A thread holds EIGHTS times eight values in
 * registers, so that one trip to L2 is enough for K up to 8 EIGHTS * threads; a longer row is read twice. */
#define EIGHTS 4
struct only_column {
    s8 *codes;
    u8 *meta, *meta2;
};
template <class F, class G> HK_FN void prepare_input(const hk_matvec_args &a, const only_column &to, float *reduce) {
    int thread = threadIdx.x, n_threads = blockDim.x, K = (int)a.cols, eights = K / 8, step = EIGHTS * n_threads;
    int padded = (K + 255) / 256 * 32;
    float factor = 1, x[EIGHTS][8];
    for (int pass = a.normalise ? 0 : 1; pass < 2; pass++) {
        float sum = 0;
        for (int base = 0; base < (pass ? padded : eights); base += step) {
            if (!(pass && a.normalise && eights <= step)) {
                f32x4 w[EIGHTS][2];
#pragma unroll
                for (int k = 0; k < EIGHTS; k++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        int i = base + k * n_threads + thread;
                        f32x4 v = {};
                        w[k][h] = {{1, 1, 1, 1}};
                        if (i < eights) {
                            v = load_fresh4(a.x + 8 * i + 4 * h);
                            if (a.norm)
                                w[k][h] = *(const f32x4 *)(a.norm + 8 * i + 4 * h);
                        }
#pragma unroll
                        for (int j = 0; j < 4; j++)
                            x[k][4 * h + j] = v.v[j];
                    }
#pragma unroll
                for (int k = 0; k < EIGHTS; k++)
#pragma unroll
                    for (int j = 0; j < 8; j++) {
                        sum += x[k][j] * x[k][j];
                        x[k][j] *= w[k][j >> 2].v[j & 3];
                    }
            }
            if (pass == 0)
                continue;
#pragma unroll
            for (int k = 0; k < EIGHTS; k++) {
                int i = base + k * n_threads + thread;
                if (i - thread >= padded)
                    break;
                float scale;
                s32 sums[2];
#pragma unroll
                for (int j = 0; j < 8; j++)
                    x[k][j] *= factor;
                u32x2 word = quantise_eight(x[k], scale, sums);
                if (i >= padded)
                    continue;
                *(u32x2 *)(to.codes + 8 * i) = word;
                if ((thread & 3) == 0)
                    write_meta<F>(to.meta, i >> 2, scale, sums);
                if (!is_same<F, G>::value && (thread & 3) == 1)
                    write_meta<G>(to.meta2, i >> 2, scale, sums);
            }
        }
        if (pass == 0)
            factor = rsqrtf(block_reduce<false>(sum, reduce, thread, n_threads) / (float)K + a.eps);
    }
    __syncthreads();
}

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

/* Sums of a tile that a lane holds: one column: of rows g and g + 8, to be added over the quad; else as multiply_few.
 */
template <int N> struct tile_sums {
    static constexpr int V = N == 1 ? 2 : 4;
    float gate[V], y[V]; /* without glu only y */
};
template <int N>
HK_FN void store_tile(const hk_matvec_args &a, const step_place &p, int n, int lane, tile_sums<N> &s, addend early) {
    int row = 16 * p.tile + (lane >> 2), t = lane & 3;
    if constexpr (N == 1) {
#pragma unroll
        for (int o = 1; o < 4; o <<= 1)
#pragma unroll
            for (int v = 0; v < 2; v++) {
                s.y[v] += __shfl_xor_sync(~0u, s.y[v], o);
                if (a.glu)
                    s.gate[v] += __shfl_xor_sync(~0u, s.gate[v], o);
            }
        if (t < 2)
            store_result(a, p.part, row + 8 * t, 0, t ? s.y[1] : s.y[0], t ? s.gate[1] : s.gate[0], early);
    } else {
#pragma unroll
        for (int v = 0; v < 4; v++)
            if (2 * t + (v & 1) < n)
                store_result(a, p.part, row + 8 * (v >> 1), 2 * t + (v & 1), s.y[v], s.gate[v], early);
    }
}

/* What warps leave for the one that began a tile. done: 0 the tile goes on behind it, 1 it ends there, 2 nothing. */
template <int N> struct shared_sums {
    float v[HK_MAX_STEP_WARPS][2 * tile_sums<N>::V][32];
    int done[HK_MAX_STEP_WARPS];
};

template <class F, class G, int N> HK_FN void matvec(const hk_matvec_args &a) {
    extern __shared__ __align__(128) u8 shared[];
    constexpr int SLOT = step_of<F>::BYTES > step_of<G>::BYTES ? step_of<F>::BYTES : step_of<G>::BYTES;
    constexpr int V = tile_sums<N>::V;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5, ring_bytes = a.slots * SLOT;
    shared_sums<N> *left = (shared_sums<N> *)(shared + warps * ring_bytes);
    u64 *barriers = (u64 *)(left + 1);
    float *reduce = (float *)(barriers + (warps * a.slots + 1) / 2 * 2);
    group_of_parts<F, G> group(a);
    u32 total = group.cost_before({group.n_parts, 0, 0}), share = total / gridDim.x, rest = total % gridDim.x;
    u32 b = blockIdx.x, c0 = group.cost_before(group.place(b * share + min(b, rest), true));
    u32 c1 = group.cost_before(group.place((b + 1) * share + min(b + 1, rest), true));
    step_place p = group.place(c0 + (c1 - c0) * warp / warps, false);
    step_place end = group.place(c0 + (c1 - c0) * (warp + 1) / warps, false), ahead = p;
    weight_ring ring = {shared + warp * ring_bytes, barriers + warp * a.slots, SLOT, a.slots};
    ring.lane = lane;
    ring.start();
    int asked = 0, n_steps = 0;
    for (int i = p.part; i < end.part || (i == end.part && i < group.n_parts); i++)
        n_steps += (i < end.part ? group.tiles(i) * group.per_tile : end.tile * group.per_tile + end.at) -
                   (i == p.part ? p.tile * group.per_tile + p.at : 0);
    for (; asked < n_steps && asked < a.slots; asked++, ahead = group.behind(ahead))
        group.ask(ring, ahead);
    allow_next();
    if (a.norm && blockIdx.x == 0 && threadIdx.x == 0)
        prefetch(a.norm, 4 * (u32)a.cols);
    int n = min(N, a.step.counts[a.rows_are_outputs]); /* written before the first kernel of a step */
    wait_for_previous();
    if (n == 0) {
        for (int i = 0; i < asked; i++) { /* copies that are still under way would write into the next block's memory */
            ring.take();
            ring.release();
        }
        return;
    }
    only_column x = {};
    if (N == 1) {
        int padded = group.steps * 256;
        x.codes = (s8 *)(reduce + HK_MAX_WARPS);
        x.meta = (u8 *)x.codes + padded;
        x.meta2 = x.meta + padded / 32 * step_of<F>::META;
        prepare_input<F, G>(a, x, reduce);
    } else {
        forget_l1();
    }
    addend early = {};
    if (N == 1 && n_steps && !a.glu && end.at) { /* for the tile that others will finish */
        int row = 16 * end.tile + (lane >> 2) + 8 * (lane & 3);
        const hk_part &part = a.part[end.part];
        early.known = part.add && (lane & 3) < 2 && row < (int)part.rows;
        if (early.known)
            early.value = load_fresh(part.add + row);
    }
    tile_sums<N> s = {};
    step_place begun = p;
    bool open = false;
    if (lane == 0)
        left->done[warp] = 2;
    for (int i = 0; i < n_steps; i++) {
        const u8 *w = ring.take();
        int step = p.at >= group.steps ? p.at - group.steps : p.at, units = (int)a.cols / 32 - 8 * step;
        if constexpr (N == 1) {
            const s8 *codes = x.codes + 256 * step;
            if (group.is_first(p.part))
                multiply_one<F>(w, (units + F::UNITS - 1) / F::UNITS, codes, x.meta + 8 * step_of<F>::META * step, lane,
                                s.y);
            else if constexpr (!is_same<F, G>::value)
                multiply_one<G>(w, (units + G::UNITS - 1) / G::UNITS, codes, x.meta2 + 8 * step_of<G>::META * step,
                                lane, s.y);
        } else {
            multiply_few<F>(w, units, a.codes + 2048 * step, a.meta + 512 * step, lane, s.y);
        }
        ring.release();
        if (asked < n_steps) {
            group.ask(ring, ahead);
            ahead = group.behind(ahead);
            asked++;
        }
        if (p.at + 1 == group.steps && a.glu) {
#pragma unroll
            for (int v = 0; v < V; v++)
                s.gate[v] = s.y[v], s.y[v] = 0;
        }
        bool ends = p.at + 1 == group.per_tile;
        if (!ends && i + 1 < n_steps) {
            p.at++;
            continue;
        }
        if (a.glu && p.at + 1 < group.steps) { /* stopped inside the gate */
#pragma unroll
            for (int v = 0; v < V; v++)
                s.gate[v] = s.y[v], s.y[v] = 0;
        }
        if (begun.at) { /* begun by another warp */
#pragma unroll
            for (int v = 0; v < V; v++) {
                left->v[warp][v][lane] = s.y[v];
                left->v[warp][V + v][lane] = s.gate[v];
            }
            if (lane == 0)
                left->done[warp] = ends;
        } else if (ends) {
            store_tile<N>(a, p, n, lane, s, {});
        } else {
            open = true;
            break;
        }
        s = {};
        p = begun = group.behind(p);
    }
    __syncthreads();
    if (!open)
        return;
    for (int k = warp + 1; k < warps; k++) {
        int done = left->done[k];
        if (done == 2)
            continue;
#pragma unroll
        for (int v = 0; v < V; v++) {
            s.y[v] += left->v[k][v][lane];
            s.gate[v] += left->v[k][V + v][lane];
        }
        if (done == 1)
            break;
    }
    store_tile<N>(a, p, n, lane, s, early);
}

#define HK_MATVEC(lower)                                                                                               \
    HK_KERNEL __launch_bounds__(512, 1) hk_matvec_##lower(const __grid_constant__ hk_matvec_args a) {                  \
        matvec<unit_##lower, unit_##lower, 1>(a);                                                                      \
    }                                                                                                                  \
    HK_KERNEL __launch_bounds__(512, 1) hk_matvec8_##lower(const __grid_constant__ hk_matvec_args a) {                 \
        matvec<unit_##lower, unit_##lower, 8>(a);                                                                      \
    }
#define HK_MATVEC_MIXED(one, other)                                                                                    \
    HK_KERNEL __launch_bounds__(512, 1) hk_matvec_##one##_##other(const __grid_constant__ hk_matvec_args a) {          \
        matvec<unit_##one, unit_##other, 1>(a);                                                                        \
    }
#define HK_MATVEC_F32(lower)
#define HK_MATVEC_Q8_32(lower)  HK_MATVEC(lower)
#define HK_MATVEC_Q8_256(lower) HK_MATVEC(lower)
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
