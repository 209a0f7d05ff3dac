/* Scales of the device layout (hk_unit.cuh). A weight is s * (code - ZERO) + m.
 *
 * Decoding takes scales by lane, for a step of 256 columns: lane 4 g + t gets those of rows g and g + 8 and of
 *   32 columns a scale: units 2 t and 2 t + 1, as value 2 (row / 8) + unit % 2;
 *   16 columns a scale: units t and 4 + t, as value 4 (row / 8) + 2 (unit / 4) + half of the unit.
 * These are the sums that the lane holds after the matrix instructions of matvec.cu. Records of 64 columns: lane t
 * reads record t of the step. The scale area of a record, by lane or by g: one half a unit    8 B per g: row g units 0,
 * 1, row g + 8 units 0, 1 d and m a unit     16 B per g: the same, d in the low half MXFP4              4 B per g: the
 * same, one exponent each Q4_K, Q5_K         4 B a lane: byte v = scale of value v | low two bits of its min << 6; 2 B
 * a lane: the mins' upper nibbles, in the order 0 2 1 3; then d | dmin << 16 of row g and of row g + 8, 8 B per g Q2_K
 * 8 B a lane: byte v = scale | min << 4; then 8 B per g as above Q6_K               8 B a lane: byte v = scale; then 4
 * B per g: d of row g, of row g + 8 Q3_K               4 B a lane: byte b = low nibbles of values b and 4 + b; 2 B a
 * lane: bits 4, 5 of both: byte b % 2, value b at bit 4 + 2 (b / 2), value 4 + b at bit 2 (b / 2); then 4 B per g
 *   IQ4_XS             2 B a lane: low nibbles in the order 0 2 1 3; 1 B a lane: upper two bits of value v at 2 v; 4 B
 * per g
 */
#ifndef HK_SCALES_CUH
#define HK_SCALES_CUH

#include "hk_unit.cuh"

template <class F> struct lane_scales {
    static constexpr int N = F::SUB == 32 ? 4 : 8;
    float s[N], m[N];
};

HK_FN float low_half(u32 w) { return half_to_float((u16)w); }
HK_FN float high_half(u32 w) { return half_to_float((u16)(w >> 16)); }
/* d * (byte i of w - ZERO), for d of half precision: 2^15 + byte is put together as a float, and what is too much comes
 * off in the multiplication, which is exact up to its one rounding. Two instructions, where a conversion takes three.
 */
template <int ZERO> HK_FN float scaled_byte(float d, u32 w, int i) {
    return fmaf(d, __uint_as_float(permute(w, 0x47000000u, 0x7404u | (u32)i << 4)), -d * (32768.0f + ZERO));
}
/* Four nibbles of 16 bits, in the order 0 2 1 3, as bytes. */
HK_FN u32 spread_nibbles(u32 n) {
    u32 twice = permute(n, 0, 0x1010u);
    return (twice & 0x0F0Fu) | (twice >> 4 & 0x0F0F0000u);
}

/* Byte i of w, as a number. */
template <bool SIGNED> HK_FN s32 byte_of(u32 w, int i) {
    return (s32)permute(w, 0, (SIGNED ? 0x1110u * (8 + i) : 0x4440u) + i);
}

