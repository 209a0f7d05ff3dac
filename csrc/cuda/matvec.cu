/* Products of weights with 1 to 8 columns, bound by memory: enough bytes must be under way at any moment.
 *
 * A block is 32 WK x WR threads. The WK warps of a group share the units of a row (one unit of 32 weights per thread
 * and pass), each thread taking the same unit of R rows, so that its part of the activations serves R rows. Every group
 * of the grid has its own contiguous range of tiles of R rows, as equal as can be, and its own barrier.
 *
 * Weights are on their way at three distances. A thread's registers hold its next unit of R rows: it is asked for as
 * soon as they are free, before sums are reduced and stored. The tiles behind that are brought into L2 by bulk
 * prefetches, `ahead` bytes per block, which cost no registers. And all of this starts before the wait for the previous
 * kernel (programmatic dependent launch): weights depend on nothing, so memory stays busy while kernels change.
 *
 * With one column every block normalises and quantises the input for itself, behind these loads: a kernel of its own
 * for that costs a launch and a round trip through L2. With more columns that would fill shared memory, and the input
 * comes quantised from hk_rows.
 *
 * Up to four matrices of one format form a group over the same input. With `glu`, each tile holds R / 2 rows of the
 * gate and the same rows of up, and stores act(gate) * up.
 */
#include "hk_rows.cuh"
#include "hk_unit.cuh"

#ifndef HK_MATVEC_ROWS
#define HK_MATVEC_ROWS 4
#endif
#ifndef HK_MATVEC_BLOCKS
#define HK_MATVEC_BLOCKS 1
#endif
static constexpr int R = HK_MATVEC_ROWS;

/* Which rows of which parts a tile is. */
struct tile_place {
    int part, row;
};

HK_FN int tiles_of(const hk_matvec_args &a, int p) {
    int rows = a.glu ? R / 2 : R;
    return ((int)a.part[p].rows + rows - 1) / rows;
}
HK_FN int tile_count(const hk_matvec_args &a) {
    int n = 0;
    for (int p = 0; p < (a.glu ? 1 : a.n_parts); p++)
        n += tiles_of(a, p);
    return n;
}
HK_FN tile_place place_of(const hk_matvec_args &a, int tile) {
    int p = 0;
    if (!a.glu)
        while (p + 1 < a.n_parts && tile >= tiles_of(a, p))
            tile -= tiles_of(a, p++);
    return {p, tile * (a.glu ? R / 2 : R)};
}
/* Part and row of row r of a tile, kept inside the matrix: what lies beyond is computed twice and not stored. */
HK_FN int row_of(const hk_matvec_args &a, const tile_place &t, int r, int &part) {
    part = a.glu && r >= R / 2 ? t.part + 1 : t.part;
    int row = t.row + (a.glu ? r % (R / 2) : r), last = (int)a.part[part].rows - 1;
    return row < last ? row : last;
}

template <class F> HK_FN void load_units(const hk_matvec_args &a, int tile, int u, F (&raw)[R]) {
    tile_place t = place_of(a, tile);
#pragma unroll
    for (int r = 0; r < R; r++) {
        int part;
        u32 row = (u32)row_of(a, t, r, part); /* a matrix has less than 2^31 units */
        F::load(raw[r], a.part[part].w, row * ((u32)a.cols / 32) + (u32)u);
    }
}

/* Asks for the rows of a tile to be brought into L2; thread r of the group takes row r. */
template <class F> HK_FN void prefetch_tile(const hk_matvec_args &a, int tile) {
    if ((int)threadIdx.x >= R)
        return;
    int part;
    u32 row = (u32)row_of(a, place_of(a, tile), threadIdx.x, part), eighths = (u32)a.cols / 256;
    const hk_matrix &w = a.part[part].w;
    if (eighths == 0)
        return;
    u64 first = (u64)row * ((u32)a.cols / 32);
    prefetch(w.q + first * F::Q_BYTES / 8, eighths * F::Q_BYTES);
    if (F::H_BYTES)
        prefetch(w.h + first * F::H_BYTES / 8, eighths * F::H_BYTES);
    if (F::S_BYTES)
        prefetch(w.s + first * F::S_BYTES / 8, eighths * F::S_BYTES);
    if (F::D_BYTES)
        prefetch(w.d + first * F::D_BYTES / 8, eighths * F::D_BYTES);
}

