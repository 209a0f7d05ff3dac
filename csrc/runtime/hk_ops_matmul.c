/* Products of one input with a group of packed weights.
 *
 * The panels of all weights form one space of chunks (a chunk never straddles two weights), times tiles of columns when
 * there are too few chunks for the threads. Each thread owns a contiguous range, so that it reads memory in order, and
 * takes what is left of the others' when it is done. How the space is cut changes no bit of the result: a row's product
 * with a column is computed by one call whatever else the call computes. (A set that multiplies tiles of bf16 does so
 * where a call has enough columns; hk_cpu_set_rounds says which.)
 *
 * An input in two parts (HK_ACT_Q8_PAIR) is two columns for each row of the result: one call multiplies both, so
 * weights are read once, and their sum is the result.
 *
 * A weight that stays raw is packed on the way, a few panels at a time into the thread's scratch memory, and multiplied
 * there; for a column or two it is multiplied as it lies, where the kernel set can. The bits are the same.
 */
#include <string.h>

#include "hk_tape.h"

#define DECODE_CHUNK_BYTES (64 * 1024) /* long enough to amortise an atomic increment, short enough to balance */
/* Cancels are seen between chunks: some 30 ms on one slow core, in plain C as well as with vectors. */
#define MAX_CHUNK_MACS     (96ll << 20)
#define MAX_VECTOR_MACS    (768ll << 20)
#define MAX_CHUNK_PANELS   16
#define BATCH_CHUNK_PANELS 8 /* share the staging of a block of columns */
#define MAX_TILE_COLS      512
#define RAW_COLS           3            /* more columns than that are worth the packing */
#define RAW_PANEL_BYTES    (256 * 1024) /* packed at a time: stays in the second cache */

typedef struct plan {
    int64_t panels; /* per chunk */
    int64_t cols;   /* per tile */
    int64_t n_chunks, n_tiles;
} plan;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static plan make_plan(const hk_op *op, int64_t n, const hk_cpu_set *set, int n_threads) {
    const int64_t max_macs = set->requires ? MAX_VECTOR_MACS : MAX_CHUNK_MACS;
    int64_t total = 0, bytes = 1;
    for (int i = 0; i < op->n_parts; i++) {
        total += op->parts[i].n_panels;
        if (op->parts[i].panel_bytes > bytes)
            bytes = op->parts[i].panel_bytes;
    }
    const int64_t most_cols = set->batch_columns ? set->batch_columns : MAX_TILE_COLS;
    plan p = {.cols = n < most_cols ? n : most_cols};
    if (set->batch_columns && n > most_cols) /* evenly */
        p.cols = ceil_div(ceil_div(n, ceil_div(n, most_cols)), 32) * 32;
    p.panels = n < 8 ? DECODE_CHUNK_BYTES / bytes : set->batch_panels ? set->batch_panels : BATCH_CHUNK_PANELS;
    int64_t fair = total * ceil_div(n, p.cols) / (4 * n_threads);
    if (p.panels > fair)
        p.panels = fair;
    if (p.panels > MAX_CHUNK_PANELS)
        p.panels = MAX_CHUNK_PANELS;
    int64_t macs = max_macs / (HK_PANEL * op->K * p.cols);
    if (p.panels > macs)
        p.panels = macs;
    if (p.panels < 1)
        p.panels = 1;
    while (p.cols > 32 &&
           (HK_PANEL * op->K * p.cols * p.panels > max_macs || total * ceil_div(n, p.cols) < 2 * n_threads))
        p.cols = ceil_div(p.cols, 64) * 32;
    for (int i = 0; i < op->n_parts; i++)
        p.n_chunks += ceil_div(op->parts[i].n_panels, p.panels);
    p.n_tiles = ceil_div(n, p.cols);
    return p;
}

/* Bias and residual on rows [r0, r0 + n_rows) of columns [c0, c0 + n_cols), from scratch when the part is staged. */
static void epilogue(const hk_run *r, const hk_part *w, int64_t r0, int64_t n_rows, int64_t c0, int64_t n_cols,
                     const float *stage, int64_t stage_stride) {
    const hk_float_ops *f = &r->tape->set->op;
    if (r0 + n_rows > w->out.width)
        n_rows = w->out.width - r0;
    for (int64_t c = 0; c < n_cols; c++) {
        float *out = hk_row(r->tape, w->out, c0 + c) + r0;
        const float *y = stage ? stage + c * stage_stride : out;
        if (w->bias) {
            f->add(w->add.buf >= 0 ? (float *)y : out, y, w->bias + r0, n_rows);
            if (w->add.buf < 0)
                continue;
        }
        if (w->add.buf >= 0)
            f->add(out, y, hk_row(r->tape, w->add, c0 + c) + r0, n_rows);
        else if (stage)
            memcpy(out, y, n_rows * sizeof(float));
    }
}

