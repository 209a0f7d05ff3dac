/* Products of weights with 1 to 8 columns, bound by memory: every thread has several 16-byte loads in flight.
 *
 * A block is 32 WK x WR threads. The WK warps of a row group share the units of a row (one unit of 32 weights per thread
 * and pass), each thread taking the same unit of R rows, so that its part of the activations serves R rows; the WR groups
 * take different rows. Blocks stay and stride over tiles of WR * R rows; a thread loads its next unit as soon as the
 * registers of the last are free, so loads are in flight while sums are reduced and stored.
 *
 * The first loads are issued before the wait for the previous kernel (programmatic dependent launch): weights depend on
 * nothing. With one column every block normalises and quantises the input for itself, behind these loads: a kernel of
 * its own for that costs a launch and a round trip through L2. With more columns that would fill shared memory, and the
 * input comes quantised from hk_rows.
 *
 * Up to four matrices of one format form a group over the same input. With `glu`, each tile holds R / 2 rows of the gate
 * and the same rows of up, and stores act(gate) * up.
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
    for (int p = 0; p < (a.glu ? 1 : a.n_parts); p++) n += tiles_of(a, p);
    return n;
}
HK_FN tile_place place_of(const hk_matvec_args &a, int tile) {
    int p = 0;
    if (!a.glu)
        while (p + 1 < a.n_parts && tile >= tiles_of(a, p)) tile -= tiles_of(a, p++);
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

/* The input of the only column into shared memory: codes [K], then meta [K / 32][8]. */
HK_FN void prepare_input(const hk_matvec_args &a, s8 *codes, u8 *meta, float *reduce) {
    int thread = threadIdx.y * blockDim.x + threadIdx.x, n_threads = blockDim.x * blockDim.y;
    s64 quads = a.cols / 4;
    float factor = 1;
    if (a.normalise) {
        float sum = 0;
        for (s64 i = thread; i < quads; i += n_threads) {
            f32x4 x = load_fresh4(a.x + 4 * i);
            sum += x.v[0] * x.v[0] + x.v[1] * x.v[1] + x.v[2] * x.v[2] + x.v[3] * x.v[3];
        }
        factor = rsqrtf(block_reduce<false>(sum, reduce, thread, n_threads) / (float)a.cols + a.eps);
    }
    for (s64 base = 0; base < quads; base += n_threads) {
        s64 i = base + thread;
        float v[4] = {0, 0, 0, 0};
        if (i < quads) {
            f32x4 x = load_fresh4(a.x + 4 * i);
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = x.v[j] * factor * (a.norm ? a.norm[4 * i + j] : 1.0f);
        }
        quantise_quad(v, i, a.cols, codes, meta, i < quads);
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
        if (F::HAS_MIN) y += c.m0 * (float)s0 + c.m1 * (float)s1;
        return d * y;
    }
    float y = c.s0 * (float)(lo + hi - F::ZERO * (s0 + s1));
    if (F::HAS_MIN) y += c.m0 * (float)(s0 + s1);
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
HK_FN void multiply_units(const F (&raw)[R], int u, int K, int n, const s8 *codes, const u8 *meta, float (&acc)[R][N]) {
    if (N == 1) { /* rows one after the other: fewer registers */
        input_unit x = load_input(codes, meta, K, u, 0);
#pragma unroll
        for (int r = 0; r < R; r++) {
            u32 w[8];
#pragma unroll
            for (int g = 0; g < 8; g++) w[g] = F::group(raw[r], g);
            acc[r][0] += unit_dot<F>(w, F::scale(raw[r], u), x.x, x.d, x.sums);
        }
        return;
    }
    u32 w[R][8];
    unit_scale c[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        c[r] = F::scale(raw[r], u);
#pragma unroll
        for (int g = 0; g < 8; g++) w[r][g] = F::group(raw[r], g);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (j >= n) break;
        input_unit x = load_input(codes, meta, K, u, j);
#pragma unroll
        for (int r = 0; r < R; r++) acc[r][j] += unit_dot<F>(w[r], c[r], x.x, x.d, x.sums);
    }
}

/* value: the sum for row r of the tile and column j. */
HK_FN void store_result(const hk_matvec_args &a, const tile_place &t, int r, int j, float value, float gate) {
    const hk_part &p = a.part[t.part];
    int row = t.row + (a.glu ? r % (R / 2) : r);
    if (row >= (int)p.rows) return;
    if (a.glu) {
        const hk_part &up = a.part[t.part + 1];
        if (p.bias) gate += p.bias[row];
        if (up.bias) value += up.bias[row];
        value *= a.glu == HK_GLU_SILU ? silu(gate) : gelu_tanh(gate);
    } else {
        if (p.bias) value += p.bias[row];
        if (p.add) value += load_fresh(p.add + j * p.add_stride + row);
    }
    p.out[j * p.out_stride + row] = value;
}

/* Adds the warps' sums and stores them. `sums` is [WR][WK][R * N], one of two that alternate, so that one barrier a tile is
 * enough. */
template <int N> HK_FN void finish_tile(const hk_matvec_args &a, int tile, int tiles, int n, float (&acc)[R][N], float *sums) {
    int warps = blockDim.x >> 5, warp = threadIdx.x >> 5;
    float *mine = sums + threadIdx.y * warps * R * N;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int j = 0; j < N; j++) {
            float s = j < n ? warp_sum(acc[r][j]) : 0;
            if ((threadIdx.x & 31) == 0) mine[warp * R * N + r * N + j] = s;
            acc[r][j] = 0;
        }
    __syncthreads();
    int rows = a.glu ? R / 2 : R;
    if (tile >= tiles || (int)threadIdx.x >= rows * N) return;
    int r = threadIdx.x / N, j = threadIdx.x % N;
    if (j >= n) return;
    float value = 0, gate = 0;
    for (int k = 0; k < warps; k++) {
        if (a.glu) gate += mine[k * R * N + r * N + j];
        value += mine[k * R * N + (a.glu ? r + R / 2 : r) * N + j];
    }
    store_result(a, place_of(a, tile), r, j, value, gate);
}