#define EIGHTS 2

/* The input of the only column into shared memory: codes [K], then meta [K / 32][8]. A thread holds EIGHTS times eight
 * values in registers, so that one trip to L2 is enough for K up to 8 EIGHTS * threads; a longer row is read twice. */
HK_FN void load_eights(const hk_matvec_args &a, int base, int n_threads, float (&x)[EIGHTS][8]) {
#pragma unroll
    for (int k = 0; k < EIGHTS; k++) {
        int i = base + k * n_threads;
        f32x4 lo = {}, hi = {};
        if (8 * i < (int)a.cols)
            lo = load_fresh4(a.x + 8 * i), hi = load_fresh4(a.x + 8 * i + 4);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[k][j] = j < 4 ? lo.v[j & 3] : hi.v[j & 3];
    }
}
HK_FN void prepare_input(const hk_matvec_args &a, s8 *codes, u8 *meta, float *reduce) {
    int thread = threadIdx.y * blockDim.x + threadIdx.x, n_threads = blockDim.x * blockDim.y;
    int K = (int)a.cols, eights = K / 8, step = EIGHTS * n_threads;
    float factor = 1, x[EIGHTS][8];
    if (a.normalise) {
        float sum = 0;
        for (int base = 0; base < eights; base += step) {
            load_eights(a, base + thread, n_threads, x);
#pragma unroll
            for (int k = 0; k < EIGHTS; k++)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    sum += x[k][j] * x[k][j];
        }
        factor = rsqrtf(block_reduce<false>(sum, reduce, thread, n_threads) / (float)K + a.eps);
    }
    for (int base = 0; base < eights; base += step) {
        if (!a.normalise || step < eights)
            load_eights(a, base + thread, n_threads, x);
#pragma unroll
        for (int k = 0; k < EIGHTS; k++) {
            int i = base + k * n_threads + thread;
            if (i - thread >= eights)
                break;
            if (a.norm && i < eights) {
                f32x4 lo = *(const f32x4 *)(a.norm + 8 * i), hi = *(const f32x4 *)(a.norm + 8 * i + 4);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    x[k][j] *= j < 4 ? lo.v[j & 3] : hi.v[j & 3];
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[k][j] *= factor;
            quantise_eight(x[k], i, K, codes, meta, i < eights);
        }
    }
    __syncthreads();
}

/* One unit of one row against the 8 code words of a column. */
template <class F> HK_FN float unit_dot(const u32 (&w)[8], const unit_scale &c, const u32 (&x)[8], float d, u32 sums) {
    s32 lo = 0, hi = 0;
#pragma unroll
    for (int g = 0; g < 4; g++) {
        lo = dot4(w[g], x[g], lo);
        hi = dot4(w[g + 4], x[g + 4], hi);
    }
    s32 s0 = (s16)sums, s1 = (s16)(sums >> 16);
    if (F::TWO_SCALES) {
        float y = c.s0 * (float)(lo - F::ZERO * s0) + c.s1 * (float)(hi - F::ZERO * s1);
        if (F::HAS_MIN)
            y += c.m0 * (float)s0 + c.m1 * (float)s1;
        return d * y;
    }
    float y = c.s0 * (float)(lo + hi - F::ZERO * (s0 + s1));
    if (F::HAS_MIN)
        y += c.m0 * (float)(s0 + s1);
    return d * y;
}

/* A unit of column j: 8 words of codes, the scale and both sums. */
struct input_unit {
    u32 x[8], sums;
    float d;
};
HK_FN input_unit load_input(const s8 *codes, const u8 *meta, int K, int u, int j) {
    u32x4 lo = *(const u32x4 *)(codes + j * K + 16 * u), hi = *(const u32x4 *)(codes + j * K + K / 2 + 16 * u);
    u32x2 m = *(const u32x2 *)(meta + j * (K / 4) + 8 * u);
    return {{lo.v[0], lo.v[1], lo.v[2], lo.v[3], hi.v[0], hi.v[1], hi.v[2], hi.v[3]}, m.v[1], __uint_as_float(m.v[0])};
}

template <class F, int N>
HK_FN void multiply_units(const F (&raw)[R], int u, int K, int n, const s8 *codes, const u8 *meta, float (&acc)[N][R]) {
    if constexpr (N == 1) { /* rows one after the other: fewer registers */
        input_unit x = load_input(codes, meta, K, u, 0);
#pragma unroll
        for (int r = 0; r < R; r++) {
            u32 w[8];
#pragma unroll
            for (int g = 0; g < 8; g++)
                w[g] = F::group(raw[r], g);
            acc[0][r] += unit_dot<F>(w, F::scale(raw[r], u), x.x, x.d, x.sums);
        }
    } else {
        u32 w[R][8];
        unit_scale c[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            c[r] = F::scale(raw[r], u);
#pragma unroll
            for (int g = 0; g < 8; g++)
                w[r][g] = F::group(raw[r], g);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (j >= n)
                break;
            input_unit x = load_input(codes, meta, K, u, j);
#pragma unroll
            for (int r = 0; r < R; r++)
                acc[j][r] += unit_dot<F>(w[r], c[r], x.x, x.d, x.sums);
        }
    }
}

/* value: the sum for row r of the tile and column j. */
HK_FN void store_result(const hk_matvec_args &a, const tile_place &t, int r, int j, float value, float gate) {
    const hk_part &p = a.part[t.part];
    int row = t.row + (a.glu ? r % (R / 2) : r);
    if (row >= (int)p.rows)
        return;
    if (a.glu) {
        const hk_part &up = a.part[t.part + 1];
        if (p.bias)
            gate += p.bias[row];
        if (up.bias)
            value += up.bias[row];
        value *= a.glu == HK_GLU_SILU ? silu(gate) : gelu_tanh(gate);
    } else {
        if (p.bias)
            value += p.bias[row];
        if (p.add)
            value += load_fresh(p.add + j * p.add_stride + row);
    }
    p.out[j * p.out_stride + row] = value;
}

/* Sums of V values over the warp, each lane ending with one of them: V - 1 exchanges of halves, then plain sums. Value
 * i is left in lanes whose upper bits are i reversed; returns which one this lane has. */
template <int V> HK_FN float share_sums(float (&v)[V], int lane, int &which) {
    which = 0;
#pragma unroll
    for (int half = V / 2, bit = 16; half; half >>= 1, bit >>= 1) {
        bool upper = lane & bit;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float keep = upper ? v[i + half] : v[i], send = upper ? v[i] : v[i + half];
            v[i] = keep + __shfl_xor_sync(~0u, send, bit);
        }
        which |= upper ? half : 0;
    }
#pragma unroll
    for (int bit = 16 / V; bit; bit >>= 1)
        v[0] += __shfl_xor_sync(~0u, v[0], bit);
    return v[0];
}

