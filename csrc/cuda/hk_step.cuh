/* What a warp does with one step: 16 rows x 256 columns of quantised weights against 1 to 8 columns.
 *
 * One column of int8 codes (of 15 bits: hk_precise.cuh), on the integer matrix instruction m16n8k32: the eight columns
 * of the instruction are scales' columns. Unit u of the step is multiplied with a B operand that is zero but in column
 * u (16 columns a scale: columns 2 (u % 4) and 2 (u % 4) + 1, one per half, in two accumulators), and all accumulate:
 * C[r][j] is then the exact sum of row r with scale j, and every lane holds four (or eight) sums of its own to scale. A
 * thread per unit and row, with dot products of four, needed ten times the instructions.
 *
 * More columns: weights become halves, scale and all, as they do for many columns, and the columns of the instruction
 * (m16n8k16) are the tokens. With integers every unit had to be scaled for itself, for each row and token.
 *
 * Sums start at 1.5 * 2^23 (plus what zero points take off), so that their bits are a float: |sum| < 2^22 for every
 * format.
 */
#ifndef HK_STEP_CUH
#define HK_STEP_CUH

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

/* Meta of a unit of the only column: its scale, by which sums are multiplied, and for each scale's columns what sums
 * start at, or, for formats with mins, the sum of the inputs. */
template <class F> HK_FN u32 start_or_sum(int u, float scale, s32 sum) {
    if (F::HAS_MIN)
        return __float_as_uint(scale * (float)sum);
    return (u32)(HK_SUM_START - F::PAIR_ZERO * (sum << F::shift(u)));
}
template <class F> HK_FN void write_meta(u8 *meta, int unit, float scale, const s32 (&sums)[2]) {
    int u = unit & 7;
    scale = short_of(scale);
    u32 m[4] = {__float_as_uint(scale * power_of_half(F::shift(u)))};
    m[1] = start_or_sum<F>(u, scale, F::SUB == 32 ? sums[0] + sums[1] : sums[0]);
    m[2] = start_or_sum<F>(u, scale, sums[1]);
    store_in_all(meta + step_of<F>::META * unit, m, step_of<F>::META / 4);
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

/* w: the step in shared memory; records of it that exist; x: codes of the step's 256 columns, zero beyond the row; meta
 * of its units. Adds to the sums of rows g and g + 8; those of a quad's four lanes belong together. */
template <class F>
HK_FN void multiply_one(const u8 *w, int records, const s8 *x, const u8 *meta, int lane, float (&y)[2]) {
    constexpr int TILES = F::SUB == 32 ? 1 : 2, N = lane_scales<F>::N;
    int g = lane >> 2, t = lane & 3;
    u32x2 b[TILES];
    float d[2], z[TILES][2];
    s32 start[TILES][4], c[TILES][4],
        more[TILES][4] = {}; /* more: of every other unit, so that fewer wait for each other */
    if constexpr (TILES == 1) {
        b[0] = *(const u32x2 *)(x + 8 * lane);
        u32x4 m = *(const u32x4 *)(meta + 16 * t);
        d[0] = __uint_as_float(m.v[0]), d[1] = __uint_as_float(m.v[2]);
        z[0][0] = __uint_as_float(m.v[1]), z[0][1] = __uint_as_float(m.v[3]);
    } else {
        u32 mine = (g & 1) == t >> 1 ? ~0u : 0;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            b[i] = *(const u32x2 *)(x + 128 * i + 32 * (g >> 1) + 8 * t);
            b[i].v[0] &= mine;
            b[i].v[1] &= mine;
            u32x4 m = *(const u32x4 *)(meta + 64 * i + 16 * t);
            d[i] = __uint_as_float(m.v[0]);
            z[i][0] = __uint_as_float(m.v[1]), z[i][1] = __uint_as_float(m.v[2]);
        }
    }
    lane_scales<F> scales;
    scales_of_step<F>(w, records, lane, scales);
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            start[i][k] = c[i][k] = F::HAS_MIN ? HK_SUM_START : __float_as_int(z[i][k & 1]);
#pragma unroll
    for (int r = 0; r < step_of<F>::RECORDS; r++) {
        lane_codes<F> codes;
        load_codes(codes, w + r * F::BYTES, lane);
#pragma unroll
        for (int k = 0; k < F::UNITS; k++) {
            int u = r * F::UNITS + k;
            if constexpr (TILES == 1) {
                s32 all[4];
                mma_unit(all, codes, k, b[0].v[0], b[0].v[1], start[0]);
                c[0][u & 1] = t == u >> 1 ? all[u & 1] : c[0][u & 1];
                c[0][2 + (u & 1)] = t == u >> 1 ? all[2 + (u & 1)] : c[0][2 + (u & 1)];
            } else {
                int i = u >> 2;
                u32 here = g >> 1 == (u & 3) ? ~0u : 0;
                s32(&sum)[4] = u & 1 ? more[i] : c[i];
                mma_unit(sum, codes, k, b[i].v[0] & here, b[i].v[1] & here, sum);
            }
        }
    }
    if constexpr (TILES == 2) {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                c[i][k] += more[i][k];
    }
    float minus[2] = {minus_start(d[0]), minus_start(d[1])};
#pragma unroll
    for (int v = 0; v < N; v++) {
        int row = TILES == 1 ? v >> 1 : v >> 2, i = TILES == 1 ? 0 : v >> 1 & 1, j = v & 1, unit = TILES == 1 ? j : i;
        y[row] += scales.s[v] * scaled_sum(c[i][2 * row + j], d[unit], minus[unit]);
        if (F::HAS_MIN)
            y[row] += scales.m[v] * z[i][j];
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
