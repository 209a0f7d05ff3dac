/* The device layout of weights, and how each format unpacks. Shared loops multiply; a format only says how it is
 * loaded.
 *
 * A unit is 32 consecutive weights of one row; the units of a matrix are numbered row by row, i = row * (cols / 32) +
 * u. A matrix is up to four planes, each an array over units (or over blocks of 256 weights, b = i / 8), so that
 * neighbouring lanes, which take neighbouring units, read neighbouring words:
 *
 *            q (codes)             h (more code bits)   s (scales)             d
 *   Q4_0     16 B                                                              d f16 per unit
 *   Q4_1     16 B                                                              d, m f16 per unit
 *   Q5_0     16 B                  4 B                                         d f16 per unit
 *   Q5_1     16 B                  4 B                                         d, m f16 per unit
 *   Q8_0     16 B weights 0..15    16 B 16..31                                 d f16 per unit
 *   IQ4_NL   16 B nibble order                                                 d f16 per unit
 *   MXFP4    16 B nibble order                                                 e u8 per unit
 *   Q2_K     8 B                                        2 B: scale | min << 4  d, dmin f16 per block
 *   Q3_K     8 B                   4 B                  12 B per block         d f16 per block
 *   Q4_K     16 B                                       16 B per block
 *   Q5_K     16 B                  4 B                  16 B per block
 *   Q6_K     16 B                  8 B                  2 B: two int8          d f16 per block
 *   IQ4_XS   16 B nibble order                          8 B per block
 *   F32, F16, BF16: the rows as they are, in q.
 *
 * Planes follow each other in that order, each padded to 256 bytes; nothing else is added, so a matrix has the size of
 * its rows in the file plus at most 4 * 255 bytes.
 *
 * Codes. Group g is the weights 4g .. 4g + 3 as four bytes, byte i being weight 4g + i.
 *   4 bits: byte i of word j holds weight 8j + i in its low and weight 8j + 4 + i in its high nibble: two masks make
 * two groups. "Nibble order", for codebooks: nibble i of word j is weight 8j + i, as the byte permutation wants it. 2
 * bits: byte i of word g / 4, bits 2 (g % 4): weight 4g + i.     1 bit: byte i, bit g: weight 4g + i. Scales. Q4_K,
 * Q5_K: d, dmin, then 12 bits per unit, scale | min << 6. Q3_K: byte u holds the low nibbles of the unit's two scales,
 * byte 8 + u / 2 the upper two bits of both, in nibble u % 2. IQ4_XS: d, scales_h, scales_l as in the file.
 *
 * Q_BYTES ..: bytes of each plane per 8 units. The weight is s * (code - ZERO) + m, with one (s, m) per unit or one for
 * each half of it.
 */
#ifndef HK_UNIT_CUH
#define HK_UNIT_CUH

#include "hk_args.h"
#include "hk_device.cuh"

/* (s, m) of both halves of a unit. */
struct unit_scale {
    float s0, m0, s1, m1;
};

HK_FN unit_scale one_scale(float s, float m) { return {s, m, s, m}; }
HK_FN u32 nibbles(u32 word, int odd) { return (odd ? word >> 4 : word) & 0x0F0F0F0Fu; }
/* Two-bit plane of two words and one-bit plane, group g, shifted to bit `to`. */
HK_FN u32 two_bits(const u32x2 &w, int g) { return w.v[g >> 2] >> 2 * (g & 3) & 0x03030303u; }
HK_FN u32 one_bit(u32 w, int g) { return w >> g & 0x01010101u; }

/* Four entries of a table of 16 int8, t[0..3], by the four nibbles of the low half of `n`. */
HK_FN u32 look_up(u32 t0, u32 t1, u32 t2, u32 t3, u32 n) {
    u32 low = n & 0x7777u;
    return permute(permute(t0, t1, low), permute(t2, t3, low), (n >> 1 & 0x4444u) | 0x3210u);
}
HK_FN u32 iq4_codes(const u32x4 &q, int g) {
    return look_up(0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u, q.v[g >> 1] >> 16 * (g & 1));
}
HK_FN u32 fp4_codes(const u32x4 &q, int g) {
    return look_up(0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu, q.v[g >> 1] >> 16 * (g & 1));
}
HK_FN float low_half(u32 w) { return half_to_float((u16)w); }
HK_FN float high_half(u32 w) { return half_to_float((u16)(w >> 16)); }

