/* Operations on one row of floats: norms, activations, rotary embedding, the largest elements, quantisation. */
#ifndef HK_FLOAT_ROWS_H
#define HK_FLOAT_ROWS_H

/* The squares are summed in 16 double lanes: exact products, so every instruction set gives the same bits, and 1e30
 * does not overflow. */
static void hk_rmsnorm(const float *x, const float *w, int64_t n, float eps, float *y) {
    v16d sum = d_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        sum = d_add_square(sum, v_load(x + i));
    if (i < n)
        sum = d_add_square(sum, v_load_tail(x + i, n - i, 0.0f));
    v16f s = v_set1((float)(1.0 / sqrt(d_hsum(sum) / (double)n + (double)eps)));
    if (w)
        HK_MAP(n, x, w, y, v_mul(v_mul(vx, s), vz));
    else
        HK_MAP(n, x, x, y, v_mul(vx, s));
}

static void hk_add(float *y, const float *a, const float *b, int64_t n) { HK_MAP(n, a, b, y, v_add(vx, vz)); }

static void hk_scale(float *y, const float *a, float s, int64_t n) {
    v16f f = v_set1(s);
    HK_MAP(n, a, a, y, v_mul(vx, f));
}

static void hk_glu(float *y, const float *gate, const float *up, int64_t n, int act) {
    if (act == HK_ACT_SILU)
        HK_MAP(n, gate, up, y, v_mul(v_silu(vx), vz));
    else
        HK_MAP(n, gate, up, y, v_mul(v_gelu_tanh(vx), vz));
}

static void hk_softcap(float *y, const float *src, float cap, int64_t n) {
    v16f c = v_set1(cap);
    HK_MAP(n, src, src, y, v_mul(c, v_tanh(v_div(vx, c))));
}

/* Products and sums round apart, on every set: the same bits everywhere. */
static void hk_rope(float *x, int64_t rot, const float *cs, int layout) {
    int64_t half = rot / 2, i = 0;
    if (layout == HK_ROPE_NORM) {
        for (; i + 8 <= half; i += 8)
            v_store(x + 2 * i, v_rotate_pairs(v_load(x + 2 * i), v_load(cs + 2 * i)));
    } else {
        for (; i + 16 <= half; i += 16) {
            v16f c, s, a = v_load(x + i), b = v_load(x + half + i);
            v_load_pairs(cs + 2 * i, &c, &s);
            v_store(x + i, v_sub(v_mul(a, c), v_mul(b, s)));
            v_store(x + half + i, v_add(v_mul(b, c), v_mul(a, s)));
        }
    }
    for (; i < half; i++) {
        float *pa = layout == HK_ROPE_NORM ? x + 2 * i : x + i;
        float *pb = layout == HK_ROPE_NORM ? pa + 1 : pa + half;
        float a = *pa, b = *pb, c = cs[2 * i], s = cs[2 * i + 1];
        *pa = a * c - b * s;
        *pb = b * c + a * s;
    }
}

/* Largest of n and, in *nan, which lanes met a NaN (a NaN itself does not win). Four accumulators hide the latency;
 * neither the order nor the instruction set matters to a maximum. */
HK_INLINE float hk_row_max(const float *x, int64_t n, v16m *nan) {
    v16f m0 = v_set1(-INFINITY), m1 = m0, m2 = m0, m3 = m0;
    v16m bad = *nan;
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        v16f a = v_load(x + i), b = v_load(x + i + 16), c = v_load(x + i + 32), d = v_load(x + i + 48);
        bad = m_or(m_or(bad, m_or(v_isnan(a), v_isnan(b))), m_or(v_isnan(c), v_isnan(d)));
        m0 = v_max(a, m0), m1 = v_max(b, m1), m2 = v_max(c, m2), m3 = v_max(d, m3);
    }
    for (; i < n; i += 16) {
        v16f a = n - i < 16 ? v_load_tail(x + i, n - i, -INFINITY) : v_load(x + i);
        bad = m_or(bad, v_isnan(a));
        m0 = v_max(a, m0);
    }
    *nan = bad;
    return v_hmax(v_max(v_max(m0, m1), v_max(m2, m3)));
}

static float hk_max(const float *x, int64_t n) {
    v16m nan = m_none();
    return hk_row_max(x, n, &nan);
}

/* log(sum exp(x - max)) + max. A block of 1024 terms is summed in float lanes, blocks in double: relative error below
 * 1e-6 of the sum at any length. */
