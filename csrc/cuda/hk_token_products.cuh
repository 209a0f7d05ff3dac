/* Groups of products of one column, of formats that are known when they run (hk_token.cuh). */
#ifndef HK_TOKEN_PRODUCTS_CUH
#define HK_TOKEN_PRODUCTS_CUH

#include "hk_token_block.cuh"

#include "hk_input.cuh"

/* The codes and meta of a format; a second one's meta. */
#define HK_CASE_F32(NAME, lower, id)
#define HK_CASE_Q8_32(NAME, lower, gguf_id)                                                                            \
    case gguf_id: {                                                                                                    \
        using F = unit_##lower;                                                                                        \
        HK_DO(F);                                                                                                      \
        break;                                                                                                         \
    }
template <int E> HK_FN void quantise_for(int format, const float (&x)[E][8], int first, int end, only_column to) {
    switch (format) {
#define HK_DO(F)                                                 quantise_eights<F, F, E>(x, first, end, to)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_CASE_##act(NAME, lower, id)
#include "../formats/hk_types.def"
#undef HK_TYPE
#undef HK_DO
    }
}

/* As prepare_input, for formats that are not known before. E: eights of a thread at once. */
template <int E, bool NORMALISE> HK_FN void prepare(token_block &b, const hk_instruction &i, const only_column &to) {
    const hk_matvec_args &a = i.products;
    int eights = (int)a.cols / 8, end = ((int)a.cols + 255) / 256 * 32, weights = NORMALISE && a.norm ? eights : 0;
    float x[E][8], w[E][8], sum = 0;
    if (NORMALISE)
        load_eights<E>(a.norm, weights, 0, end, false, w);
    wait_for_others(b, i.waits);
    STAMP(1);
    for (int base = 0; base < end; base += E * THREADS) {
        load_eights<E>(a.x, eights, base, end, true, x);
        if (NORMALISE) {
            if (base)
                load_eights<E>(a.norm, weights, base, end, false, w);
            sum = weigh_eights<E>(x, w, a.norm, sum);
        }
        quantise_for<E>(i.format[0].id, x, base, end, to);
        if (a.other_tiles || a.other_more_tiles)
            quantise_for<E>(i.format[1].id, x, base, end, {to.codes, to.meta2, to.meta2});
    }
    if (NORMALISE) {
        sum = warp_sum(sum);
        if ((threadIdx.x & 31) == 0)
            b.squares[threadIdx.x >> 5] = sum;
    }
    __syncthreads();
}

/* Steps of one tile, up to `count`: fewer where the run of what is asked for ends. Returns how many. */
template <class F>
HK_FN int take_run(weight_stream<WARPS> &stream, int count, int units, const s8 *codes, const u8 *meta, float (&y)[2]) {
    int left = count;
    column_place<F> column(codes, stream.lane);
    do {
        multiply_one<F>(stream.take(), (units + F::UNITS - 1) / F::UNITS, column, meta, stream.lane, y);
        stream.release();
        if (stream.bytes)
            stream.ask_next();
        column.at += HK_STEP_CODES;
        meta += 8 * step_of<F>::META;
        units -= 8;
    } while (--left && stream.bytes);
    return count - left;
}
HK_FN int take_some(int format, weight_stream<WARPS> &stream, int count, int units, const s8 *codes, const u8 *meta,
                    float (&y)[2]) {
    switch (format) {
#define HK_DO(F) return take_run<F>(stream, count, units, codes, meta, y)
#define HK_TYPE(NAME, lower, id, block, bytes, scale_bytes, act) HK_CASE_##act(NAME, lower, id)
#include "../formats/hk_types.def"
#undef HK_TYPE
#undef HK_DO
    }
    return count;
}