/* Adds the group's sums and stores them. `sums` is [WK][N][R], one of two that alternate, so that one barrier a tile is
 * enough. */
template <int N> HK_FN void finish_tile(const hk_matvec_args &a, int tile, int n, float (&acc)[N][R], float *sums) {
    int warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (j >= n)
            break;
        int r;
        float s = share_sums<R>(acc[j], lane, r);
        if ((lane & (32 / R - 1)) == 0)
            sums[(warp * N + j) * R + r] = s;
#pragma unroll
        for (int i = 0; i < R; i++)
            acc[j][i] = 0;
    }
    if (warps > 1)
        barrier(1 + threadIdx.y, blockDim.x);
    else
        __syncwarp();
    int rows = a.glu ? R / 2 : R;
    int j = threadIdx.x / R, r = threadIdx.x % R;
    if (j >= n || r >= rows)
        return;
    float value = 0, gate = 0;
    for (int k = 0; k < warps; k++) {
        const float *s = sums + (k * N + j) * R;
        if (a.glu)
            gate += s[r];
        value += s[a.glu ? r + R / 2 : r];
    }
    store_result(a, place_of(a, tile), r, j, value, gate);
}

/* A group's way through its units: pass by pass through a tile, tile by tile. */
struct place_in_range {
    int tile, pass;
};
HK_FN place_in_range behind(const place_in_range &p, int passes) {
    return p.pass + 1 < passes ? place_in_range{p.tile, p.pass + 1} : place_in_range{p.tile + 1, 0};
}
template <class F> HK_FN void load_place(const hk_matvec_args &a, const place_in_range &p, int end, F (&raw)[R]) {
    int u = threadIdx.x + p.pass * blockDim.x;
    if (p.tile < end && u < (int)a.cols / 32)
        load_units<F>(a, p.tile, u, raw);
}