static double hk_log_sum_exp(const float *x, int64_t n, float max) {
    if (max == INFINITY)
        return INFINITY;
    v16f vmax = v_set1(max);
    double sum = 0;
    for (int64_t at = 0; at < n; at += 1024) {
        int64_t end = n - at < 1024 ? n : at + 1024, i = at;
        v16f s = v_zero();
        for (; i + 16 <= end; i += 16)
            s = v_add(s, v_exp(v_sub(v_load(x + i), vmax)));
        if (i < end)
            s = v_add(s, v_exp(v_sub(v_load_tail(x + i, end - i, -INFINITY), vmax)));
        sum += (double)v_hsum(s);
    }
    return (double)max + log(sum);
}

static int64_t hk_argmax(const float *x, int64_t n, float *value, double *lse, int *bad) {
    v16m nan = m_none();
    float best = -INFINITY;
    int64_t best_at = 0;
    for (int64_t at = 0; at < n; at += 1024) {
        float m = hk_row_max(x + at, n - at < 1024 ? n - at : 1024, &nan);
        if (m > best)
            best = m, best_at = at;
    }
    *bad = m_bits(nan) != 0 || best == -INFINITY;
    while (!*bad && x[best_at] != best)
        best_at++;
    *value = best;
    if (lse)
        *lse = *bad ? NAN : hk_log_sum_exp(x, n, best);
    return best_at;
}

/* The largest magnitude of two vectors; NaN where one of their values is none or infinite. */
HK_INLINE float hk_peak_of(v16f a, v16f b) {
    float amax = v_hmax(v_max(v_abs(a), v_abs(b)));
    return m_bits(m_or(v_isnan(a), v_isnan(b))) != 0 || amax == INFINITY ? NAN : amax;
}

HK_INLINE float hk_zero_block(float peak, int8_t *codes, int16_t *sums) {
    memset(codes, 0, 32);
    sums[0] = sums[1] = 0;
    return peak == peak ? 0.0f : NAN;
}

/* One block of 32. Below 1e-36 127 / amax would overflow: such a block counts as zero. */
HK_INLINE float hk_quantize_block(const float *x, int8_t *codes, int16_t *sums) {
    v16f a = v_load(x), b = v_load(x + 16);
    float amax = hk_peak_of(a, b);
    if (!(amax >= 1e-36f))
        return hk_zero_block(amax, codes, sums);
    v16f inverse = v_set1(127.0f / amax);
    sums[0] = (int16_t)v_store_i8(codes, v_mul(a, inverse));
    sums[1] = (int16_t)v_store_i8(codes + 16, v_mul(b, inverse));
    return amax / 127.0f;
}

static void hk_quantize_q8_32(const float *x, int64_t K, int8_t *codes, float *scales, int16_t *sums) {
    for (int64_t i = 0; i < K; i += 32)
        scales[i / 32] = hk_quantize_block(x + i, codes + i, sums + i / 16);
}

/* 16 values as first + second parts: v / 128 rounded, and what is left, which is exact. */
HK_INLINE void hk_store_parts(v16f v, int8_t *first, int8_t *second, int16_t *first_sum, int16_t *second_sum) {
    v16f high = v_round(v_mul(v, v_set1(1.0f / 128)));
    *first_sum = (int16_t)v_store_i8(first, high);
    *second_sum = (int16_t)v_store_i8(second, v_fma(v_set1(-128.0f), high, v));
}

static void hk_quantize_pair(const float *x, int64_t K, int8_t *codes, float *scales, int16_t *sums,
                             int64_t codes_stride, int64_t scales_stride, int64_t sums_stride) {
    for (int64_t i = 0; i < K; i += 32, x += 32, codes += 32, scales++, sums += 2) {
        v16f a = v_load(x), b = v_load(x + 16);
        float amax = hk_peak_of(a, b);
        if (!(amax >= 1e-34f)) { /* below, 16256 / amax would overflow */
            scales[0] = hk_zero_block(amax, codes, sums);
            scales[scales_stride] = hk_zero_block(amax, codes + codes_stride, sums + sums_stride);
            continue;
        }
        v16f inverse = v_set1(16256.0f / amax);
        hk_store_parts(v_mul(a, inverse), codes, codes + codes_stride, sums, sums + sums_stride);
        hk_store_parts(v_mul(b, inverse), codes + 16, codes + codes_stride + 16, sums + 1, sums + sums_stride + 1);
        scales[scales_stride] = amax / 16256.0f;
        scales[0] = 128.0f * scales[scales_stride];
    }
}

#endif
