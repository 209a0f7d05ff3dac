/* Operations by row and by element: embedding, rotary angles, norms with what products need behind them, what an
 * importance matrix is made of, heads.
 */
#include "hk_head.cuh"
#include "hk_rows.cuh"
#include "hk_scales.cuh"

#define HK_OBSERVE_WARPS 8

/* --- rows --- */

HK_FN void read_quad(const hk_rows_args &a, s64 row, s64 i, float (&v)[4]) {
    f32x4 x = load_fresh4(a.x + row * a.x_stride + 4 * i), y = {};
    if (has_second(a.mode))
        y = load_fresh4(a.y + row * a.y_stride + 4 * i);
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = combine(a.mode, x.v[j], y.v[j], a.number);
}

/* A power of two that brings the largest value of a row to about 2^10: f16 then neither overflows nor loses bits. */
HK_FN float half_exponent(float peak) {
    int e = (int)(__float_as_uint(peak) >> 23) - 127 - 10;
    e = peak > 0 && peak <= HK_MAX_FLOAT ? max(-100, min(100, e)) : 0;
    return __uint_as_float((u32)(127 + e) << 23);
}

/* One row per block; width is a multiple of 4. */
HK_KERNEL hk_rows(const __grid_constant__ hk_rows_args a) {
    __shared__ float reduce[HK_MAX_WARPS];
    allow_next();
    wait_for_previous();
    int t = blockIdx.x, thread = threadIdx.x, n_threads = blockDim.x;
    if (t >= a.step.counts[a.rows_are_outputs])
        return;
    s64 row = source_row(a, t), quads = a.width / 4;
    float factor = 1, sum = 0, peak = 0;
    if (a.normalise || a.half) {
        for (s64 i = thread; i < quads; i += n_threads) {
            float v[4];
            read_quad(a, row, i, v);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum += v[j] * v[j];
                peak = fmaxf(peak, fabsf(v[j] * (a.norm ? a.norm[4 * i + j] : 1.0f)));
            }
        }
        if (a.normalise)
            factor = rsqrtf(block_reduce<false>(sum, reduce, thread, n_threads) / (float)a.width + a.eps);
        if (a.half)
            peak = block_reduce<true>(peak, reduce, thread, n_threads) * factor;
    }
    float down = half_exponent(peak), up = 1.0f / down;
    if (a.half && thread == 0)
        a.half_scale[t] = down;
    s64 end = a.half ? (quads + 63) / 64 * 64 : quads;
    for (s64 base = 0; base < end; base += n_threads) {
        s64 i = base + thread;
        float v[4] = {0, 0, 0, 0};
        bool in = i < quads;
        if (in) {
            read_quad(a, row, i, v);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (a.normalise)
                    v[j] *= factor * (a.norm ? a.norm[4 * i + j] : 1.0f);
                if (a.add)
                    v[j] += load_fresh(a.add + t * a.add_stride + 4 * i + j);
            }
            if (a.out)
                *(f32x4 *)(a.out + t * a.out_stride + 4 * i) = {{v[0], v[1], v[2], v[3]}};
        }
        if (a.half && i < end)
            store_half_quad(a.half, a.half_stride, i, t, pack_half2(v[0] * up, v[1] * up),
                            pack_half2(v[2] * up, v[3] * up));
    }
}

/* The same without norm and quantised forms, for any width; grid (chunks, rows). */
HK_KERNEL hk_elements(const __grid_constant__ hk_rows_args a) {
    allow_next();
    wait_for_previous();
    int t = blockIdx.y;
    if (t >= a.step.counts[a.rows_are_outputs])
        return;
    s64 row = source_row(a, t);
    for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < a.width; i += (s64)gridDim.x * blockDim.x) {
        float y = has_second(a.mode) ? load_fresh(a.y + row * a.y_stride + i) : 0;
        a.out[t * a.out_stride + i] = combine(a.mode, load_fresh(a.x + row * a.x_stride + i), y, a.number);
    }
}

/* Sums of squares by column; grid (columns / 32). Each is added up in one order, so that it is the same every time. */
HK_KERNEL hk_observe(const __grid_constant__ hk_observe_args a) {
    __shared__ double part[HK_OBSERVE_WARPS][32];
    allow_next();
    wait_for_previous();
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = a.step.counts[a.rows_are_outputs];
    s64 c = 32 * (s64)blockIdx.x + lane;
    double sum = 0;
    if (c < a.width)
        for (int t = warp; t < n; t += HK_OBSERVE_WARPS) {
            double x = load_fresh(a.x + t * a.x_stride + c);
            sum += x * x;
        }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < a.width) {
        for (int w = 1; w < HK_OBSERVE_WARPS; w++)
            sum += part[w][lane];
        a.sums[c] += sum;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        a.sums[a.width] += n;
}