template <class F, int N> HK_FN void matvec(const hk_matvec_args &a) {
    extern __shared__ __align__(16) u8 shared[];
    int tiles = tile_count(a), K = (int)a.cols, units = K / 32, step = gridDim.x * blockDim.y;
    int tile = blockIdx.x * blockDim.y + threadIdx.y, u = threadIdx.x;
    F raw[R];
    allow_next();
    if (tile < tiles && u < units) load_units<F>(a, tile, u, raw);
    wait_for_previous();
    int n = a.step.counts[a.rows_are_outputs];
    if (n == 0) return;
    float *sums = (float *)shared;
    int sums_size = 2 * blockDim.y * (blockDim.x >> 5) * R * N;
    const s8 *codes = a.codes;
    const u8 *meta = a.meta;
    if (N == 1) {
        s8 *to = (s8 *)(sums + (sums_size + HK_MAX_WARPS));
        prepare_input(a, to, (u8 *)to + a.cols, sums + sums_size);
        codes = to, meta = (u8 *)to + a.cols;
    }
    float acc[R][N] = {};
    int parity = 0;
    for (int first = blockIdx.x * blockDim.y; first < tiles; first += step) {
        for (; tile < tiles && u < units;) {
            multiply_units<F, N>(raw, u, K, n, codes, meta, acc);
            u += blockDim.x;
            if (u >= units) break;
            load_units<F>(a, tile, u, raw);
        }
        u = threadIdx.x;
        if (tile + step < tiles && u < units) load_units<F>(a, tile + step, u, raw);
        finish_tile<N>(a, tile, tiles, n, acc, sums + parity * (sums_size / 2));
        parity ^= 1;
        tile += step;
    }
}

#define HK_MATVEC(lower)                                                                                               \
    HK_KERNEL __launch_bounds__(512, HK_MATVEC_BLOCKS) hk_matvec_##lower(const __grid_constant__ hk_matvec_args a) {                  \
        matvec<unit_##lower, 1>(a);                                                                                    \
    }                                                                                                                  \
    HK_KERNEL __launch_bounds__(256, 1) hk_matvec8_##lower(const __grid_constant__ hk_matvec_args a) {                 \
        matvec<unit_##lower, 8>(a);                                                                                    \
    }
#define HK_MATVEC_F32(lower)
#define HK_MATVEC_Q8_32(lower) HK_MATVEC(lower)
#define HK_MATVEC_Q8_256(lower) HK_MATVEC(lower)
#ifdef HK_ONLY
#define HK_APPLY(name) HK_MATVEC(name)
HK_APPLY(HK_ONLY)
#else
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_MATVEC_##act(lower)
#include "../formats/hk_types.def"
#endif
