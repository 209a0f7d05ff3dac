#include "hk_step.h"

#include <string.h>

#define DEVICE_SPIN_NS 300000 /* a GPU's part of a block takes some 50 us */

typedef struct step {
    hk_program *program;
    hk_slot *slot;
    const int32_t *table;
    int greedy, linked;
    int result;
} step;

/* Brings the inputs of the step to every GPU; where all of its segments are one graph, that graph follows at once, and
 * its kernels wait for what the others send. */
static int begin_devices(const step *s) {
    hk_program *p = s->program;
    for (int i = 0; i < p->n_graphs; i++) {
        hk_graphs *g = p->graphs[i];
        int rc = hk_graphs_begin(g, s->slot, s->table, p->epoch, 0, s->greedy ? HK_WANT_BEST : HK_WANT_LOGITS);
        if (rc == HK_OK && s->linked && (rc = hk_graphs_launch(g, s->slot, 0)) == HK_OK)
            rc = hk_graphs_mark(g, s->slot);
        if (rc != HK_OK)
            return rc;
    }
    return HK_OK;
}

/* Behind everything else: the driver waits for a copy to memory that is not page-locked, as many logits need it, before
 * it returns, and the GPU would wait for this thread. */
static int end_devices(const step *s) {
    int rc = HK_OK;
    for (int i = 0; i < s->program->n_graphs && rc == HK_OK; i++)
        rc = hk_graphs_end(s->program->graphs[i], s->slot);
    return rc;
}

/* What thread 0 does for a GPU; it alone learns of a failure. */
static int run_device(const hk_crossing *x, const hk_command *c) {
    switch ((hk_command_kind)c->kind) {
    case HK_LAUNCH:
        return x->linked ? HK_OK : hk_graphs_launch(c->graphs, x->slot, c->first);
    case HK_SEND:
        return hk_link_from_device(x, c->transfer);
    case HK_RECEIVE:
        return hk_link_to_device(x, c->transfer);
    case HK_REPLAY:
        break;
    }
    return HK_ERR_ARGUMENT;
}

static int is_for_device(const hk_command *c) {
    return c->kind == HK_LAUNCH || (c->kind == HK_SEND && c->transfer->from != NULL) ||
           (c->kind == HK_RECEIVE && c->transfer->to != NULL);
}

/* Whether the next thing that all threads do behind command i is to wait for what a GPU sends. */
static int is_awaited(const hk_program *p, int i) {
    while (++i < p->n_commands)
        if (!is_for_device(&p->commands[i]))
            return p->commands[i].kind == HK_RECEIVE;
    return 1; /* the barrier at the end */
}

/* What all threads do; they learn of a failure at the same barrier. */
static int run_host(const hk_crossing *x, const hk_program *p, int i, hk_run *run) {
    const hk_command *c = &p->commands[i];
    switch ((hk_command_kind)c->kind) {
    case HK_REPLAY:
        run->tape = c->tape;
        return hk_tape_run(run, x->thread, c->first, c->last);
    case HK_SEND:
        return hk_link_from_host(x, c->transfer, is_awaited(p, i));
    case HK_RECEIVE:
        return hk_link_to_host(x, c->transfer);
    case HK_LAUNCH:
        break;
    }
    return HK_ERR_ARGUMENT;
}

/* Every thread runs all commands, up to the first failure. Where thread 0 alone meets one, it sets the cancel word and
 * goes to a barrier: the others stop at their next one, of which there is one behind the last command too. */
