/* Operations on whole rows: embedding, rotary angles, RMS norm, selection of outputs, observation. */
#include <math.h>
#include <string.h>

#include "hk_tape.h"

hk_act hk_act_from(const hk_tape *t, int32_t act, int64_t row) {
    const hk_act_buf *a = &t->acts[act];
    if (a->kind == HK_ACT_F32) {
        hk_act view = {.x = a->x + row * a->x_stride, .x_stride = a->x_stride};
        if (a->alias.buf >= 0) {
            view.x = hk_row(t, a->alias, row);
            view.x_stride = t->buffers[a->alias.buf].stride;
        }
        return view;
    }
    return (hk_act){.tiles = a->tiles && row % 16 == 0 ? a->tiles + row / 16 * a->tiles_stride : NULL,
                    .tiles_stride = a->tiles_stride,
                    .codes = a->codes + row * a->codes_stride,
                    .scales = a->scales + row * a->scales_stride,
                    .sums = a->sums + row * a->sums_stride,
                    .codes_stride = a->codes_stride,
                    .scales_stride = a->scales_stride,
                    .sums_stride = a->sums_stride};
}

void hk_emit(const hk_run *r, const hk_op *op, const float *row, int64_t index, int64_t c0, int64_t c1) {
    for (int i = 0; i < op->n_emit; i++) {
        const hk_act_buf *a = &r->tape->acts[op->emit[i]];
        if (a->kind == HK_ACT_F32) {
            memcpy(a->x + index * a->x_stride + c0, row + c0, (c1 - c0) * sizeof(float));
            continue;
        }
        if (a->kind == HK_ACT_Q8_PAIR) {
            r->tape->set->op.quantize_pair(row + c0, c1 - c0, a->codes + 2 * index * a->codes_stride + c0,
                                           a->scales + 2 * index * a->scales_stride + c0 / 32,
                                           a->sums + 2 * index * a->sums_stride + c0 / 16, a->codes_stride,
                                           a->scales_stride, a->sums_stride);
            continue;
        }
        if (a->tiles)
            r->tape->set->op.to_tiles(row + c0, c1 - c0,
                                      a->tiles + index / 16 * a->tiles_stride + HK_COLUMN_TILE * (c0 / 32) +
                                          index % 16 * 32);
        r->tape->set->op.quantize[a->kind](row + c0, c1 - c0, a->codes + index * a->codes_stride + c0,
                                           a->scales + index * a->scales_stride + c0 / 32,
                                           a->sums + index * a->sums_stride + c0 / 16);
    }
}

void hk_op_embed(hk_run *r, const hk_op *op, int thread) {
    const hk_slot *s = r->slot;
    int64_t b, e;
    hk_split(s->n, thread, r->n_threads, &b, &e);
    for (int64_t i = b; i < e; i++) {
        float *out = hk_row(r->tape, op->out, i);
        op->dequant(op->raw + s->tokens[i] * op->row_bytes, op->K, out);
        if (op->number != 1.0f)
            r->tape->set->op.scale(out, out, op->number, op->out.width);
    }
}

/* float64 throughout, rounded once: at position 131071 a float32 product would be off by 0.004 radians. */
void hk_op_angles(hk_run *r, const hk_op *op, int thread) {
    const hk_slot *s = r->slot;
    const hk_angles *a = &r->tape->angles[op->angles];
    int64_t b, e;
    hk_split((int64_t)s->n * a->half, thread, r->n_threads, &b, &e);
    for (int64_t i = b; i < e; i++) {
        int64_t row = i / a->half, j = i % a->half;
        int use_long = a->inv_freq_long && s->variants[row] == 1;
        double angle = s->positions[row] * (use_long ? a->inv_freq_long : a->inv_freq)[j];
        double m = use_long ? a->mscale_long : a->mscale;
        a->cs[2 * i] = (float)(cos(angle) * m);
        a->cs[2 * i + 1] = (float)(sin(angle) * m);
    }
}

void hk_op_norm(hk_run *r, const hk_op *op, int thread) {
    const hk_float_ops *f = &r->tape->set->op;
    int64_t b, e, width = op->x.width;
    hk_split(hk_rows(r, op->x), thread, r->n_threads, &b, &e);
    float *row = (float *)(hk_pool_scratch(thread) + HK_SCRATCH_TILE);
    for (int64_t i = b; i < e; i++) {
        float *out = hk_row(r->tape, op->out, i);
        /* With a residual the norm goes through scratch: the residual may be the output itself. */
        float *y = op->y.buf >= 0 ? row : out;
        f->rmsnorm(hk_row(r->tape, op->x, i), op->vector, width, op->number, y);
        if (op->y.buf >= 0)
            f->add(out, y, hk_row(r->tape, op->y, i), width);
        if (op->n_emit)
            hk_emit(r, op, out, i, 0, width);
    }
}

void hk_op_select(hk_run *r, const hk_op *op, int thread) {
    const hk_slot *s = r->slot;
    int64_t b, e;
    hk_split(s->n_out, thread, r->n_threads, &b, &e);
    for (int64_t i = b; i < e; i++) {
        const float *x = hk_row(r->tape, op->x, s->outputs[i]);
        float *out = hk_row(r->tape, op->out, i);
        memcpy(out, x, op->x.width * sizeof(float));
        if (op->n_emit)
            hk_emit(r, op, out, i, 0, op->x.width);
    }
}

/* Divided by columns, so that a sum does not depend on the number of threads. */
void hk_op_observe(hk_run *r, const hk_op *op, int thread) {
    int64_t b, e, n = hk_rows(r, op->x);
    hk_split(op->x.width, thread, r->n_threads, &b, &e);
    for (int64_t i = 0; i < n; i++) {
        const float *x = hk_row(r->tape, op->x, i);
        for (int64_t c = b; c < e; c++)
            op->sums[c] += (double)x[c] * (double)x[c];
    }
    if (thread == 0)
        op->sums[op->x.width] += (double)n;
}