/* What a group does with its tiles. Two sets of registers take turns: while one is multiplied, the other is on its way.
 */
template <class F, int N> struct worker {
    const hk_matvec_args &a;
    const s8 *codes;
    const u8 *meta;
    float *sums; /* two halves that alternate */
    int half, parity, n, end, passes;
    float acc[N][R];

    __device__ __forceinline__ void take(F (&raw)[R], const place_in_range &p, const place_in_range &next) {
        int u = threadIdx.x + p.pass * blockDim.x;
        if (u < (int)a.cols / 32)
            multiply_units<F, N>(raw, u, (int)a.cols, n, codes, meta, acc);
        load_place(a, next, end, raw);
        if (p.pass + 1 < passes)
            return;
        finish_tile<N>(a, p.tile, n, acc, sums + parity);
        parity = half - parity;
    }
};

template <class F, int N> HK_FN void matvec(const hk_matvec_args &a) {
    extern __shared__ __align__(16) u8 shared[];
    int tiles = tile_count(a), K = (int)a.cols, warps = blockDim.x >> 5;
    int groups = gridDim.x * blockDim.y, group = blockIdx.x * blockDim.y + threadIdx.y;
    int end = (int)((s64)(group + 1) * tiles / groups), passes = (K / 32 + blockDim.x - 1) / blockDim.x;
    place_in_range p = {(int)((s64)group * tiles / groups), 0}, q = behind(p, passes);
    allow_next();
    F first[R], second[R];
    load_place(a, p, end, first);
    load_place(a, q, end, second);
    int row_bytes = K / 32 * (F::Q_BYTES + F::H_BYTES + F::S_BYTES + F::D_BYTES) / 8;
    int ahead = a.ahead / (row_bytes * R * (int)blockDim.y);
    for (int t = p.tile + 1; t < min(end, p.tile + 1 + ahead); t++)
        prefetch_tile<F>(a, t);
    int n = min(N, a.step.counts[a.rows_are_outputs]); /* written before the first kernel of a step */
    wait_for_previous();
    if (n == 0)
        return;
    float *sums = (float *)shared;
    int half = blockDim.y * warps * R * N;
    const s8 *codes = a.codes;
    const u8 *meta = a.meta;
    if (N == 1) {
        s8 *to = (s8 *)(sums + 2 * half + HK_MAX_WARPS);
        prepare_input(a, to, (u8 *)to + K, sums + 2 * half);
        codes = to, meta = (u8 *)to + K;
    }
    worker<F, N> w = {a, codes, meta, sums + threadIdx.y * warps * R * N, half, 0, n, end, passes, {}};
    while (p.tile < end) {
        place_in_range r = behind(q, passes), s = behind(r, passes);
        w.take(first, p, r);
        if (q.tile >= end)
            break;
        w.take(second, q, s);
        p = r, q = s;
    }
}

#define HK_MATVEC(lower)                                                                                               \
    HK_KERNEL __launch_bounds__(512, HK_MATVEC_BLOCKS) hk_matvec_##lower(const __grid_constant__ hk_matvec_args a) {   \
        matvec<unit_##lower, 1>(a);                                                                                    \
    }                                                                                                                  \
    HK_KERNEL __launch_bounds__(256, 1) hk_matvec8_##lower(const __grid_constant__ hk_matvec_args a) {                 \
        matvec<unit_##lower, 8>(a);                                                                                    \
    }
#define HK_MATVEC_F32(lower)
#define HK_MATVEC_Q8_32(lower) HK_MATVEC(lower)
#ifdef HK_ONLY
#define HK_APPLY(name) HK_MATVEC(name)
HK_APPLY(HK_ONLY)
#else
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_MATVEC_##act(lower)
#include "../formats/hk_types.def"
#endif