static void run_region(void *arg, int thread, hk_team *team) {
    step *s = arg;
    hk_program *p = s->program;
    hk_crossing x = {.slot = s->slot,
                     .team = team,
                     .thread = thread,
                     .linked = s->linked,
                     .epoch = p->epoch,
                     .cancel = &p->cancel,
                     .poll = thread == 0 ? p->poll : NULL};
    hk_run run = {.slot = s->slot,
                  .team = team,
                  .cancel = &p->cancel,
                  .poll = x.poll,
                  .greedy = s->greedy,
                  .n_threads = team->n,
                  .counters = p->counters};
    int rc = HK_OK, alone = HK_OK, divided = p->n_commands > 1;
    if (divided && thread == 0) {
        if (p->alternates)
            hk_pool_spin(DEVICE_SPIN_NS);
        alone = begin_devices(s);
    }
    for (int i = 0; i < p->n_commands && rc == HK_OK && alone == HK_OK; i++) {
        const hk_command *c = &p->commands[i];
        if (!is_for_device(c))
            rc = run_host(&x, p, i, &run);
        else if (thread == 0)
            alone = run_device(&x, c);
    }
    if (rc == HK_OK && divided) {
        if (alone == HK_OK && thread == 0)
            alone = end_devices(s);
        if (alone != HK_OK)
            atomic_store(&p->cancel, 1);
        rc = hk_team_sync(team) ? HK_CANCELLED : HK_OK;
    }
    if (thread == 0)
        s->result = alone != HK_OK ? alone : rc;
}

/* Runs of rows of one sequence at ascending positions, cut at HK_TILE. */
static int32_t make_tiles(const hk_slot *s, hk_row_tile *tiles) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        hk_row_tile *t = n ? &tiles[n - 1] : NULL;
        if (t && t->n < HK_TILE && t->sequence == s->sequences[i] && s->positions[i] > s->positions[i - 1])
            t->n++;
        else
            tiles[n++] = (hk_row_tile){i, 1, s->sequences[i]};
    }
    return n;
}

/* Nothing that a kernel would index with is taken on trust. */
static int check(const hk_slot *s, const hk_tape *t, int32_t n_seq) {
    if (s->n < 1 || s->n > t->max_rows || s->n_out < 0 || s->n_out > t->max_outputs)
        return HK_ERR_ARGUMENT;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->positions[i] < 0 || s->positions[i] / HK_PAGE >= t->max_pages)
            return HK_ERR_ARGUMENT;
        if (s->sequences[i] < 0 || s->sequences[i] >= n_seq)
            return HK_ERR_ARGUMENT;
    }
    for (int32_t i = 0; i < s->n_out; i++)
        if (s->outputs[i] < 0 || s->outputs[i] >= s->n)
            return HK_ERR_ARGUMENT;
    for (int32_t i = 0; i < t->n_ops; i++)
        if (t->ops[i].kind == HK_OP_EMBED)
            for (int32_t k = 0; k < s->n; k++)
                if (s->tokens[k] < 0 || s->tokens[k] >= t->ops[i].table_rows)
                    return HK_ERR_ARGUMENT;
    return HK_OK;
}

static int prepare(hk_tape *t, hk_slot *s, const int32_t *table, int32_t n_seq) {
    int rc = check(s, t, n_seq);
    if (rc)
        return rc;
    t->n_tiles = make_tiles(s, t->tiles);
    for (int32_t i = 0; i < t->n_tiles; i++) {
        int64_t row = t->tiles[i].sequence * t->pages_stride;
        int32_t last = s->positions[t->tiles[i].row + t->tiles[i].n - 1] / HK_PAGE;
        if (table)
            memcpy(s->pages + row, table + row, (last + 1) * sizeof(int32_t));
    }
    if (t->logits >= 0)
        t->buffers[t->logits].base = s->logits;
    return HK_OK;
}

hk_graphs *hk_step_graphs(const hk_program *p) {
    return p->n_commands == 1 && p->commands[0].kind == HK_LAUNCH ? p->commands[0].graphs : NULL;
}

/* GPUs may still be at work for a step that was left: its memory must not be used before they have ended. */
static int mend(hk_program *p) {
    for (int i = 0; p->torn && i < p->n_graphs; i++) {
        hk_gpu *g = p->graphs[i]->gpu;
        if (!p->torn->devices[g->index]->queued)
            continue;
        int rc = hk_gpu_wait(g, p->torn->devices[g->index]->done, &p->cancel, p->poll);
        if (rc != HK_OK)
            return rc;
    }
    p->torn = NULL;
    return HK_OK;
}

