/* Rows of K and V into their page, and tiles of a page back to floats. Plane layouts: hk_cpu.h. */
#ifndef HK_FLOAT_KV_H
#define HK_FLOAT_KV_H

/* GGUF's Q8_0: d = max|x| / 127, code = x * (1/d) rounded half away from zero, with d before its rounding to fp16. */
static uint16_t hk_kv_q8_0(const float *x, int8_t *codes) {
    float amax = 0;
    int bad = 0;
    for (int i = 0; i < 32; i++) {
        float a = fabsf(x[i]);
        bad |= !(a < INFINITY);
        amax = a > amax ? a : amax;
    }
    float d = amax / 127.0f, inverse = d > 0x1p-126f ? 1.0f / d : 0.0f;
    for (int i = 0; i < 32; i++) {
        float a = bad ? 0.0f : fabsf(x[i] * inverse);
        int32_t q = (int32_t)a;
        q += a - (float)q >= 0.5f;
        codes[i] = (int8_t)(x[i] < 0 ? -q : q);
    }
    return hk_float_to_half(bad ? NAN : d);
}

/* GGUF's Q4_0: m = the element of largest magnitude (the first of equals), d = m / -8, code = trunc(x * (1/d) + 8.5) at
 * most 15, with d before its rounding to fp16. The sum is taken in double, so that fusing it changes nothing. */
static uint16_t hk_kv_q4_0(const float *x, uint8_t *codes) {
    float amax = 0, m = 0;
    int bad = 0;
    for (int i = 0; i < 32; i++) {
        float a = fabsf(x[i]);
        bad |= !(a < INFINITY);
        if (a > amax)
            amax = a, m = x[i];
    }
    float d = m / -8.0f, inverse = fabsf(d) > 0x1p-126f ? 1.0f / d : 0.0f;
    for (int i = 0; i < 32; i++) {
        int32_t q = bad ? 8 : (int32_t)((double)x[i] * (double)inverse + 8.5);
        codes[i] = (uint8_t)(q < 15 ? q : 15);
    }
    return hk_float_to_half(bad ? NAN : d);
}

static void hk_kv_store_k(int kv, void *plane, int64_t dim, int64_t slot, const float *k) {
    uint8_t *bytes = plane;
    if (kv == HK_KV_F32)
        for (int64_t i = 0; i < dim; i++)
            ((float *)plane)[i * HK_PAGE + slot] = k[i];
    else if (kv == HK_KV_F16)
        for (int64_t i = 0; i < dim; i += 16) {
            uint16_t h[16];
            int64_t n = dim - i < 16 ? dim - i : 16;
            v_store_f16(h, n < 16 ? v_load_tail(k + i, n, 0.0f) : v_load(k + i));
            for (int64_t j = 0; j < n; j++)
                ((uint16_t *)plane)[(i + j) * HK_PAGE + slot] = h[j];
        }
    else
        for (int64_t i = 0; i < dim; i += 32) {
            int8_t c[32];
            uint16_t *scales = (uint16_t *)(bytes + (kv == HK_KV_Q8_0 ? dim : dim / 2) * HK_PAGE);
            if (kv == HK_KV_Q8_0) {
                scales[i / 32 * HK_PAGE + slot] = hk_kv_q8_0(k + i, c);
                for (int64_t j = 0; j < 32; j++)
                    bytes[(i + j) * HK_PAGE + slot] = (uint8_t)c[j];
            } else {
                scales[i / 32 * HK_PAGE + slot] = hk_kv_q4_0(k + i, (uint8_t *)c);
                for (int64_t j = 0; j < 16; j++)
                    bytes[(i / 2 + j) * HK_PAGE + slot] = (uint8_t)(c[2 * j] | c[2 * j + 1] << 4);
            }
        }
}