static void multiply(const hk_op *op, const hk_part *w, const uint8_t *panels, int64_t n_panels, const hk_act *a,
                     int64_t n_cols, float *out, int64_t stride, uint8_t *scratch) {
    if (n_cols == 1)
        w->gemv(panels, n_panels, op->K, a, out);
    else
        w->gemm(panels, n_panels, op->K, a, n_cols, out, stride, scratch + HK_SCRATCH_GEMM);
}

static void multiply_raw(const hk_run *r, const hk_op *op, const hk_part *w, int64_t p0, int64_t n_panels, int64_t c0,
                         int64_t n_cols, float *out, int64_t stride, uint8_t *scratch) {
    const uint8_t *raw = w->raw + p0 * HK_PANEL * w->row_bytes;
    int64_t rows = w->rows - p0 * HK_PANEL < n_panels * HK_PANEL ? w->rows - p0 * HK_PANEL : n_panels * HK_PANEL;
    if (w->gemv_raw && n_cols <= RAW_COLS) {
        for (int64_t c = 0; c < n_cols; c += 2) {
            hk_act a = hk_act_from(r->tape, w->act, c0 + c);
            w->gemv_raw(raw, w->row_bytes, rows, op->K, &a, n_cols - c > 1 ? 2 : 1, out + c * stride, stride);
        }
        return;
    }
    hk_act a = hk_act_from(r->tape, w->act, c0);
    int64_t step = RAW_PANEL_BYTES / w->panel_bytes > 1 ? RAW_PANEL_BYTES / w->panel_bytes : 1;
    for (int64_t p = 0; p < n_panels; p += step) {
        int64_t n = n_panels - p < step ? n_panels - p : step, at = p * HK_PANEL;
        hk_pack((hk_type)w->type, raw + at * w->row_bytes, w->row_bytes, rows - at, op->K, 0, n,
                scratch + HK_SCRATCH_PANEL);
        multiply(op, w, scratch + HK_SCRATCH_PANEL, n, &a, n_cols, out + at, stride, scratch);
    }
}

static int is_pair(const hk_run *r, const hk_op *op) { return r->tape->acts[op->parts->act].kind == HK_ACT_Q8_PAIR; }

/* Columns c0 .. of the input: with pairs, two for each row of the output. */
static void run_chunk(const hk_run *r, const hk_op *op, const hk_part *w, int64_t p0, int64_t n_panels, int64_t c0,
                      int64_t n_cols, uint8_t *scratch) {
    const int pair = is_pair(r, op);
    hk_act a = hk_act_from(r->tape, w->act, c0);
    float *stage = w->staged || pair ? (float *)(scratch + HK_SCRATCH_TILE) : NULL;
    int64_t r0 = p0 * HK_PANEL, n_rows = n_panels * HK_PANEL;
    float *out = stage ? stage : hk_row(r->tape, w->out, c0) + r0;
    int64_t stride = stage ? n_rows : r->tape->buffers[w->out.buf].stride;
    if (w->panels)
        multiply(op, w, w->panels + p0 * w->panel_bytes, n_panels, &a, n_cols, out, stride, scratch);
    else
        multiply_raw(r, op, w, p0, n_panels, c0, n_cols, out, stride, scratch);
    if (pair) {
        n_cols /= 2, c0 /= 2;
        for (int64_t c = 0; c < n_cols; c++)
            r->tape->set->op.add(stage + c * stride, stage + 2 * c * stride, stage + (2 * c + 1) * stride, stride);
    }
    if (stage || w->bias || w->add.buf >= 0)
        epilogue(r, w, r0, n_rows, c0, n_cols, stage, stride);
}

void hk_op_matmul(hk_run *r, const hk_op *op, hk_taker *taker) {
    int64_t n = hk_rows(r, op->parts[0].out) << is_pair(r, op);
    if (n == 0)
        return;
    plan p = make_plan(op, n, r->tape->set, r->n_threads);
    uint8_t *scratch = hk_pool_scratch(taker->thread);
    taker->total = p.n_chunks * p.n_tiles;
    for (int64_t item; (item = hk_take(r, taker)) >= 0;) {
        int64_t chunk = item / p.n_tiles, c0 = item % p.n_tiles * p.cols;
        const hk_part *w = op->parts;
        for (int64_t k; chunk >= (k = ceil_div(w->n_panels, p.panels)); w++)
            chunk -= k;
        int64_t p0 = chunk * p.panels;
        int64_t n_panels = w->n_panels - p0 < p.panels ? w->n_panels - p0 : p.panels;
        run_chunk(r, op, w, p0, n_panels, c0, n - c0 < p.cols ? n - c0 : p.cols, scratch);
    }
}
