/* What the products with many columns share: weights as halves in the registers of a matrix instruction's A operand,
 * and what becomes of a result. The input's layout: half_place in hk_rows.cuh.
 *
 * Both kernels go along K in steps of 256 columns, a step in four chunks of 64; what is beyond a row's end is zero on
 * both sides. A weight is (code - zero) * s + m in half precision: 1024 + code is exact in a half, so is the
 * difference; s and m are rounded once, and carried 64-fold against subnormals. Sums are f32.
 */
#ifndef HK_HALVES_CUH
#define HK_HALVES_CUH

#include "hk_rows.cuh"
#include "hk_scales.cuh"

#define HK_STEP 256

HK_FN u32 shuffle_word(u32 w, int from) { return __shfl_sync(~0u, w, from); }

/* A quantised step of 16 rows: everything of it that a lane needs, in registers. */
template <class F> struct step_weights {
    static constexpr int RECORDS = HK_STEP / F::COLUMNS, BYTES = RECORDS * F::BYTES, WORDS = F::SUB == 32 ? 2 : 4;
    static constexpr float CARRIED = 64;
    static constexpr bool STAYS = false; /* the step must stay where it is until its last fragments are made */
    lane_codes<F> codes[RECORDS];
    u32 s[WORDS], m[WORDS]; /* pairs of halves: of two units, or of a unit's halves */

    /* w: the step's records, of which so many exist. */
    __device__ __forceinline__ void load(const u8 *w, int records, int lane) {
        int t = lane & 3;
#pragma unroll
        for (int r = 0; r < RECORDS; r++)
            load_codes(codes[r], w + (r < records ? r : 0) * F::BYTES, lane);
        lane_scales<F> c;
        bool there = RECORDS == 1 || t < records;
        scales_of(w + (RECORDS == 1 || !there ? 0 : t) * F::BYTES + F::SCALES_AT, lane, c);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            /* SUB 32: row i, units 2 t and 2 t + 1. SUB 16: row i / 2, unit 4 (i % 2) + t. */
            int u = F::SUB == 32 ? 2 * t : 4 * (i & 1) + t;
            float first = there ? carried(u) : 0, second = there ? carried(F::SUB == 32 ? u + 1 : u) : 0;
            s[i] = pack_half2(c.s[2 * i] * first, c.s[2 * i + 1] * second);
            if (F::HAS_MIN)
                m[i] = pack_half2(there ? c.m[2 * i] * CARRIED : 0, there ? c.m[2 * i + 1] * CARRIED : 0);
        }
    }
    /* What undoes the shift of unit u's codes, times CARRIED. */
    static __device__ __forceinline__ float carried(int u) {
        constexpr u32 shifts = shift_at(0) | shift_at(1) | shift_at(2) | shift_at(3) | shift_at(4) | shift_at(5) |
                               shift_at(6) | shift_at(7);
        return __uint_as_float((127 + 6 - (shifts >> 4 * u & 15)) << 23);
    }
    static constexpr __device__ u32 shift_at(int u) { return (u32)F::shift(u & (F::UNITS - 1)) << 4 * u; }

    /* The A operand of 16 columns: number k of the four of chunk j. In order: those of a unit share their scales. */
    __device__ __forceinline__ void fragment(int j, int k, int lane, u32 (&f)[4]) {
        int u = 2 * j + (k >> 1);
        if (k % 2 == 0)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int i = F::SUB == 32 ? r : 2 * r + (u >> 2), from = (lane & 28) | (F::SUB == 32 ? j : u & 3);
                u32 which = (F::SUB == 32 ? u & 1 : lane & 2) ? 0x3232u : 0x1010u;
                scale[r] = permute(shuffle_word(s[i], from), 0, which);
                if (F::HAS_MIN)
                    min[r] = permute(shuffle_word(m[i], from), 0, which);
            }
        code_halves(codes[u / F::UNITS], u % F::UNITS, k & 1, f);
#pragma unroll
        for (int i = 0; i < 4; i++)
            f[i] = F::HAS_MIN ? half2_fma(f[i], scale[i & 1], min[i & 1]) : half2_mul(f[i], scale[i & 1]);
    }
    __device__ __forceinline__ void fragments(int j, int lane, u32 (&a)[4][4]) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            fragment(j, k, lane, a[k]);
    }

  private:
    u32 scale[2], min[2]; /* of rows g and g + 8, twice each */
};