static void leave(hk_program *p, hk_slot *slot) {
    if (p->abort)
        atomic_store(p->abort, p->epoch);
    for (int i = 0; i < p->n_graphs; i++)
        hk_graphs_end(p->graphs[i], slot);
    p->torn = slot;
}

static int run_step(hk_program *p, hk_slot *slot, const int32_t *table, int n_threads, int greedy) {
    for (int i = 0; i < n_threads && i < HK_MAX_THREADS; i++) {
        atomic_store(&p->counters[i].next, 0);
        atomic_store(&p->counters[HK_MAX_THREADS + i].next, 0);
    }
    p->epoch = p->epoch == INT32_MAX ? 1 : p->epoch + 1;
    step s = {.program = p, .slot = slot, .table = table, .greedy = greedy};
    s.linked = p->n_graphs > 0 && hk_graphs_class(p->graphs[0], slot)->linked;
    int rc = hk_pool_run(n_threads, &p->cancel, run_region, &s);
    return rc != HK_OK ? rc : s.result;
}

int hk_program_run(hk_program *p, hk_slot *slot, int n_threads) { return run_step(p, slot, NULL, n_threads, 0); }

/* A program of tapes, or of several devices. */
static int run_commands(hk_program *p, hk_slot *slot, const int32_t *table, int32_t n_seq, int n_threads, int greedy) {
    int rc = HK_OK;
    for (int32_t i = 0; i < p->n_tapes; i++)
        if ((rc = prepare(p->tapes[i], slot, table, n_seq)))
            return rc;
    if (p->n_graphs && (rc = mend(p)))
        return rc;
    rc = run_step(p, slot, table, p->n_tapes ? n_threads : 1, greedy);
    for (int i = 0; i < p->n_graphs && rc == HK_OK; i++)
        rc = hk_graphs_wait(p->graphs[i], slot, &p->cancel, p->poll);
    if (rc != HK_OK && p->n_graphs)
        leave(p, slot);
    for (int32_t i = 0; rc == HK_OK && greedy && i < p->n_tapes; i++)
        if (p->tapes[i]->bests != NULL)
            hk_argmax_finish(&(hk_run){.tape = p->tapes[i], .slot = slot});
    return rc;
}

int hk_step_run(hk_program *p, hk_slot *slot, const int32_t *table, int32_t n_seq, int n_threads, int greedy) {
    hk_graphs *g = hk_step_graphs(p);
    if (g == NULL)
        return run_commands(p, slot, table, n_seq, n_threads, greedy);
    if (atomic_load_explicit(&p->cancel, memory_order_relaxed))
        return HK_CANCELLED;
    int rc = hk_graphs_queue(g, slot, table, 0, greedy ? HK_WANT_BEST : HK_WANT_LOGITS);
    return rc != HK_OK ? rc : hk_graphs_wait(g, slot, &p->cancel, p->poll);
}

int hk_step_ahead(hk_program *p, hk_slot *slot, hk_slot *next, const int32_t *table, int queued) {
    hk_graphs *g = hk_step_graphs(p);
    int rc = HK_OK;
    if (!queued)
        rc = hk_graphs_queue(g, slot, table, 0, HK_WANT_BEST);
    if (rc == HK_OK && next != NULL)
        rc = hk_graphs_queue(g, next, table, 1, HK_WANT_BEST);
    return rc != HK_OK ? rc : hk_graphs_wait(g, slot, &p->cancel, p->poll);
}

int hk_step_top(hk_program *p, hk_slot *slot, const int32_t *table) {
    hk_graphs *g = hk_step_graphs(p);
    if (g == NULL)
        return HK_ERR_ARGUMENT;
    if (atomic_load_explicit(&p->cancel, memory_order_relaxed))
        return HK_CANCELLED;
    int rc = hk_graphs_queue(g, slot, table, 0, HK_WANT_TOP);
    return rc != HK_OK ? rc : hk_graphs_wait(g, slot, &p->cancel, p->poll);
}