/* --- embedding and angles --- */

/* Calls f(first column, four weights) for a row's columns, shared out between the block's threads. */
template <class F, class TAKE> HK_FN void each_quad(const hk_embed_args &a, s64 row, TAKE f) {
    int r = (int)(row & 15), units = (int)a.cols / 32;
    for (int i = threadIdx.x; i < 4 * units; i += blockDim.x) {
        int unit = i >> 2, t = i & 3, u = unit % F::UNITS;
        const u8 *record = record_of<F>(a.table, a.cols, row >> 4, unit / F::UNITS);
        lane_codes<F> w;
        load_codes(w, record, 4 * (r & 7) + t);
        float s, m, v[4];
        scale_of<F>(record, r, u, t >> 1, s, m);
#pragma unroll
        for (int k = 0; k < F::UNITS; k++) /* words stay in registers only where their numbers are constants */
            if (k == u)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32 codes = r < 8 ? F::code(w, k, 2 * half) : F::code(w, k, 2 * half + 1);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        u32 c = codes >> 8 * j & 255;
                        s32 n = F::SIGNED ? (s32)(s8)c : (s32)(c >> F::shift(k));
                        v[j] = s * (float)(n - F::ZERO) + m;
                    }
                    f(32 * unit + 8 * t + 4 * half, v);
                }
    }
}
template <class W, class TAKE> HK_FN void each_float_quad(const hk_embed_args &a, s64 row, TAKE f) {
    for (int i = 4 * threadIdx.x; i < (int)a.cols; i += 4 * blockDim.x) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = W::value(a.table, row * a.cols + i + j);
        f(i, v);
    }
}
template <class TAKE> HK_FN void embed(const hk_embed_args &a, TAKE each) {
    allow_next();
    wait_for_previous();
    int t = blockIdx.x;
    if (t >= a.step.counts[0])
        return;
    s64 token = a.step.tokens[t];
    if (token < 0 || token >= a.rows)
        return;
    float *out = a.out + t * a.out_stride, scale = a.scale;
    each(token, [=](int i, const float (&w)[4]) {
        *(f32x4 *)(out + i) = {{w[0] * scale, w[1] * scale, w[2] * scale, w[3] * scale}};
    });
}
#define HK_EMBED(lower, each)                                                                                          \
    HK_KERNEL hk_embed_##lower(const __grid_constant__ hk_embed_args a) {                                              \
        embed(a, [&](s64 row, auto take) { each<unit_##lower>(a, row, take); });                                       \
    }
#define HK_EMBED_F32(lower)                                      HK_EMBED(lower, each_float_quad)
#define HK_EMBED_Q8_32(lower)                                    HK_EMBED(lower, each_quad)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_EMBED_##act(lower)
#include "../formats/hk_types.def"
#undef HK_TYPE

/* In double: at position 131071 a float angle would be off by 4e-3. */
HK_KERNEL hk_angles(const __grid_constant__ hk_angles_args a) {
    allow_next();
    wait_for_previous();
    int t = blockIdx.x;
    if (t >= a.step.counts[0])
        return;
    bool is_long = a.inv_freq_long && a.step.variants[t];
    const double *f = is_long ? a.inv_freq_long : a.inv_freq;
    double scale = is_long ? a.mscale_long : a.mscale;
    for (int i = threadIdx.x; i < a.half; i += blockDim.x) {
        double s, c;
        sincos(a.step.positions[t] * f[i], &s, &c);
        float *to = a.out + 2 * (t * a.half + i);
        to[0] = (float)(c * scale);
        to[1] = (float)(s * scale);
    }
}

/* --- heads: norm, rotation, store; one warp per head, in place --- */

#define HK_HEAD_WARPS 4

/* grid (ceil(heads of all streams / HK_HEAD_WARPS), tokens). */
HK_KERNEL hk_heads(const __grid_constant__ hk_heads_args a) {
    __shared__ float vectors[HK_HEAD_WARPS][2][HK_MAX_HEAD];
    allow_next();
    wait_for_previous();
    int t = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int head = blockIdx.x * HK_HEAD_WARPS + warp, k = 0;
    if (t >= a.step.counts[0])
        return;
    while (k < a.n_streams && head >= a.stream[k].n_heads)
        head -= a.stream[k++].n_heads;
    if (k == a.n_streams)
        return;
    const hk_stream &s = a.stream[k];
    float *x = s.x + t * s.stride + head * s.dim, *y = vectors[warp][1];
    turn_head<HK_MAX_HEAD / 32, true>(s, x, s.angles + 2 * t * s.half, vectors[warp][0], y, lane);
    if (s.norm || s.angles)
        for (int i = lane; i < s.dim; i += 32)
            x[i] = y[i];
    if (s.store)
        store_token(a, t, head, s, y, lane);
}