/* a: the scale area of the lane's record. */
template <class F> HK_FN void halves_of(const u8 *a, int lane, lane_scales<F> &r) {
    u32x2 w = *(const u32x2 *)(a + 8 * (lane >> 2));
#pragma unroll
    for (int v = 0; v < 4; v++)
        r.s[v] = v & 1 ? high_half(w.v[v >> 1]) : low_half(w.v[v >> 1]);
}
template <class F> HK_FN void pairs_of(const u8 *a, int lane, lane_scales<F> &r) {
    u32x4 w = *(const u32x4 *)(a + 16 * (lane >> 2));
#pragma unroll
    for (int v = 0; v < 4; v++)
        r.s[v] = low_half(w.v[v]), r.m[v] = high_half(w.v[v]);
}
HK_FN void scales_of(const u8 *a, int lane, lane_scales<unit_q4_0> &r) { halves_of(a, lane, r); }
HK_FN void scales_of(const u8 *a, int lane, lane_scales<unit_q5_0> &r) { halves_of(a, lane, r); }
HK_FN void scales_of(const u8 *a, int lane, lane_scales<unit_q8_0> &r) { halves_of(a, lane, r); }
HK_FN void scales_of(const u8 *a, int lane, lane_scales<unit_iq4_nl> &r) { halves_of(a, lane, r); }
HK_FN void scales_of(const u8 *a, int lane, lane_scales<unit_q4_1> &r) { pairs_of(a, lane, r); }
HK_FN void scales_of(const u8 *a, int lane, lane_scales<unit_q5_1> &r) { pairs_of(a, lane, r); }
/* The table holds doubled values: 2^(e - 128); the two smallest are subnormal floats. */
HK_FN void scales_of(const u8 *a, int lane, lane_scales<unit_mxfp4> &r) {
    u32 w = *(const u32 *)(a + 4 * (lane >> 2));
#pragma unroll
    for (int v = 0; v < 4; v++) {
        u32 e = w >> 8 * v & 255;
        r.s[v] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
}
template <class F> HK_FN void six_bit_pairs_of(const u8 *a, int lane, lane_scales<F> &r) {
    u32 low = *(const u32 *)(a + 4 * lane), high = *(const u16 *)(a + 128 + 2 * lane);
    u32x2 d = *(const u32x2 *)(a + 192 + 8 * (lane >> 2));
    u32 s = low & 0x3F3F3F3Fu, m = spread_nibbles(high) << 2 | (low >> 6 & 0x03030303u);
#pragma unroll
    for (int v = 0; v < 4; v++) {
        r.s[v] = scaled_byte<0>(low_half(d.v[v >> 1]), s, v);
        r.m[v] = scaled_byte<0>(-high_half(d.v[v >> 1]), m, v);
    }
}
HK_FN void scales_of(const u8 *a, int lane, lane_scales<unit_q4_k> &r) { six_bit_pairs_of(a, lane, r); }
HK_FN void scales_of(const u8 *a, int lane, lane_scales<unit_q5_k> &r) { six_bit_pairs_of(a, lane, r); }
/* Formats with 16 columns a scale: those of row g + 8 i as bytes of s[i], signed unless there are mins, which are bytes
 * of m[i]; to be multiplied by d[i] and -dm[i]. */
template <class F> struct byte_scales {
    u32 s[2], m[2];
    float d[2], dm[2];
};
HK_FN void bytes_of(const u8 *a, int lane, byte_scales<unit_q2_k> &r) {
    u32x2 w = *(const u32x2 *)(a + 8 * lane), d = *(const u32x2 *)(a + 256 + 8 * (lane >> 2));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        r.s[i] = w.v[i] & 0x0F0F0F0Fu, r.m[i] = w.v[i] >> 4 & 0x0F0F0F0Fu;
        r.d[i] = low_half(d.v[i]), r.dm[i] = high_half(d.v[i]);
    }
}
HK_FN void bytes_of(const u8 *a, int lane, byte_scales<unit_q6_k> &r) {
    u32x2 w = *(const u32x2 *)(a + 8 * lane);
    u32 d = *(const u32 *)(a + 256 + 4 * (lane >> 2));
    r.s[0] = w.v[0], r.s[1] = w.v[1];
    r.d[0] = low_half(d), r.d[1] = high_half(d);
}
HK_FN void bytes_of(const u8 *a, int lane, byte_scales<unit_q3_k> &r) {
    u32 low = *(const u32 *)(a + 4 * lane), high = *(const u16 *)(a + 128 + 2 * lane);
    u32 d = *(const u32 *)(a + 192 + 4 * (lane >> 2)), both = permute(high, high >> 2, 0x5410u);
    r.s[0] = (low & 0x0F0F0F0Fu) | (both & 0x30303030u), r.s[1] = (low >> 4 & 0x0F0F0F0Fu) | (both << 4 & 0x30303030u);
#pragma unroll
    for (int i = 0; i < 2; i++) /* less 32: no byte carries into the next */
        r.s[i] = (r.s[i] + 0x60606060u) ^ 0x80808080u;
    r.d[0] = low_half(d), r.d[1] = high_half(d);
}
template <class F> HK_FN void scales_of(const u8 *a, int lane, lane_scales<F> &r) {
    static_assert(F::SUB == 16, "as bytes");
    byte_scales<F> b;
    bytes_of(a, lane, b);
#pragma unroll
    for (int v = 0; v < 8; v++) {
        if (F::HAS_MIN) {
            r.s[v] = scaled_byte<0>(b.d[v >> 2], b.s[v >> 2], v & 3);
            r.m[v] = scaled_byte<0>(-b.dm[v >> 2], b.m[v >> 2], v & 3);
        } else {
            r.s[v] = scaled_byte<128>(b.d[v >> 2], b.s[v >> 2] ^ 0x80808080u, v & 3);
        }
    }
}
HK_FN void scales_of(const u8 *a, int lane, lane_scales<unit_iq4_xs> &r) {
    u32 low = *(const u16 *)(a + 2 * lane), high = a[64 + lane], d = *(const u32 *)(a + 96 + 4 * (lane >> 2));
    high = (high << 4 & 0x30u) | (high << 10 & 0x3000u) | (high << 16 & 0x300000u) | (high << 22 & 0x30000000u);
    u32 w = spread_nibbles(low) | high;
#pragma unroll
    for (int v = 0; v < 4; v++)
        r.s[v] = scaled_byte<32>(v < 2 ? low_half(d) : high_half(d), w, v);
}

/* Scale and min of one row (0 .. 15) of a tile, for half `half` of unit u of a step of 256 columns. */
template <class F> HK_FN void scale_of(const u8 *record, int row, int u, int half, float &s, float &m) {
    lane_scales<F> r;
    int lane = 4 * (row & 7) + (F::SUB == 32 ? u >> 1 : u & 3);
    int v = F::SUB == 32 ? 2 * (row >> 3) + (u & 1) : 4 * (row >> 3) + 2 * (u >> 2) + half;
    scales_of(record + F::SCALES_AT, lane, r);
    s = 0, m = 0;
#pragma unroll
    for (int i = 0; i < lane_scales<F>::N; i++)
        if (i == v) {
            s = r.s[i];
            if (F::HAS_MIN)
                m = r.m[i];
        }
}

#endif
