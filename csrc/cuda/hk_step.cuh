/* What a warp does with one step: 16 rows x 256 columns of quantised weights against 1 to 8 columns.
 *
 * One column of int8 codes (of 15 bits: hk_precise.cuh), on the integer matrix instruction m16n8k32: the eight columns
 * of the instruction are scales' columns. Unit u of the step is multiplied with a B operand that is zero but in the
 * columns of its scales, and all accumulate in two sets, so that fewer wait for each other: C[r][j] is then the exact
 * sum of row r with scale j, and every lane holds four (or eight) sums of its own to scale. 32 columns a scale: set u %
 * 2, column 2 (u / 2); a table of 16 values takes two instructions (hk_unit.cuh). 16: set u / 4, columns 2 (u % 4) and
 * the next, one per half; their scales are integers, so two sums become one number before it becomes a float, and mins
 * are multiplied as integers too. A thread per unit and row, with dot products of four, needed ten times the
 * instructions; scales of 16 columns as floats, one by one, twice as many.
 *
 * More columns: weights become halves, scale and all, as they do for many columns, and the columns of the instruction
 * (m16n8k16) are the tokens. With integers every unit had to be scaled for itself, for each row and token.
 *
 * Sums with 32 columns a scale start at 1.5 * 2^23 (plus what zero points take off), so that their bits are a float:
 * |sum| < 2^22 for every format.
 */
#ifndef HK_STEP_CUH
#define HK_STEP_CUH

#include "hk_cluster.cuh"
#include "hk_halves.cuh"

#define HK_SUM_START 0x4B400000
/* (sum that c stands for) * d, with one rounding: d must have been made `short_of` before. */
HK_FN float short_of(float d) { return __uint_as_float(__float_as_uint(d) & ~3u); }
HK_FN float scaled_sum(s32 c, float d, float minus) { return fmaf(__int_as_float(c), d, minus); }
HK_FN float minus_start(float d) { return -12582912.0f * d; }
HK_FN float power_of_half(int n) { return __uint_as_float((u32)(127 - n) << 23); }

/* PARTS: of the only column's input. */
template <class F, int PARTS = 1> struct step_of {
    static constexpr int RECORDS = 256 / F::COLUMNS, BYTES = RECORDS * F::BYTES;
    static constexpr int CODES = PARTS * 256;                    /* bytes of the only column's codes */
    static constexpr int META = PARTS * (F::SUB == 32 ? 8 : 16); /* bytes of a unit of it */
};

/* Meta of a unit of the only column. 32 columns a scale: its scale, by which sums are multiplied, and what sums start
 * at, or, for formats with mins, scale times the sum of the inputs. 16: the same scale, and what the sums of both
 * halves start at, or, for formats with mins, the sums of the inputs as two s16, and the scale of what becomes of
 * these. */
template <class F> HK_FN u32 start_of(int u, s32 sum) { return (u32)(-F::PAIR_ZERO * (sum << F::shift(u))); }
template <class F> HK_FN void write_meta(u8 *meta, int unit, float scale, const s32 (&sums)[2], u64 *ready, u32 rank) {
    int u = unit & 7;
    u32 m[4] = {};
    if constexpr (F::SUB == 32) {
        scale = short_of(scale);
        m[1] = F::HAS_MIN ? __float_as_uint(scale * (float)(sums[0] + sums[1]))
                          : HK_SUM_START + start_of<F>(u, sums[0] + sums[1]);
    } else {
        m[1] = F::HAS_MIN ? (sums[0] & 0xFFFF) | (u32)sums[1] << 16 : start_of<F>(u, sums[0]);
        m[2] = F::HAS_MIN ? __float_as_uint(scale) : start_of<F>(u, sums[1]);
    }
    m[0] = __float_as_uint(scale * power_of_half(F::shift(u)));
    send_to(rank, meta + step_of<F>::META * unit, m, step_of<F>::META / 4, ready);
}

