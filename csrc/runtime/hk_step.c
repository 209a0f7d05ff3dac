#include "hk_step.h"

#include <string.h>

typedef struct step {
    hk_program *program;
    hk_slot *slot;
    int greedy;
    int result;
} step;

static void run_region(void *arg, int thread, hk_team *team) {
    step *s = arg;
    hk_run run = {.slot = s->slot,
                  .team = team,
                  .cancel = &s->program->cancel,
                  .poll = thread == 0 ? s->program->poll : NULL,
                  .greedy = s->greedy,
                  .n_threads = team->n,
                  .counters = s->program->counters};
    int rc = HK_OK;
    for (int i = 0; i < s->program->n_commands && rc == HK_OK; i++) {
        run.tape = s->program->commands[i].tape;
        rc = hk_tape_run(&run, thread);
    }
    if (thread == 0)
        s->result = rc;
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

int hk_program_run(hk_program *p, hk_slot *slot, int n_threads, int greedy) {
    for (int i = 0; i < n_threads && i < HK_MAX_THREADS; i++) {
        atomic_store(&p->counters[i].next, 0);
        atomic_store(&p->counters[HK_MAX_THREADS + i].next, 0);
    }
    step s = {.program = p, .slot = slot, .greedy = greedy};
    int rc = hk_pool_run(n_threads, &p->cancel, run_region, &s);
    return rc != HK_OK ? rc : s.result;
}

hk_segment *hk_step_segment(const hk_program *p) {
    return p->n_commands == 1 && p->commands[0].kind == HK_LAUNCH ? p->commands[0].segment : NULL;
}

static int replay_all(hk_program *p, hk_slot *slot, const int32_t *table, int32_t n_seq, int n_threads, int greedy) {
    for (int32_t i = 0; i < p->n_commands; i++) {
        if (p->commands[i].kind != HK_REPLAY)
            return HK_ERR_ARGUMENT;
        int rc = prepare(p->commands[i].tape, slot, table, n_seq);
        if (rc)
            return rc;
    }
    int rc = hk_program_run(p, slot, n_threads, greedy);
    if (rc == HK_OK && greedy) {
        hk_run last = {.tape = p->commands[p->n_commands - 1].tape, .slot = slot};
        hk_argmax_finish(&last);
    }
    return rc;
}

int hk_step_run(hk_program *p, hk_slot *slot, const int32_t *table, int32_t n_seq, int n_threads, int greedy) {
    hk_segment *g = hk_step_segment(p);
    if (g == NULL)
        return replay_all(p, slot, table, n_seq, n_threads, greedy);
    if (atomic_load_explicit(&p->cancel, memory_order_relaxed))
        return HK_CANCELLED;
    int rc = hk_segment_queue(g, slot, table, 0, greedy ? HK_WANT_BEST : HK_WANT_LOGITS);
    return rc != HK_OK ? rc : hk_segment_wait(g, slot, &p->cancel, p->poll);
}

int hk_step_ahead(hk_program *p, hk_slot *slot, hk_slot *next, const int32_t *table, int queued) {
    hk_segment *g = hk_step_segment(p);
    int rc = HK_OK;
    if (!queued)
        rc = hk_segment_queue(g, slot, table, 0, HK_WANT_BEST);
    if (rc == HK_OK && next != NULL)
        rc = hk_segment_queue(g, next, table, 1, HK_WANT_BEST);
    return rc != HK_OK ? rc : hk_segment_wait(g, slot, &p->cancel, p->poll);
}

int hk_step_top(hk_program *p, hk_slot *slot, const int32_t *table) {
    hk_segment *g = hk_step_segment(p);
    if (g == NULL)
        return HK_ERR_ARGUMENT;
    if (atomic_load_explicit(&p->cancel, memory_order_relaxed))
        return HK_CANCELLED;
    int rc = hk_segment_queue(g, slot, table, 0, HK_WANT_TOP);
    return rc != HK_OK ? rc : hk_segment_wait(g, slot, &p->cancel, p->poll);
}
