#include "hk_tape.h"

#include <time.h>

#define POLL_NS 50000000 /* how often thread 0 looks for signals; far from 0.2 s, and rare enough to cost nothing */

static void poll_signals(hk_run *r) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t); /* a few ns; 4 ms are exact enough */
    int64_t now = t.tv_sec * 1000000000LL + t.tv_nsec;
    if (!r->last_poll)
        r->last_poll = now;
    if (now - r->last_poll < POLL_NS)
        return;
    r->last_poll = now;
    if (r->poll())
        atomic_store(r->cancel, 1);
}

int64_t hk_take(hk_run *r, hk_taker *k) {
    if (k->thread == 0 && r->poll)
        poll_signals(r);
    if (atomic_load_explicit(r->cancel, memory_order_relaxed))
        return -1;
    for (; k->victim < k->n; k->victim++) {
        int owner = (k->thread + k->victim) % k->n;
        int64_t b, e;
        hk_split(k->total, owner, k->n, &b, &e);
        if (b == e)
            continue;
        /* A look before the increment keeps counters of finished parts from running on. */
        if (b + atomic_load_explicit(&k->counters[owner].next, memory_order_relaxed) >= e)
            continue;
        int64_t item = b + atomic_fetch_add_explicit(&k->counters[owner].next, 1, memory_order_relaxed);
        if (item < e)
            return item;
    }
    return -1;
}

/* Dynamic operations alternate between two sets of counters. All threads have left the previous one when this one
 * starts (it always begins with a barrier), so each thread clears its counter of the other set for the next one. */
static hk_taker make_taker(hk_run *r, int thread) {
    hk_counter *mine = r->counters + r->parity * HK_MAX_THREADS;
    r->parity ^= 1;
    atomic_store_explicit(&r->counters[r->parity * HK_MAX_THREADS + thread].next, 0, memory_order_relaxed);
    return (hk_taker){.counters = mine, .n = r->n_threads, .thread = thread};
}

int hk_tape_run(hk_run *r, int thread, int first, int last) {
    const hk_tape *t = r->tape;
    for (int i = first; i < last; i++) {
        const hk_op *op = &t->ops[i];
        if (op->kind == HK_OP_ARGMAX && !r->greedy)
            continue;
        if (thread == 0 && r->poll)
            poll_signals(r);
        if (op->sync && hk_team_sync(r->team))
            return HK_CANCELLED;
        hk_taker taker;
        switch ((hk_op_kind)op->kind) {
        case HK_OP_EMBED:
            hk_op_embed(r, op, thread);
            break;
        case HK_OP_ANGLES:
            hk_op_angles(r, op, thread);
            break;
        case HK_OP_NORM:
            hk_op_norm(r, op, thread);
            break;
        case HK_OP_SELECT:
            hk_op_select(r, op, thread);
            break;
        case HK_OP_OBSERVE:
            hk_op_observe(r, op, thread);
            break;
        case HK_OP_ELEMENTS:
            hk_op_elements(r, op, thread);
            break;
        case HK_OP_HEADS:
            hk_op_heads(r, op, thread);
            break;
        case HK_OP_ARGMAX:
            hk_op_argmax(r, op, thread);
            break;
        case HK_OP_MATMUL:
            taker = make_taker(r, thread);
            hk_op_matmul(r, op, &taker);
            break;
        case HK_OP_ATTEND:
            taker = make_taker(r, thread);
            if (hk_op_attend(r, op, &taker))
                return HK_CANCELLED;
            break;
        }
    }
    /* The last operation may have been left early by a cancel that no barrier has seen. */
    return hk_team_sync(r->team) ? HK_CANCELLED : HK_OK;
}
