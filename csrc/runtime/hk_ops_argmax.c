/* Greedy choice: the largest logit and the log-sum-exp of each output row, over chunks of fixed size, so that the
 * result does not depend on the number of threads. */
#include <math.h>

#include "hk_tape.h"

static int64_t chunks_of(int64_t width) { return (width + HK_ARGMAX_CHUNK - 1) / HK_ARGMAX_CHUNK; }

void hk_op_argmax(hk_run *r, const hk_op *op, int thread) {
    int64_t width = op->x.width, chunks = chunks_of(width), b, e;
    hk_split(r->slot->n_out * chunks, thread, r->n_threads, &b, &e);
    for (; b < e; b++) {
        int64_t c0 = b % chunks * HK_ARGMAX_CHUNK;
        int64_t n = width - c0 < HK_ARGMAX_CHUNK ? width - c0 : HK_ARGMAX_CHUNK;
        hk_best *best = &r->tape->bests[b];
        int bad = 0;
        best->index =
            c0 + r->tape->set->op.argmax(hk_row(r->tape, op->x, b / chunks) + c0, n, &best->value, &best->lse, &bad);
        best->bad = bad;
    }
}

void hk_argmax_finish(hk_run *r) {
    const hk_op *op = &r->tape->ops[r->tape->n_ops - 1];
    hk_slot *s = r->slot;
    if (op->kind != HK_OP_ARGMAX)
        return;
    int64_t chunks = chunks_of(op->x.width);
    for (int64_t i = 0; i < s->n_out; i++) {
        const hk_best *c = &r->tape->bests[i * chunks], top = c[0];
        hk_best best = top;
        int bad = best.bad;
        for (int64_t j = 1; j < chunks; j++) {
            if (c[j].value > best.value)
                best = c[j];
            bad |= c[j].bad;
        }
        double sum = 0;
        for (int64_t j = 0; j < chunks; j++)
            sum += exp(c[j].lse - best.value);
        best.lse = best.value + log(sum);
        /* A chunk may be all -inf in a row that is not: look again at the whole row. */
        if (bad)
            best.index = r->tape->set->op.argmax(hk_row(r->tape, op->x, i), op->x.width, &best.value, &best.lse, &bad);
        s->best[i] = (int32_t)best.index;
        s->best_value[i] = best.value;
        s->best_lse[i] = best.lse;
        s->bad[i] = bad;
    }
}
