/* Sixteen float lanes in plain C: the portable form of the interface that the loops in csrc/cpu/loops/float_*.h use.
 *
 * Every instruction set offers the same 16 lanes (two ymm, one zmm, an array), so partial sums fall into the same lanes
 * and results agree to the bit. Semantics that matter:
 *   v_max(a, b) is a > b ? a : b and v_min(a, b) is a < b ? a : b, so a NaN in b comes through and one in a does not
 *   v_hsum adds lane i to lane i + 8, then i + 4, i + 2, i + 1
 *   v_round and v_store_i8 round half to even, v_store_f16 too
 */
#ifndef HK_VEC_FLOAT_H
#define HK_VEC_FLOAT_H

#include <math.h>
#include <stdint.h>

#include "../../formats/hk_fma.h"
#include "../../formats/hk_half.h"

#define HK_INLINE static inline __attribute__((always_inline, unused))
#define V_EACH(r, expr)                                                                                                \
    for (int i = 0; i < 16; i++)                                                                                       \
    (r)[i] = (expr)
#define V_OP(expr)                                                                                                     \
    v16f r;                                                                                                            \
    V_EACH(r.f, expr);                                                                                                 \
    return r

typedef struct v16f {
    float f[16];
} v16f;
typedef struct v16m {
    int32_t m[16];
} v16m;
typedef struct v16d {
    double d[16];
} v16d;

HK_INLINE v16f v_set1(float x) { V_OP(x); }
HK_INLINE v16f v_zero(void) { return v_set1(0.0f); }
HK_INLINE v16f v_load(const float *p) { V_OP(p[i]); }
HK_INLINE v16f v_load_f16(const uint16_t *p) { V_OP(hk_half_to_float(p[i])); }
HK_INLINE v16f v_load_bf16(const uint16_t *p) { V_OP(hk_bf16_to_float(p[i])); }
HK_INLINE v16f v_load_i8(const int8_t *p) { V_OP((float)p[i]); }
/* The low or high nibbles of 16 bytes, less 8. */
HK_INLINE v16f v_load_nibbles(const uint8_t *p, int high) { V_OP((float)((p[i] >> (high ? 4 : 0) & 15) - 8)); }
/* Both nibbles of 8 bytes, low before high, less 8. */
HK_INLINE v16f v_load_nibble_pairs(const uint8_t *p) { V_OP((float)((p[i / 2] >> 4 * (i & 1) & 15) - 8)); }
HK_INLINE void v_store(float *p, v16f a) { V_EACH(p, a.f[i]); }
HK_INLINE void v_store_f16(uint16_t *p, v16f a) { V_EACH(p, hk_float_to_half(a.f[i])); }

