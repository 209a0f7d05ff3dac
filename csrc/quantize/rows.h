/* Rows of any float type into rows of any format, 256 weights at a time. Compiled once per instruction set; HK_ISA is
 * its name, and its vec.h comes first. */
#ifndef HK_ROWS_H
#define HK_ROWS_H

#include "hk_quantize.h"
#include "grids.h"
#include "kquants.h"

#include <math.h>

#define CHUNK   256
#define TINY    1e-10f /* below the least fp16 scale of any format: quantised as zeros */
#define LARGEST 1e9f   /* beyond the largest scale of any format, and small enough for squares in float */

/* n values -> float, zeros behind them; 0, or the error and where it is. */
HK_INLINE int read_floats(hk_type from, const uint8_t *src, int n, int to_block, float *x, int *where) {
    uint16_t h[CHUNK] = {0};
    if (n < CHUNK)
        memset(x, 0, sizeof(float) * CHUNK);
    if (from == HK_F32)
        memcpy(x, src, 4 * (size_t)n);
    else
        memcpy(h, src, 2 * (size_t)n);
    hk_m8 most = {0};
    for (int i = 0; i < n; i += HK_LANES) {
        hk_v8 v = v_load(x + i);
        if (from == HK_F16)
            v = v_from_half(h + i);
        else if (from == HK_BF16)
            for (int l = 0; l < HK_LANES; l++)
                v[l] = hk_bf16_to_float(h[i + l]);
        hk_m8 size = (hk_m8)v_abs(v);
        most = (hk_m8)v_pick(size > most, (hk_v8)size, (hk_v8)most);
        if (to_block)
            v = v_pick(v_abs(v) < TINY, v_all(0), v);
        v_store(x + i, v);
    }
    uint32_t top = 0, bound = hk_float_bits(LARGEST);
    for (int l = 0; l < HK_LANES; l++)
        top = (uint32_t)most[l] > top ? (uint32_t)most[l] : top;
    if (top < bound)
        return HK_QUANTIZE_OK;
    int bad = top >= 0x7f800000;
    for (int i = n - 1; i >= 0; i--)
        *where = (hk_float_bits(x[i]) & 0x7fffffff) >= (bad ? 0x7f800000 : bound) ? i : *where;
    return bad ? HK_QUANTIZE_NOT_FINITE : to_block ? HK_QUANTIZE_TOO_LARGE : HK_QUANTIZE_OK;
}

/* Weights of the squared errors: how much a column matters, times sqrt(mean x^2) + |x|. An error in a large weight
 * costs a model more than its square says, but not so much more that the small ones could be given up: on SmolLM2 135M
 * in Q4_0 the KL divergence from F16 is 0.266, with equal weights 0.284, with x^2 0.295. n: a multiple of 8. */
HK_INLINE void weigh(const float *x, const float *importance, int n, float *w) {
    hk_v8 sum = v_all(0);
    for (int i = 0; i < n; i += HK_LANES)
        sum += v_load(x + i) * v_load(x + i);
    hk_v8 mean = v_all(sqrtf(v_sum(sum) / (float)n));
    for (int i = 0; i < n; i += HK_LANES) {
        hk_v8 v = mean + v_abs(v_load(x + i));
        v_store(w + i, importance ? v_load(importance + i) * v : v);
    }
}