/* d = start + unit u times b. */
template <class F>
HK_FN void mma_unit(s32 (&d)[4], const lane_codes<F> &w, int u, u32 b0, u32 b1, const s32 (&start)[4]) {
    u32 a[4];
    if constexpr (F::PAIRS) {
        u32 upper[4];
        s32 half[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            F::code_pair(w, u, i, a[i], upper[i]);
        mma_8_bit<true>(half, upper, b0, b1, start);
        mma_8_bit<true>(d, a, b0, b1, half);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = F::code(w, u, i);
        mma_8_bit<F::SIGNED>(d, a, b0, b1, start);
    }
}

/* Of the record of a step that a lane needs scales of; what is not there is multiplied by 0. */
template <class F> HK_FN void scales_of_step(const u8 *w, int records, int lane, lane_scales<F> &scales) {
    int t = lane & 3, record = step_of<F>::RECORDS == 1 ? 0 : t < records ? t : records - 1;
    scales_of(w + record * F::BYTES + F::SCALES_AT, lane, scales);
}

/* A lane's part of the B operands of a step: where it lies, and for which units it counts: 1 or 0, of unit u number u /
 * 2 (16 columns a scale: u % 4). Columns are blanked by a multiplication, since logic keeps its unit busier than that.
 */
template <class F> struct column_place {
    const u8 *at;
    u32 own[4], ones; /* ones: all bits, which the compiler must not know (turned_over of hk_unit.cuh) */

    /* x: the codes of the first step. */
    HK_MEMBER column_place(const s8 *x, int lane) {
        int g = lane >> 2, t = lane & 3;
        at = (const u8 *)x + (F::SUB == 32 ? 64 : 32) * (g >> 1) + 8 * t;
        ones = whole_warp();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            own[k] = F::SUB == 32 ? g == 2 * k : g >> 1 == k && (g & 1) == t >> 1;
            HK_OPAQUE_WORD(own[k]);
        }
    }
};

/* 16 columns a scale: the sums of both halves of units t and 4 + t, times scales that are integers. */
template <class F>
HK_FN void multiply_halves(const u8 *w, const column_place<F> &x, const u8 *at, const u8 *meta, int lane,
                           float (&y)[2]) {
    float scale[2], scale_min[2];
    u32 pair[2];
    s32 c[2][4];
    u32x2 b[2];
    byte_scales<F> scales;
    lane_codes<F> codes;
    load_codes(codes, w, lane);
    bytes_of(w + F::SCALES_AT, lane, scales);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        b[i] = *(const u32x2 *)(at + 128 * i);
        u32x4 m = *(const u32x4 *)(meta + 64 * i + 16 * (lane & 3));
        scale[i] = __uint_as_float(m.v[0]);
        pair[i] = m.v[1], scale_min[i] = __uint_as_float(m.v[2]);
#pragma unroll
        for (int k = 0; k < 4; k++)
            c[i][k] = F::HAS_MIN ? 0 : (s32)m.v[1 + (k & 1)];
    }
#pragma unroll
    for (int u = 0; u < 8; u++) {
        int i = u >> 2;
        mma_unit(c[i], codes, u, b[i].v[0] * x.own[u & 3], b[i].v[1] * x.own[u & 3], c[i]);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float sum = 0, sum_min = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            s32 n = c[i][2 * row] * byte_of<!F::HAS_MIN>(scales.s[row], 2 * i);
            n += c[i][2 * row + 1] * byte_of<!F::HAS_MIN>(scales.s[row], 2 * i + 1);
            sum += scale[i] * (float)n;
            if (F::HAS_MIN)
                sum_min += scale_min[i] *
                           (float)(i ? dot2<true>(pair[i], scales.m[row], 0) : dot2<false>(pair[i], scales.m[row], 0));
        }
        y[row] += scales.d[row] * sum;
        if (F::HAS_MIN)
            y[row] -= scales.dm[row] * sum_min;
    }
}

