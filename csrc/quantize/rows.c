/* Rows of any float type into rows of any format, 256 weights at a time. Compiled once per instruction set; HK_ISA is
 * its name. */
#include "hk_quantize.h"
#include "grids.h"
#include "kquants.h"

#include <math.h>

#define CHUNK   256
#define TINY    1e-10f /* below the least fp16 scale of any format: quantised as zeros */
#define LARGEST 1e9f   /* beyond the largest scale of any format, and small enough for squares in float */

/* n values -> float, zeros behind them; 0, or the error and where it is. */
HK_INLINE int read_floats(hk_type from, const uint8_t *src, int n, int to_block, float *x, int *where) {
    if (from == HK_F32) {
        memcpy(x, src, 4 * (size_t)n);
    } else {
        uint16_t h[CHUNK];
        memcpy(h, src, 2 * (size_t)n);
        if (from == HK_F16)
            for (int i = 0; i < n; i++)
                x[i] = hk_half_to_float(h[i]);
        else
            for (int i = 0; i < n; i++)
                x[i] = hk_bf16_to_float(h[i]);
    }
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        uint32_t u = hk_float_bits(x[i]) & 0x7fffffff;
        most = u > most ? u : most;
    }
    if (most >= hk_float_bits(LARGEST)) {
        int bad = most >= 0x7f800000;
        for (int i = n - 1; i >= 0; i--) {
            uint32_t u = hk_float_bits(x[i]) & 0x7fffffff;
            *where = u >= (bad ? 0x7f800000 : hk_float_bits(LARGEST)) ? i : *where;
        }
        if (bad || to_block)
            return bad ? HK_QUANTIZE_NOT_FINITE : HK_QUANTIZE_TOO_LARGE;
    }
    if (to_block) {
        for (int i = 0; i < n; i++)
            x[i] = (x[i] < 0 ? -x[i] : x[i]) < TINY ? 0 : x[i];
        memset(x + n, 0, sizeof(float) * (size_t)(CHUNK - n));
    }
    return HK_QUANTIZE_OK;
}

/* Weights of the squared errors: how much a column matters, times sqrt(mean x^2) + |x|. An error in a large weight
 * costs a model more than its square says, but not so much more that the small ones could be given up: on SmolLM2 135M
 * in Q4_0 the KL divergence from F16 is 0.266, with equal weights 0.284, with x^2 0.295. */
HK_INLINE void weigh(const float *x, const float *importance, int n, float *w) {
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    float mean = sqrtf(sum / (float)n);
    for (int i = 0; i < n; i++)
        w[i] = (importance ? importance[i] : 1.0f) * (mean + (x[i] < 0 ? -x[i] : x[i]));
    memset(w + n, 0, sizeof(float) * (size_t)(CHUNK - n));
}

static int chunk_floats(hk_type to, const float *x, int n, uint8_t *dst, int *where) {
    if (to == HK_F32) {
        memcpy(dst, x, 4 * (size_t)n);
        return HK_QUANTIZE_OK;
    }
    for (int i = 0; i < n; i++) {
        uint32_t u = hk_float_bits(x[i]);
        uint16_t h = to == HK_F16 ? hk_float_to_half(x[i]) : (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
        memcpy(dst + 2 * i, &h, 2);
        if ((h & 0x7fff) == (to == HK_F16 ? 0x7c00 : 0x7f80)) {
            *where = i;
            return HK_QUANTIZE_TOO_LARGE;
        }
    }
    return HK_QUANTIZE_OK;
}

static int finite_half(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

#define GATHER_32(e, x, w) v_gather(x, 32, (e)->x), v_gather(w, 32, (e)->w)
#define GATHER_16(e, x, w)                                                                                             \
    v_gather(x, 16, (e)->x), v_gather((x) + 128, 16, (e)->x + 16), v_gather(w, 16, (e)->w),                            \
        v_gather((w) + 128, 16, (e)->w + 16)

#define EIGHT(fmt)                                                                                                     \
    static __attribute__((noinline)) int chunk_##fmt(const float *x, const float *w, int n, uint8_t *dst) {            \
        hk_eight e = {0};                                                                                              \
        GATHER_32(&e, x, w);                                                                                           \
        blocks_##fmt(&e, n / 32, dst);                                                                                 \
        for (int l = 0; l < n / 32; l++)                                                                               \
            if (!finite_half(e.d[l]) || !finite_half(e.m[l]))                                                          \
                return HK_QUANTIZE_TOO_LARGE;                                                                          \
        return HK_QUANTIZE_OK;                                                                                         \
    }
#define SUPER(fmt, gather)                                                                                             \
    static __attribute__((noinline)) int chunk_##fmt(const float *x, const float *w, int n, uint8_t *dst) {            \
        hk_super b = {0};                                                                                              \
        (void)n;                                                                                                       \
        gather(&b, x, w);                                                                                              \
        block_##fmt(&b, dst);                                                                                          \
        return finite_half(b.d_half) && finite_half(b.dmin_half) ? HK_QUANTIZE_OK : HK_QUANTIZE_TOO_LARGE;             \
    }
EIGHT(q4_0)
EIGHT(q4_1)
EIGHT(q5_0)
EIGHT(q5_1)
EIGHT(q8_0)
EIGHT(iq4_nl)
SUPER(q2_k, GATHER_16)
SUPER(q3_k, GATHER_16)
SUPER(q4_k, GATHER_32)
SUPER(q5_k, GATHER_32)
SUPER(q6_k, GATHER_16)
SUPER(iq4_xs, GATHER_32)
#define chunk_mxfp4 NULL /* read, never written */

typedef int (*chunk_fn)(const float *x, const float *w, int n, uint8_t *dst);
static const chunk_fn chunks[HK_N_TYPES] = {
#define HK_QUANT(NAME, lower, low, high, codes, zero, sub, mins) [HK_##NAME] = chunk_##lower,
#include "formats/hk_quants.def"
#undef HK_QUANT
};

static int is_float(hk_type t) { return t == HK_F32 || t == HK_F16 || t == HK_BF16; }

#define JOIN(a, b) a##b
#define NAMED(isa) JOIN(hk_quantize_rows_, isa)
int NAMED(HK_ISA)(hk_quantize_job *job);

int NAMED(HK_ISA)(hk_quantize_job *job) {
    float x[CHUNK], w[CHUNK];
    const hk_type_info *to = &hk_types[job->to];
    chunk_fn chunk = chunks[job->to];
    int64_t size = hk_types[job->from].bytes, block = to->block;
    if (!is_float(job->from) || (!is_float(job->to) && chunk == NULL) || job->cols % block)
        return HK_QUANTIZE_NO_FORMAT;
    const uint8_t *src = job->src;
    uint8_t *dst = job->dst;
    for (int64_t row = 0; row < job->rows; row++)
        for (int64_t at = 0; at < job->cols; at += CHUNK) {
            int n = job->cols - at < CHUNK ? (int)(job->cols - at) : CHUNK, where = 0;
            int rc = read_floats(job->from, src, n, chunk != NULL, x, &where);
            if (rc == HK_QUANTIZE_OK && chunk) {
                weigh(x, job->importance ? job->importance + at : NULL, n, w);
                rc = chunk(x, w, n, dst);
            } else if (rc == HK_QUANTIZE_OK) {
                rc = chunk_floats(job->to, x, n, dst, &where);
            }
            if (rc != HK_QUANTIZE_OK) {
                job->fault = row * job->cols + at + where;
                return rc;
            }
            src += n * size;
            dst += n / block * to->bytes;
        }
    return HK_QUANTIZE_OK;
}
