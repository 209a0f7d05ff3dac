/* exp, tanh and what is made of them, on 16 lanes. Include after the instruction set's vec_float.h.
 *
 * The polynomials are minimax fits (relative error 3e-9, below half a unit in the last place of a float), so what
 * remains is rounding: exp about 1 ulp, tanh about 2.
 */
#ifndef HK_FLOAT_MATH_H
#define HK_FLOAT_MATH_H

/* e^x: x = n ln2 + r, |r| <= ln2 / 2, e^r = 1 + r + r^2 Q(r). ln2 is taken in two parts, the first with 15 bits, so
 * that n * ln2_hi is exact. Below -87.33 (where floats turn subnormal, and slow) the result is 0, above 88.37 infinity.
 */
HK_INLINE v16f v_exp(v16f x) {
    const v16f lo = v_set1(-87.33f), hi = v_set1(88.37f);
    v16f xc = v_min(hi, v_max(lo, x));
    v16f n = v_round(v_mul(xc, v_set1(0x1.715476p+0f)));
    v16f r = v_fma(n, v_set1(-0x1.62e4p-1f), xc);
    r = v_fma(n, v_set1(-0x1.7f7d1cp-20f), r);
    v16f q = v_set1(0x1.6a2434p-10f);
    q = v_fma(q, r, v_set1(0x1.1239e2p-7f));
    q = v_fma(q, r, v_set1(0x1.5558f2p-5f));
    q = v_fma(q, r, v_set1(0x1.555492p-3f));
    q = v_fma(q, r, v_set1(0x1.fffffcp-2f));
    v16f er = v_fma(v_mul(r, r), q, r);
    v16f p = v_pow2(n);
    v16f y = v_fma(er, p, p);
    y = v_select(v_lt(x, lo), v_zero(), y);
    return v_select(v_lt(hi, x), v_set1(INFINITY), y);
}

/* tanh: odd polynomial x + x^3 P(x^2) below 0.6, where 1 - 2 / (e^2|x| + 1) would cancel; that form above. */
HK_INLINE v16f v_tanh(v16f x) {
    v16f a = v_abs(x), z = v_mul(x, x);
    v16f p = v_set1(-0.005905867088586092f);
    p = v_fma(p, z, v_set1(0.02080538310110569f));
    p = v_fma(p, z, v_set1(-0.053786683827638626f));
    p = v_fma(p, z, v_set1(0.13331958651542664f));
    p = v_fma(p, z, v_set1(-0.33333298563957214f));
    v16f small = v_fma(v_mul(x, z), p, x);
    v16f e = v_exp(v_add(a, a));
    v16f big = v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(e, v_set1(1.0f))));
    return v_select(v_lt(a, v_set1(0.6f)), small, v_copysign(big, x));
}

/* x / (1 + e^-t), the common form of silu (t = x) and tanh-gelu (t = 2u): it keeps relative precision for negative x,
 * where 0.5 x (1 + tanh u) cancels. x is cut at -200, where the result is -0 anyway, so that -inf / inf cannot occur.
 */
HK_INLINE v16f v_gate(v16f x, v16f t) {
    v16f e = v_exp(v_sub(v_zero(), t));
    return v_div(v_max(v_set1(-200.0f), x), v_add(v_set1(1.0f), e));
}

HK_INLINE v16f v_silu(v16f x) { return v_gate(x, x); }

/* 2u = 2 sqrt(2/pi) (x + 0.044715 x^3) = x (c1 + c2 x^2). */
HK_INLINE v16f v_gelu_tanh(v16f x) {
    v16f s = v_fma(v_mul(x, x), v_set1(0.07135481627f), v_set1(1.595769122f));
    return v_gate(x, v_mul(x, s));
}

/* Up to 16 floats at the end of an array, the rest `fill`. */
HK_INLINE v16f v_load_tail(const float *p, int64_t n, float fill) {
    float t[16];
    for (int64_t i = 0; i < 16; i++)
        t[i] = i < n ? p[i] : fill;
    return v_load(t);
}

HK_INLINE void v_store_tail(float *p, int64_t n, v16f a) {
    float t[16];
    v_store(t, a);
    for (int64_t i = 0; i < n; i++)
        p[i] = t[i];
}

/* y[i] = expr of vx = a[i] and vz = b[i] over n elements, whole vectors first, then the tail. */
#define HK_MAP(n, a, b, y, expr)                                                                                       \
    do {                                                                                                               \
        int64_t at_ = 0;                                                                                               \
        for (; at_ + 16 <= (n); at_ += 16) {                                                                           \
            v16f vx = v_load((a) + at_), vz = v_load((b) + at_);                                                       \
            (void)vz;                                                                                                  \
            v_store((y) + at_, (expr));                                                                                \
        }                                                                                                              \
        if (at_ < (n)) {                                                                                               \
            v16f vx = v_load_tail((a) + at_, (n)-at_, 0.0f), vz = v_load_tail((b) + at_, (n)-at_, 0.0f);               \
            (void)vz;                                                                                                  \
            v_store_tail((y) + at_, (n)-at_, (expr));                                                                  \
        }                                                                                                              \
    } while (0)

#endif