static void hk_kv_store_v(int kv, void *plane, int64_t dim, int64_t slot, const float *v) {
    uint8_t *bytes = plane;
    if (kv == HK_KV_F32)
        memcpy((float *)plane + slot * dim, v, (size_t)dim * sizeof *v);
    else if (kv == HK_KV_F16) {
        uint16_t *row = (uint16_t *)plane + slot * dim;
        int64_t i = 0;
        for (; i + 16 <= dim; i += 16)
            v_store_f16(row + i, v_load(v + i));
        if (i < dim) {
            uint16_t h[16];
            v_store_f16(h, v_load_tail(v + i, dim - i, 0.0f));
            memcpy(row + i, h, (size_t)(dim - i) * sizeof *h);
        }
    } else {
        int64_t width = kv == HK_KV_Q8_0 ? dim : dim / 2;
        uint16_t *scales = (uint16_t *)(bytes + width * HK_PAGE) + slot * (dim / 32);
        for (int64_t i = 0; i < dim; i += 32) {
            uint8_t c[32];
            if (kv == HK_KV_Q8_0) {
                scales[i / 32] = hk_kv_q8_0(v + i, (int8_t *)bytes + slot * width + i);
                continue;
            }
            scales[i / 32] = hk_kv_q4_0(v + i, c);
            for (int64_t j = 0; j < 16; j++)
                bytes[slot * width + i / 2 + j] = (uint8_t)(c[2 * j] | c[2 * j + 1] << 4);
        }
    }
}

/* The planes as operands of hk_outer: K's k are dimensions and its vectors 16 tokens, V's k are tokens and its vectors
 * 16 dimensions. Of quantised caches these are the codes; the scales follow them in the plane, fp16: of K [dim /
 * 32][HK_PAGE], of V [HK_PAGE][dim / 32]. */
static hk_b hk_kv_view_k(int kv, const void *plane) {
    static const int kind[HK_N_KV] = {
        [HK_KV_F16] = HK_B_F16, [HK_KV_Q8_0] = HK_B_I8, [HK_KV_Q4_0] = HK_B_N4, [HK_KV_F32] = HK_B_F32};
    return (hk_b){plane, HK_PAGE, 16, kind[kv], plane, 0};
}

static hk_b hk_kv_view_v(int kv, const void *plane, int64_t dim) {
    static const int kind[HK_N_KV] = {
        [HK_KV_F16] = HK_B_F16, [HK_KV_Q8_0] = HK_B_I8, [HK_KV_Q4_0] = HK_B_P4, [HK_KV_F32] = HK_B_F32};
    const int half = kv == HK_KV_Q4_0;
    return (hk_b){plane, half ? dim / 2 : dim, half ? 8 : 16, kind[kv], plane, 0};
}

static int hk_kv_has_scales(int kv) { return kv == HK_KV_Q8_0 || kv == HK_KV_Q4_0; }

static const uint16_t *hk_kv_scales(int kv, const void *plane, int64_t dim) {
    return (const uint16_t *)((const uint8_t *)plane + (kv == HK_KV_Q4_0 ? dim / 2 : dim) * HK_PAGE);
}

/* Tokens [t0, t1) of V -> dst[dim / 16, rounded up][HK_PAGE][16] from t0 on; a last vector of fewer than 16 dimensions
 * (float planes only) is filled up with zeros. */
static void hk_kv_tile_v(int kv, const void *plane, int64_t dim, int64_t t0, int64_t t1, float *dst) {
    hk_b b = hk_kv_view_v(kv, plane, dim);
    int64_t full = dim / 16, rest = dim % 16, size = hk_b_size(b.kind);
    hk_b_tile(b, 0, full, t0, t1, dst, HK_PAGE);
    for (int64_t t = t0; rest && t < t1; t++) {
        uint8_t last[64] = {0};
        memcpy(last, b.base + (t * dim + 16 * full) * size, (size_t)(rest * size));
        v_store(dst + 16 * (full * HK_PAGE + t - t0),
                kv == HK_KV_F32 ? v_load((const float *)last) : v_load_f16((const uint16_t *)last));
    }
}

#endif