/* Bit 12 j of 96. */
HK_FN u32 twelve_bits(u32 w0, u32 w1, u32 w2, int j) {
    u32 lo = j < 3 ? w0 : j < 6 ? w1 : w2, hi = j < 3 ? w1 : w2;
    return __funnelshift_r(lo, hi, 12 * j & 31) & 0xFFFu;
}

#define HK_UNIT_HEAD(zero, has_min, two_scales, is_signed)                                                             \
    static constexpr int ZERO = zero;                                                                                  \
    static constexpr bool HAS_MIN = has_min, TWO_SCALES = two_scales, SIGNED = is_signed;

struct unit_q4_0 {
    HK_UNIT_HEAD(8, false, false, false)
    static constexpr int Q_BYTES = 128, H_BYTES = 0, S_BYTES = 0, D_BYTES = 16;
    u32x4 q;
    u16 d;
    HK_FN void load(unit_q4_0 &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.d = load_weights2(m.d + 2 * i);
    }
    HK_FN u32 group(const unit_q4_0 &r, int g) { return nibbles(r.q.v[g >> 1], g & 1); }
    HK_FN unit_scale scale(const unit_q4_0 &r, u32) { return one_scale(half_to_float(r.d), 0); }
};

struct unit_q4_1 {
    HK_UNIT_HEAD(0, true, false, false)
    static constexpr int Q_BYTES = 128, H_BYTES = 0, S_BYTES = 0, D_BYTES = 32;
    u32x4 q;
    u32 d;
    HK_FN void load(unit_q4_1 &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.d = load_weights4(m.d + 4 * i);
    }
    HK_FN u32 group(const unit_q4_1 &r, int g) { return nibbles(r.q.v[g >> 1], g & 1); }
    HK_FN unit_scale scale(const unit_q4_1 &r, u32) { return one_scale(low_half(r.d), high_half(r.d)); }
};

struct unit_q5_0 {
    HK_UNIT_HEAD(16, false, false, false)
    static constexpr int Q_BYTES = 128, H_BYTES = 32, S_BYTES = 0, D_BYTES = 16;
    u32x4 q;
    u32 h;
    u16 d;
    HK_FN void load(unit_q5_0 &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.h = load_weights4(m.h + 4 * i);
        r.d = load_weights2(m.d + 2 * i);
    }
    HK_FN u32 group(const unit_q5_0 &r, int g) { return nibbles(r.q.v[g >> 1], g & 1) | one_bit(r.h, g) << 4; }
    HK_FN unit_scale scale(const unit_q5_0 &r, u32) { return one_scale(half_to_float(r.d), 0); }
};

struct unit_q5_1 {
    HK_UNIT_HEAD(0, true, false, false)
    static constexpr int Q_BYTES = 128, H_BYTES = 32, S_BYTES = 0, D_BYTES = 32;
    u32x4 q;
    u32 h, d;
    HK_FN void load(unit_q5_1 &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.h = load_weights4(m.h + 4 * i);
        r.d = load_weights4(m.d + 4 * i);
    }
    HK_FN u32 group(const unit_q5_1 &r, int g) { return nibbles(r.q.v[g >> 1], g & 1) | one_bit(r.h, g) << 4; }
    HK_FN unit_scale scale(const unit_q5_1 &r, u32) { return one_scale(low_half(r.d), high_half(r.d)); }
};

struct unit_q8_0 {
    HK_UNIT_HEAD(0, false, false, true)
    static constexpr int Q_BYTES = 128, H_BYTES = 128, S_BYTES = 0, D_BYTES = 16;
    u32x4 q, h;
    u16 d;
    HK_FN void load(unit_q8_0 &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.h = load_weights16(m.h + 16 * i);
        r.d = load_weights2(m.d + 2 * i);
    }
    HK_FN u32 group(const unit_q8_0 &r, int g) { return g < 4 ? r.q.v[g & 3] : r.h.v[g & 3]; }
    HK_FN unit_scale scale(const unit_q8_0 &r, u32) { return one_scale(half_to_float(r.d), 0); }
};

struct unit_iq4_nl {
    HK_UNIT_HEAD(0, false, false, true)
    static constexpr int Q_BYTES = 128, H_BYTES = 0, S_BYTES = 0, D_BYTES = 16;
    u32x4 q;
    u16 d;
    HK_FN void load(unit_iq4_nl &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.d = load_weights2(m.d + 2 * i);
    }
    HK_FN u32 group(const unit_iq4_nl &r, int g) { return iq4_codes(r.q, g); }
    HK_FN unit_scale scale(const unit_iq4_nl &r, u32) { return one_scale(half_to_float(r.d), 0); }
};

