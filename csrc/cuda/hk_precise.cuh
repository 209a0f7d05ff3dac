/* One column with 15 bits: x = d * (128 * high + low) by units of 32, both parts int8, d = max|x| / 16256. Columns of
 * the instruction that are empty otherwise take the second part, so it costs no more of them: all units of a set
 * accumulate. 32 columns a scale: two sets, unit u is in set u % 2; column 2 (u / 2) is its high, the next one its low
 * part. 16 columns a scale: four sets, unit u is in set u / 2; columns 4 (u % 2) + 2 h and the next one are the parts
 * of its half h. Columns of B are blanked by a multiplication, since logical operations keep their unit busier than
 * anything else. A whole model of 7B so took 3.4 % longer to decode (the input is more work, and sums are), which is
 * why only products that are recorded as precise do it.
 */
#ifndef HK_PRECISE_CUH
#define HK_PRECISE_CUH

#include "hk_step.cuh"

/* Codes of the only column, by steps: [unit % 2][unit / 2][t][part][8 of lane t]: without conflicts of banks for the B
 * operands of either kind of sets. Where both parts of eight columns are. */
HK_FN int place_of_eight(int eight) {
    return 512 * (eight >> 5) + 256 * (eight >> 2 & 1) + 64 * (eight >> 3 & 3) + 16 * (eight & 3);
}
/* Meta of a unit of the only column, 16 bytes for every scale of its weights: what the sums of both parts start at, or,
 * for formats with mins, the sum of the inputs; then what sums are multiplied by. sums: of the high and the low part of
 * both halves. */
template <class F>
HK_FN void write_meta(u8 *meta, int unit, float scale, const s32 (&sums)[2][2], u64 *ready, u32 rank) {
    int u = unit & 7;
#pragma unroll
    for (int h = 0; h < 32 / F::SUB; h++) {
        s32 high = F::SUB == 32 ? sums[0][0] + sums[0][1] : sums[0][h];
        s32 low = F::SUB == 32 ? sums[1][0] + sums[1][1] : sums[1][h];
        u32 m[4] = {(u32)(-F::PAIR_ZERO * high * (1 << F::shift(u))), (u32)(-F::PAIR_ZERO * low * (1 << F::shift(u)))};
        if (F::HAS_MIN)
            m[0] = __float_as_uint(scale * (float)(128 * high + low));
        m[F::HAS_MIN ? 1 : 2] = __float_as_uint(scale * power_of_half(F::shift(u)));
        send_to(rank, meta + step_of<F, 2>::META * unit + 16 * h, m, 4, ready);
    }
}

/* What a lane needs to know of its place: where its codes and the meta of its sums begin, and for which units it has a
 * column of the B operand (with 16 columns a scale: of a half that includes its k): 1 or 0, of unit u number u / 2 or
 * u % 2. Made once, behind the compiler's back: it would work all of this out again in every step. */
template <class F> struct lane_place {
    static constexpr int N = F::SUB == 32 ? 4 : 2, SETS = F::SUB == 32 ? 2 : 4;
    u32 codes, meta, own[N];

    HK_MEMBER lane_place(int lane) {
        int g = lane >> 2, t = lane & 3;
        codes = 16 * t + 8 * (g & 1) + (F::SUB == 32 ? 64 * (g >> 1) : 256 * (g >> 2));
        meta = (F::SUB == 32 ? 32 : 16) * t;
        HK_OPAQUE_WORD(codes);
        HK_OPAQUE_WORD(meta);
#pragma unroll
        for (int i = 0; i < N; i++) {
            own[i] = F::SUB == 32 ? g >> 1 == i : g >> 2 == i && (g >> 1 & 1) == t >> 1;
            HK_OPAQUE_WORD(own[i]);
        }
    }
};

/* The scales of a lane's sums here from those that lanes get by hk_scales.cuh: of half t % 2 of unit 2 i + t / 2, as
 * value 4 (row / 8) + i. */
HK_FN void in_order_of_sets(float (&s)[8], int lane) {
    float to[8];
#pragma unroll
    for (int v = 0; v < 8; v++) {
        int i = v & 3, from = (lane & 28) | (2 * (i & 1) + (lane >> 1 & 1)), at = 4 * (v >> 2) + 2 * (i >> 1);
        float first = __shfl_sync(~0u, s[at], from), second = __shfl_sync(~0u, s[at + 1], from);
        to[v] = lane & 1 ? second : first;
    }
#pragma unroll
    for (int v = 0; v < 8; v++)
        s[v] = to[v];
}

/* As multiply_one. */
template <class F>
HK_FN void multiply_two(const u8 *w, int records, const s8 *x, const u8 *meta, int lane, const lane_place<F> &place,
                        float (&y)[2]) {
    constexpr int SETS = lane_place<F>::SETS;
    int t = lane & 3;
    u32x2 b[SETS];
    s32 c[SETS][4];
    x += place.codes;
    meta += place.meta;
#pragma unroll
    for (int i = 0; i < SETS; i++)
        b[i] = *(const u32x2 *)(x + (F::SUB == 32 ? 256 : 64) * i);
#pragma unroll
    for (int i = 0; i < SETS; i++) {
        u32x2 start = {};
        if (F::PAIR_ZERO)
            start = *(const u32x2 *)(meta + (F::SUB == 32 ? 16 : 64) * i);
#pragma unroll
        for (int k = 0; k < 4; k++)
            c[i][k] = (s32)start.v[k & 1];
    }
    lane_scales<F> scales;
    scales_of_step<F>(w, records, lane, scales);
    if constexpr (F::SUB == 16) {
        in_order_of_sets(scales.s, lane);
        if (F::HAS_MIN)
            in_order_of_sets(scales.m, lane);
    }
#pragma unroll
    for (int r = 0; r < step_of<F>::RECORDS; r++) {
        lane_codes<F> codes;
        load_codes(codes, w + r * F::BYTES, lane);
#pragma unroll
        for (int k = 0; k < F::UNITS; k++) {
            int u = r * F::UNITS + k, i = F::SUB == 32 ? u & 1 : u >> 1;
            u32 here = place.own[F::SUB == 32 ? u >> 1 : u & 1];
            mma_unit(c[i], codes, k, b[i].v[0] * here, b[i].v[1] * here, c[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < SETS; i++) {
        u32x2 m = *(const u32x2 *)(meta + (F::SUB == 32 ? 16 : 64) * i + (F::HAS_MIN ? 0 : 8));
        float d = __uint_as_float(m.v[F::HAS_MIN]), sum = __uint_as_float(m.v[0]);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            int v = SETS * row + i;
            y[row] += scales.s[v] * d * (float)(128 * c[i][2 * row] + c[i][2 * row + 1]);
            if (F::HAS_MIN)
                y[row] += scales.m[v] * sum;
        }
    }
}

#endif