/* x: zeros behind n. */
static int chunk_floats(hk_type to, const float *x, int n, uint8_t *dst, int *where) {
    uint16_t h[CHUNK], top = 0, infinity = to == HK_F16 ? 0x7c00 : 0x7f80;
    if (to == HK_F32) {
        memcpy(dst, x, 4 * (size_t)n);
        return HK_QUANTIZE_OK;
    }
    if (to == HK_F16)
        for (int i = 0; i < n; i += HK_LANES)
            v_to_half(v_load(x + i), h + i);
    else
        for (int i = 0; i < n; i++) {
            uint32_t u = hk_float_bits(x[i]);
            h[i] = (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
        }
    memcpy(dst, h, 2 * (size_t)n);
    for (int i = 0; i < n; i++)
        top = (h[i] & 0x7fff) > top ? (uint16_t)(h[i] & 0x7fff) : top;
    for (int i = n - 1; top == infinity && i >= 0; i--)
        *where = (h[i] & 0x7fff) == infinity ? i : *where;
    return top == infinity ? HK_QUANTIZE_TOO_LARGE : HK_QUANTIZE_OK;
}

static int finite_half(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

/* Quantises `blocks` blocks; returns how many of them are as they should be before the first that is too large. */
typedef int (*chunk_fn)(const float *x, const float *w, int blocks, uint8_t *dst);

#define EIGHT(fmt)                                                                                                     \
    static __attribute__((noinline)) int chunk_##fmt(const float *x, const float *w, int blocks, uint8_t *dst) {       \
        hk_eight e = {0};                                                                                              \
        v_gather(x, 32, e.x), v_gather(w, 32, e.w);                                                                    \
        blocks_##fmt(&e, blocks, dst);                                                                                 \
        for (int l = 0; l < blocks; l++)                                                                               \
            if (!finite_half(e.d[l]) || !finite_half(e.m[l]))                                                          \
                return l;                                                                                              \
        return blocks;                                                                                                 \
    }
#define GATHER_32(b, x, w) v_gather(x, 32, (b)->x), v_gather(w, 32, (b)->w)
#define GATHER_16(b, x, w)                                                                                             \
    v_gather(x, 16, (b)->x), v_gather((x) + 128, 16, (b)->x + 16), v_gather(w, 16, (b)->w),                            \
        v_gather((w) + 128, 16, (b)->w + 16)
#define SUPER(fmt, gather)                                                                                             \
    static __attribute__((noinline)) int chunk_##fmt(const float *x, const float *w, int blocks, uint8_t *dst) {       \
        hk_super b = {0};                                                                                              \
        gather(&b, x, w);                                                                                              \
        block_##fmt(&b, dst);                                                                                          \
        return finite_half(b.d_half) && finite_half(b.dmin_half) ? blocks : 0;                                         \
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

static const chunk_fn chunks[HK_N_TYPES] = {
#define HK_QUANT(NAME, lower, low, high, codes, zero, sub, mins) [HK_##NAME] = chunk_##lower,
#include "formats/hk_quants.def"
#undef HK_QUANT
};

static int is_float(hk_type t) { return t == HK_F32 || t == HK_F16 || t == HK_BF16; }

/* Weights and what they are worth on their way to a call for 256 of them: blocks of 32 join across the ends of rows. */
typedef struct hk_waiting {
    float x[2 * CHUNK], w[2 * CHUNK];
    int n;
} hk_waiting;

/* Quantises the first 256 that wait, or all if there are fewer; returns how many, or -1 and where it is too large. */
static int run_chunk(const hk_type_info *to, chunk_fn chunk, hk_waiting *q, uint8_t *dst, int *where) {
    int n = q->n < CHUNK ? q->n : CHUNK, blocks = n / to->block;
    if (n < CHUNK) {
        memset(q->x + n, 0, sizeof(float) * (size_t)(CHUNK - n));
        memset(q->w + n, 0, sizeof(float) * (size_t)(CHUNK - n));
    }
    int done = chunk(q->x, q->w, blocks, dst);
    *where = done * to->block;
    q->n -= n;
    if (q->n) {
        memcpy(q->x, q->x + n, sizeof(float) * (size_t)q->n);
        memcpy(q->w, q->w + n, sizeof(float) * (size_t)q->n);
    }
    return done == blocks ? n : -1;
}

static int to_floats(hk_quantize_job *job) {
    float x[CHUNK];
    const uint8_t *src = job->src;
    uint8_t *dst = job->dst;
    int64_t total = job->rows * job->cols, size = hk_types[job->from].bytes;
    for (int64_t at = 0; at < total; at += CHUNK) {
        int n = total - at < CHUNK ? (int)(total - at) : CHUNK, where = 0;
        int rc = read_floats(job->from, src, n, 0, x, &where);
        if (rc == HK_QUANTIZE_OK)
            rc = chunk_floats(job->to, x, n, dst, &where);
        if (rc != HK_QUANTIZE_OK) {
            job->fault = at + where;
            return rc;
        }
        src += n * size;
        dst += n * hk_types[job->to].bytes;
    }
    return HK_QUANTIZE_OK;
}

static int to_blocks(hk_quantize_job *job) {
    const hk_type_info *to = &hk_types[job->to];
    const uint8_t *src = job->src;
    uint8_t *dst = job->dst;
    int64_t size = hk_types[job->from].bytes, written = 0;
    int searches = job->to != HK_Q8_0; /* else nobody asks what an error costs */
    hk_waiting q;
    q.n = 0;
    memset(q.w, 0, sizeof q.w);
    for (int64_t row = 0; row < job->rows; row++)
        for (int64_t at = 0; at < job->cols; at += CHUNK) {
            int n = job->cols - at < CHUNK ? (int)(job->cols - at) : CHUNK, where = 0;
            int rc = read_floats(job->from, src, n, 1, q.x + q.n, &where);
            if (rc != HK_QUANTIZE_OK) {
                job->fault = row * job->cols + at + where;
                return rc;
            }
            if (searches)
                weigh(q.x + q.n, job->importance ? job->importance + at : NULL, n, q.w + q.n);
            q.n += n;
            src += n * size;
            int last = row + 1 == job->rows && at + n == job->cols;
            while (q.n >= CHUNK || (last && q.n)) {
                int done = run_chunk(to, chunks[job->to], &q, dst, &where);
                if (done < 0) {
                    job->fault = written + where;
                    return HK_QUANTIZE_TOO_LARGE;
                }
                written += done;
                dst += done / to->block * to->bytes;
            }
        }
    return HK_QUANTIZE_OK;
}

#define JOIN(a, b) a##b
#define NAMED(isa) JOIN(hk_quantize_rows_, isa)
int NAMED(HK_ISA)(hk_quantize_job *job);

int NAMED(HK_ISA)(hk_quantize_job *job) {
    if (!is_float(job->from) || (!is_float(job->to) && chunks[job->to] == NULL) || job->cols % hk_types[job->to].block)
        return HK_QUANTIZE_NO_FORMAT;
    return is_float(job->to) ? to_floats(job) : to_blocks(job);
}

#endif