struct unit_mxfp4 {
    HK_UNIT_HEAD(0, false, false, true)
    static constexpr int Q_BYTES = 128, H_BYTES = 0, S_BYTES = 0, D_BYTES = 8;
    u32x4 q;
    u32 e;
    HK_FN void load(unit_mxfp4 &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.e = load_weights1(m.d + i);
    }
    HK_FN u32 group(const unit_mxfp4 &r, int g) { return fp4_codes(r.q, g); }
    /* The table holds doubled values: 2^(e - 128); the two smallest are subnormal floats. */
    HK_FN unit_scale scale(const unit_mxfp4 &r, u32) {
        return one_scale(__uint_as_float(r.e < 2 ? 0x00200000u << r.e : (r.e - 1) << 23), 0);
    }
};

struct unit_q2_k {
    HK_UNIT_HEAD(0, true, true, false)
    static constexpr int Q_BYTES = 64, H_BYTES = 0, S_BYTES = 16, D_BYTES = 4;
    u32x2 q;
    u16 s;
    u32 d;
    HK_FN void load(unit_q2_k &r, const hk_matrix &m, u64 i) {
        r.q = load_weights8(m.q + 8 * i);
        r.s = load_weights2(m.s + 2 * i);
        r.d = load_weights4(m.d + 4 * (i >> 3));
    }
    HK_FN u32 group(const unit_q2_k &r, int g) { return two_bits(r.q, g); }
    HK_FN unit_scale scale(const unit_q2_k &r, u32) {
        float d = low_half(r.d), m = -high_half(r.d);
        u32 s = r.s;
        return {d * (s & 15), m * (s >> 4 & 15), d * (s >> 8 & 15), m * (s >> 12)};
    }
};

struct unit_q3_k {
    HK_UNIT_HEAD(4, false, true, false)
    static constexpr int Q_BYTES = 64, H_BYTES = 32, S_BYTES = 12, D_BYTES = 2;
    u32x2 q;
    u32 h, lo, hi;
    u16 d;
    HK_FN void load(unit_q3_k &r, const hk_matrix &m, u64 i) {
        r.q = load_weights8(m.q + 8 * i);
        r.h = load_weights4(m.h + 4 * i);
        const u8 *s = m.s + 12 * (i >> 3);
        r.lo = load_weights1(s + (i & 7));
        r.hi = load_weights1(s + 8 + ((i & 7) >> 1));
        r.d = load_weights2(m.d + 2 * (i >> 3));
    }
    HK_FN u32 group(const unit_q3_k &r, int g) { return two_bits(r.q, g) | one_bit(r.h, g) << 2; }
    HK_FN unit_scale scale(const unit_q3_k &r, u32 i) {
        float d = half_to_float(r.d);
        u32 hi = r.hi >> 4 * (i & 1);
        s32 s0 = (s32)((r.lo & 15) | (hi & 3) << 4) - 32, s1 = (s32)(r.lo >> 4 | (hi >> 2 & 3) << 4) - 32;
        return {d * s0, 0, d * s1, 0};
    }
};

HK_FN unit_scale scale_q4_k(const u32x4 &s, u32 i) {
    u32 b = twelve_bits(s.v[1], s.v[2], s.v[3], (int)(i & 7));
    return one_scale(low_half(s.v[0]) * (b & 63), -high_half(s.v[0]) * (b >> 6));
}

struct unit_q4_k {
    HK_UNIT_HEAD(0, true, false, false)
    static constexpr int Q_BYTES = 128, H_BYTES = 0, S_BYTES = 16, D_BYTES = 0;
    u32x4 q, s;
    HK_FN void load(unit_q4_k &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.s = load_shared_by_lanes16(m.s + 16 * (i >> 3));
    }
    HK_FN u32 group(const unit_q4_k &r, int g) { return nibbles(r.q.v[g >> 1], g & 1); }
    HK_FN unit_scale scale(const unit_q4_k &r, u32 i) { return scale_q4_k(r.s, i); }
};