HK_INLINE v16f v_add(v16f a, v16f b) { V_OP(a.f[i] + b.f[i]); }
HK_INLINE v16f v_sub(v16f a, v16f b) { V_OP(a.f[i] - b.f[i]); }
HK_INLINE v16f v_mul(v16f a, v16f b) { V_OP(a.f[i] * b.f[i]); }
HK_INLINE v16f v_div(v16f a, v16f b) { V_OP(a.f[i] / b.f[i]); }
HK_INLINE v16f v_fma(v16f a, v16f b, v16f c) { V_OP(hk_fma(a.f[i], b.f[i], c.f[i])); }
HK_INLINE v16f v_max(v16f a, v16f b) { V_OP(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
HK_INLINE v16f v_min(v16f a, v16f b) { V_OP(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
HK_INLINE v16f v_abs(v16f a) { V_OP(fabsf(a.f[i])); }
HK_INLINE v16f v_copysign(v16f a, v16f s) { V_OP(copysignf(a.f[i], s.f[i])); }
/* Rounds |a| < 2^22: adding 1.5 * 2^23 leaves no place for a fraction. */
HK_INLINE v16f v_round(v16f a) { V_OP((a.f[i] + 0x1.8p23f) - 0x1.8p23f); }
/* 2^n for whole n in [-126, 127]; anything for a NaN. */
HK_INLINE v16f v_pow2(v16f n) { V_OP(hk_bits_float((uint32_t)((n.f[i] == n.f[i] ? (int32_t)n.f[i] : 0) + 127) << 23)); }

HK_INLINE v16m v_lt(v16f a, v16f b) {
    v16m r;
    V_EACH(r.m, a.f[i] < b.f[i]);
    return r;
}
HK_INLINE v16m v_isnan(v16f a) {
    v16m r;
    V_EACH(r.m, a.f[i] != a.f[i]);
    return r;
}
HK_INLINE v16m m_none(void) { return (v16m){{0}}; }
HK_INLINE v16m m_or(v16m a, v16m b) {
    v16m r;
    V_EACH(r.m, a.m[i] | b.m[i]);
    return r;
}
/* Lanes lo <= i < hi. */
HK_INLINE v16m m_range(int64_t lo, int64_t hi) {
    v16m r;
    V_EACH(r.m, i >= lo && i < hi);
    return r;
}
/* Bit i is lane i. */
HK_INLINE uint32_t m_bits(v16m a) {
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++)
        bits |= (uint32_t)(a.m[i] != 0) << i;
    return bits;
}
HK_INLINE v16f v_select(v16m m, v16f yes, v16f no) { V_OP(m.m[i] ? yes.f[i] : no.f[i]); }

HK_INLINE float v_hsum(v16f a) {
    for (int w = 8; w; w >>= 1)
        for (int i = 0; i < w; i++)
            a.f[i] = a.f[i] + a.f[i + w];
    return a.f[0];
}
HK_INLINE float v_hmax(v16f a) {
    for (int w = 8; w; w >>= 1)
        for (int i = 0; i < w; i++)
            a.f[i] = a.f[i] > a.f[i + w] ? a.f[i] : a.f[i + w];
    return a.f[0];
}

HK_INLINE v16d d_zero(void) { return (v16d){{0}}; }
/* s + x * x: the product of two floats is exact in a double, so fusing changes nothing. */
HK_INLINE v16d d_add_square(v16d s, v16f x) {
    v16d r;
    V_EACH(r.d, s.d[i] + (double)x.f[i] * (double)x.f[i]);
    return r;
}
HK_INLINE double d_hsum(v16d a) {
    for (int w = 8; w; w >>= 1)
        for (int i = 0; i < w; i++)
            a.d[i] = a.d[i] + a.d[i + w];
    return a.d[0];
}

/* 16 codes for |a| <= 127; returns their sum. */
HK_INLINE int32_t v_store_i8(int8_t *p, v16f a) {
    int32_t sum = 0;
    v16f r = v_round(a);
    for (int i = 0; i < 16; i++) {
        p[i] = (int8_t)r.f[i];
        sum += p[i];
    }
    return sum;
}

/* Eight pairs (a, b) turned by eight (cos, sin): (a cos - b sin, b cos + a sin), no fusing. */
HK_INLINE v16f v_rotate_pairs(v16f x, v16f cs) {
    v16f r;
    for (int i = 0; i < 16; i += 2) {
        r.f[i] = x.f[i] * cs.f[i] - x.f[i + 1] * cs.f[i + 1];
        r.f[i + 1] = x.f[i + 1] * cs.f[i] + x.f[i] * cs.f[i + 1];
    }
    return r;
}
/* 32 floats to their even and odd elements. */
HK_INLINE void v_load_pairs(const float *p, v16f *even, v16f *odd) {
    for (int i = 0; i < 16; i++) {
        even->f[i] = p[2 * i];
        odd->f[i] = p[2 * i + 1];
    }
}

/* Tile of the outer-product kernel: at most HK_TILE_ROWS rows (6 is the most it knows), HK_TILE_VECS(rows) vectors
 * wide; and how many steps of k a block of 16-row panels takes at a time, so that it stays in the first-level cache.
 * One row here: a compiler keeps 16 sums in registers, but 4 x 16 on the stack, five times slower. */
#define HK_TILE_ROWS       1
#define HK_TILE_VECS(rows) 1
#define HK_TILE_K          256

#endif