HK_FN void take_steps(token_block &b, const hk_instruction &i, const block_share &s, const only_column &x) {
    const hk_matvec_args &a = i.products;
    weight_stream<WARPS> &stream = b.stream;
    int warp = stream.warp, lane = stream.lane, begin = first_step(s, warp, WARPS);
    int left = first_step(s, warp + 1, WARPS) - begin, v = begin / s.steps, at = begin - v * s.steps;
    while (left) {
        int count = min(s.steps - at, left);
        bool second = !s.glu && v >= s.n_first, begins = at == 0;
        int format = i.format[second].id, meta_step = 8 * i.format[second].meta, units = (int)a.cols / 32 - 8 * at;
        const s8 *codes = x.codes + HK_STEP_CODES * at;
        const u8 *meta = (second ? x.meta2 : x.meta) + meta_step * at;
        float y[2] = {0, 0};
        left -= count;
        while (count) {
            int n = take_some(format, stream, count, units, codes, meta, y);
            fill(b);
            count -= n;
            codes += HK_STEP_CODES * n;
            meta += meta_step * n;
            units -= 8 * n;
        }
        bool upper = lane & 1;
        float sum = (upper ? y[1] : y[0]) + __shfl_xor_sync(~0u, upper ? y[0] : y[1], 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if ((lane & 3) < 2)
            (begins ? b.sums + 16 * v : b.rest + 16 * warp)[(lane >> 2) + 8 * (lane & 1)] = sum;
        at = 0;
        v++;
    }
}

/* The sum of row r of the block's tile v, in the order of the warps. */
HK_FN float row_sum(const token_block &b, const block_share &s, int v, int r) {
    float sum = b.sums[16 * v + r];
    int all = s.tiles * s.steps, share = all / WARPS, more = all - share * WARPS;
#pragma unroll
    for (int w = 1; w < WARPS; w++) {
        int inside = w * share + min(w, more) - v * s.steps;
        if (inside > 0 && inside < s.steps)
            sum += b.rest[16 * w + r];
    }
    return sum;
}

HK_FN void products(token_block &b, const hk_instruction &i) {
    const hk_matvec_args &a = i.products;
    block_share s = share_of(a, blockIdx.x, gridDim.x);
    only_column x = {(s8 *)b.input, 0, 0};
    x.meta = b.input + HK_STEP_CODES * s.steps;
    x.meta2 = x.meta + 8 * i.format[0].meta * s.steps;
    if (a.normalise)
        prepare<1024 / THREADS, true>(b, i, x);
    else
        prepare<(1536 + THREADS - 1) / THREADS, false>(b, i, x);
    STAMP(2);
    /* What is added to a thread's first result is asked for now. */
    int tiles = s.glu ? s.n_first : s.tiles, thread = threadIdx.x;
    float early = 0;
    if (thread < 16 * tiles && !s.glu) {
        tile_place p = place_of(a, s, thread >> 4);
        int row = 16 * p.tile + (thread & 15);
        const hk_part &part = a.part[p.part];
        if (row < (int)part.rows)
            early = (part.add ? load_fresh(part.add + row) : 0) + (part.bias ? part.bias[row] : 0);
    }
    take_steps(b, i, s, x);
    STAMP(3);
    __syncthreads();
    s = share_of(a, blockIdx.x, gridDim.x); /* again: registers are short in between */
    tiles = s.glu ? s.n_first : s.tiles;
    float factor = 1;
    if (a.normalise)
        factor = rsqrtf(warp_sum((thread & 31) < WARPS ? b.squares[thread & 31] : 0) / (float)a.cols + a.eps);
    for (int k = thread; k < 16 * tiles; k += THREADS) {
        tile_place p = place_of(a, s, k >> 4);
        int row = 16 * p.tile + (k & 15);
        const hk_part &part = a.part[p.part];
        if (row >= (int)part.rows)
            continue;
        float value = factor * row_sum(b, s, k >> 4, k & 15);
        if (s.glu) {
            float up = factor * row_sum(b, s, tiles + (k >> 4), k & 15);
            if (part.bias)
                value += part.bias[row];
            if (a.part[1].bias)
                up += a.part[1].bias[row];
            value = up * (a.glu == HK_GLU_SILU ? silu(value) : gelu_tanh(value));
        } else if (k == thread) {
            value += early;
        } else {
            value += (part.add ? load_fresh(part.add + row) : 0) + (part.bias ? part.bias[row] : 0);
        }
        part.out[row] = value;
    }
}

#endif