struct unit_q5_k {
    HK_UNIT_HEAD(0, true, false, false)
    static constexpr int Q_BYTES = 128, H_BYTES = 32, S_BYTES = 16, D_BYTES = 0;
    u32x4 q, s;
    u32 h;
    HK_FN void load(unit_q5_k &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.h = load_weights4(m.h + 4 * i);
        r.s = load_shared_by_lanes16(m.s + 16 * (i >> 3));
    }
    HK_FN u32 group(const unit_q5_k &r, int g) { return nibbles(r.q.v[g >> 1], g & 1) | one_bit(r.h, g) << 4; }
    HK_FN unit_scale scale(const unit_q5_k &r, u32 i) { return scale_q4_k(r.s, i); }
};

struct unit_q6_k {
    HK_UNIT_HEAD(32, false, true, false)
    static constexpr int Q_BYTES = 128, H_BYTES = 64, S_BYTES = 16, D_BYTES = 2;
    u32x4 q;
    u32x2 h;
    u16 s, d;
    HK_FN void load(unit_q6_k &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.h = load_weights8(m.h + 8 * i);
        r.s = load_weights2(m.s + 2 * i);
        r.d = load_weights2(m.d + 2 * (i >> 3));
    }
    HK_FN u32 group(const unit_q6_k &r, int g) { return nibbles(r.q.v[g >> 1], g & 1) | two_bits(r.h, g) << 4; }
    HK_FN unit_scale scale(const unit_q6_k &r, u32) {
        float d = half_to_float(r.d);
        return {d * (s8)(r.s & 255), 0, d * (s8)(r.s >> 8), 0};
    }
};

struct unit_iq4_xs {
    HK_UNIT_HEAD(0, false, false, true)
    static constexpr int Q_BYTES = 128, H_BYTES = 0, S_BYTES = 8, D_BYTES = 0;
    u32x4 q;
    u32x2 s;
    HK_FN void load(unit_iq4_xs &r, const hk_matrix &m, u64 i) {
        r.q = load_weights16(m.q + 16 * i);
        r.s = load_weights8(m.s + 8 * (i >> 3));
    }
    HK_FN u32 group(const unit_iq4_xs &r, int g) { return iq4_codes(r.q, g); }
    HK_FN unit_scale scale(const unit_iq4_xs &r, u32 i) {
        int j = (int)(i & 7);
        s32 s = (s32)((r.s.v[1] >> 4 * j & 15) | (r.s.v[0] >> (16 + 2 * j) & 3) << 4) - 32;
        return one_scale(low_half(r.s.v[0]) * s, 0);
    }
};

/* The four weights of a group as floats. */
template <class F> HK_FN void group_values(const F &r, const unit_scale &c, int g, float (&w)[4]) {
    u32 codes = F::group(r, g);
    float s = g < 4 ? c.s0 : c.s1, m = g < 4 ? c.m0 : c.m1;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s32 v = F::SIGNED ? (s32)(s8)(codes >> 8 * i) : (s32)(codes >> 8 * i & 255) - F::ZERO;
        w[i] = s * v + m;
    }
}

/* Float formats: a unit is 32 values in place. */
struct unit_f32 {
    const float *p;
    HK_FN void load(unit_f32 &r, const hk_matrix &m, u64 i) { r.p = (const float *)m.q + 32 * i; }
    HK_FN unit_scale scale(const unit_f32 &, u32) { return one_scale(1, 0); }
};
HK_FN void group_values(const unit_f32 &r, const unit_scale &, int g, float (&w)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = r.p[4 * g + i];
}

struct unit_f16 {
    u32x4 q[4];
    HK_FN void load(unit_f16 &r, const hk_matrix &m, u64 i) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            r.q[j] = load_shared_by_lanes16(m.q + 64 * i + 16 * j);
    }
    HK_FN unit_scale scale(const unit_f16 &, u32) { return one_scale(1, 0); }
    HK_FN u32 pair(const unit_f16 &r, int p) { return r.q[p >> 2].v[p & 3]; }
};
HK_FN void group_values(const unit_f16 &r, const unit_scale &, int g, float (&w)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = half_to_float((u16)(unit_f16::pair(r, 2 * g + i / 2) >> 16 * (i & 1)));
}

struct unit_bf16 : unit_f16 {
    HK_FN void load(unit_bf16 &r, const hk_matrix &m, u64 i) { unit_f16::load(r, m, i); }
    HK_FN unit_scale scale(const unit_bf16 &, u32) { return one_scale(1, 0); }
};
HK_FN void group_values(const unit_bf16 &r, const unit_scale &, int g, float (&w)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = bf16_to_float((u16)(unit_f16::pair(r, 2 * g + i / 2) >> 16 * (i & 1)));
}

#endif
