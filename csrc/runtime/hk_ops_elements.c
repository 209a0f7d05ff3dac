/* Elementwise operations, followed by the quantisation of what they produce. Items are runs of 256 columns of a row:
 * one quantisation block, so that a single row is divided over the threads too. */
#include "hk_tape.h"

#define RUN 256

static void apply(const hk_run *r, const hk_op *op, int64_t row, int64_t c0, int64_t c1) {
    const hk_float_ops *f = &r->tape->set->op;
    const float *x = hk_row(r->tape, op->x, row) + c0;
    const float *y = op->y.buf >= 0 ? hk_row(r->tape, op->y, row) + c0 : 0;
    float *out = op->out.buf >= 0 ? hk_row(r->tape, op->out, row) + c0 : 0;
    switch (op->sub) {
    case HK_EL_GLU:
        f->glu(out, x, y, c1 - c0, op->act);
        break;
    case HK_EL_ADD:
        f->add(out, x, y, c1 - c0);
        break;
    case HK_EL_SCALE:
        f->scale(out, x, op->number, c1 - c0);
        break;
    case HK_EL_SOFTCAP:
        f->softcap(out, x, op->number, c1 - c0);
        break;
    default:
        out = (float *)x;
        break;
    }
    if (op->n_emit)
        hk_emit(r, op, out - c0, row, c0, c1);
}

void hk_op_elements(hk_run *r, const hk_op *op, int thread) {
    int64_t width = op->x.width, runs = (width + RUN - 1) / RUN, b, e;
    hk_split(hk_rows(r, op->x) * runs, thread, r->n_threads, &b, &e);
    while (b < e) {
        int64_t row = b / runs, first = b % runs, last = first + (e - b);
        if (last > runs)
            last = runs;
        apply(r, op, row, first * RUN, last * RUN < width ? last * RUN : width);
        b += last - first;
    }
}