/* 32 columns a scale: the sums of units 2 t and 2 t + 1, each in a set of its own. */
template <class F>
HK_FN void multiply_units(const u8 *w, int records, const column_place<F> &x, const u8 *at, const u8 *meta, int lane,
                          float (&y)[2]) {
    u32x4 m = *(const u32x4 *)(meta + 16 * (lane & 3));
    s32 c[2][4];
    u32x2 b[2];
    lane_scales<F> scales;
    scales_of_step<F>(w, records, lane, scales);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        b[i] = *(const u32x2 *)(at + 32 * i);
#pragma unroll
        for (int k = 0; k < 4; k++)
            c[i][k] = F::HAS_MIN ? HK_SUM_START : (s32)m.v[2 * i + 1];
    }
#pragma unroll
    for (int r = 0; r < step_of<F>::RECORDS; r++) {
        lane_codes<F> codes;
        load_codes(codes, w + r * F::BYTES, lane);
        codes.ones = x.ones;
#pragma unroll
        for (int k = 0; k < F::UNITS; k++) {
            int u = r * F::UNITS + k, i = u & 1;
            mma_unit(c[i], codes, k, b[i].v[0] * x.own[u >> 1], b[i].v[1] * x.own[u >> 1], c[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float d = __uint_as_float(m.v[2 * i]), minus = minus_start(d);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            y[row] += scales.s[2 * row + i] * scaled_sum(c[i][2 * row], d, minus);
            if (F::HAS_MIN)
                y[row] += scales.m[2 * row + i] * __uint_as_float(m.v[2 * i + 1]);
        }
    }
}

/* w: steps in shared memory, STEPS of them; records of them that exist; x: codes, zero beyond the row; meta of the
 * steps' units. Adds to the sums of rows g and g + 8; those of a quad's four lanes belong together. */
template <class F, int STEPS = 1>
HK_FN void multiply_one(const u8 *w, int records, const column_place<F> &x, const u8 *meta, int lane, float (&y)[2]) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const u8 *m = meta + 8 * step_of<F>::META * i, *at = x.at + step_of<F>::CODES * i;
        if constexpr (F::SUB == 32)
            multiply_units<F>(w + i * step_of<F>::BYTES, records - i * step_of<F>::RECORDS, x, at, m, lane, y);
        else
            multiply_halves<F>(w + i * step_of<F>::BYTES, x, at, m, lane, y);
    }
}

/* The B operands of unit u of 64 columns, x: halves of up to 8 tokens (hk_rows.cuh), in shared memory if STAGED. */
template <bool STAGED> HK_FN void load_tokens(const u8 *x, int u, int lane, u32 (&b)[4]) {
    if constexpr (STAGED) {
        load_matrices(b, x + 128 * (lane & 7) + (((4 * u + (lane >> 3)) ^ (lane & 7)) << 4));
    } else {
        int token = lane >> 2;
#pragma unroll
        for (int i = 0; i < 4; i++)
            b[i] = *(const u32 *)(x + 128 * token + (((4 * u + i) ^ token) << 4) + 4 * (lane & 3));
    }
}

/* Tokens 2 t and 2 t + 1 of 8, complete in each lane: y[2 (row / 8) + token % 2], times CARRIED (hk_halves.cuh). x: of
 * the step's first 64 columns, the next ones being `stride` bytes on. */
template <class F, bool STAGED>
HK_FN void multiply_few(const u8 *w, int records, const u8 *x, int stride, int lane, float (&y)[4]) {
    step_weights<F> weights;
    weights.load(w, records, lane);
    float more[4] = {}; /* of every other instruction, so that fewer wait for each other */
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int u = 0; u < 2; u++) {
            u32 b[4], a[4];
            load_tokens<STAGED>(x, u, lane, b);
            weights.fragment(j, 2 * u, lane, a);
            mma_f16(y, a, b[0], b[1]);
            weights.fragment(j, 2 * u + 1, lane, a);
            mma_f16(more, a, b[2], b[3]);
        }
        x += stride;
        HK_OPAQUE(x); /* or all addresses are computed in advance, into too many registers */
    }
#pragma unroll
    for (int v = 0; v < 4; v++)
        y[v] += more[v];
}

#endif