/* Float rows. */
template <class F> struct step_floats {
    static constexpr float CARRIED = 1;
    static constexpr bool STAYS = true;
    static constexpr int PITCH = 2 * HK_STEP + 64; /* in shared memory: 16-byte loads of 8 rows touch all banks once */
    static constexpr int BYTES = 16 * PITCH;
    const u8 *at[2];
    int units;

    static __device__ __forceinline__ u32 half_pair(u32 w);
    /* The lane's two rows, of which so many units of 32 columns exist. */
    __device__ __forceinline__ void load(const u8 *first, const u8 *second, int n_units, int lane) {
        at[0] = first + (lane & 3) * 16;
        at[1] = second + (lane & 3) * 16;
        units = n_units;
    }
    __device__ __forceinline__ void fragments(int j, int lane, u32 (&a)[4][4]) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            fragment(j, k, lane, a[k]);
    }
    __device__ __forceinline__ void fragment(int j, int k, int, u32 (&f)[4]) {
        int u = 2 * j + (k >> 1);
        if (k % 2 == 0)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                v[r] = {{0, 0, 0, 0}};
                if (u < units)
                    v[r] = *(const u32x4 *)(at[r] + 64 * u);
            }
#pragma unroll
        for (int i = 0; i < 4; i++)
            f[i] = half_pair(v[i & 1].v[2 * (k & 1) + (i >> 1)]);
    }

  private:
    u32x4 v[2];
};
template <> __device__ __forceinline__ u32 step_floats<unit_f16>::half_pair(u32 w) { return w; }
template <> __device__ __forceinline__ u32 step_floats<unit_bf16>::half_pair(u32 w) {
    return pack_half2(__uint_as_float(w << 16), __uint_as_float(w & 0xFFFF0000u));
}

template <class F> struct step_type {
    typedef step_weights<F> type;
};
template <> struct step_type<unit_f16> {
    typedef step_floats<unit_f16> type;
};
template <> struct step_type<unit_bf16> {
    typedef step_floats<unit_bf16> type;
};

/* Which part of the group a tile of `height` rows belongs to; tile becomes its number there. */
HK_FN int part_of_tile(const hk_matmul_args &a, int height, int &tile) {
    int p = 0;
    for (; p + 1 < a.n_parts; p++) {
        int tiles = ((int)a.part[p].rows + height - 1) / height;
        if (tile < tiles)
            break;
        tile -= tiles;
    }
    return p;
}

/* Stores N blocks of 16 rows x 8 tokens as an m16n8 accumulator holds them: rows row and row + 8, tokens 2 t, 2 t + 1
 * of each block. scales, in shared memory: what each token's sums must be multiplied by. What is to be added is asked
 * for several blocks at a time. */
template <int N>
HK_FN void store_blocks(const hk_part &p, int row, int token0, int n, const float *scales, const float *acc) {
    constexpr int G = N < 8 ? N : 8;
    int t = threadIdx.x & 3, left = n - token0 - 2 * t;
    bool here[2] = {row < (int)p.rows, row + 8 < (int)p.rows};
    float *out = p.out + (token0 + 2 * t) * p.out_stride + row;
    const float *add = p.add + (token0 + 2 * t) * p.add_stride + row;
    float bias[2] = {p.bias && here[0] ? p.bias[row] : 0, p.bias && here[1] ? p.bias[row + 8] : 0};
#pragma unroll
    for (int first = 0; first < N; first += G) {
        float more[G][4];
#pragma unroll
        for (int b = 0; b < G; b++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                more[b][i] = bias[i >> 1];
                if (p.add && here[i >> 1] && 8 * (first + b) + (i & 1) < left)
                    more[b][i] += load_fresh(add + (i & 1) * p.add_stride + 8 * (i >> 1));
            }
            add += 8 * p.add_stride;
            asm volatile("" : "+l"(add)); /* or all addresses are computed in advance, into too many registers */
        }
#pragma unroll
        for (int b = 0; b < G; b++) {
            const float *scale = scales + 8 * (first + b) + 2 * t;
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (here[i >> 1] && 8 * (first + b) + (i & 1) < left)
                    out[(i & 1) * p.out_stride + 8 * (i >> 1)] = acc[4 * (first + b) + i] * scale[i & 1] + more[b][i];
            out += 8 * p.out_stride;
            asm volatile("" : "+l"(out));
        }
    }
}

#endif
