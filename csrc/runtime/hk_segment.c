#include "hk_segment.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "hk_cuda_driver.h"

static int as_code(int status) { return status ? HK_ERR_DEVICE : HK_OK; }

/* Nothing that a kernel would index with is taken on trust. */
static int check(const hk_segment *g, const hk_slot *s, int feed) {
    const hk_class *most = &g->classes[g->n_classes - 1];
    if (g->n_classes == 0 || s->device == NULL || s->n < 1 || s->n > most->rows || s->n_out < 0 ||
        s->n_out > most->outputs)
        return HK_ERR_ARGUMENT;
    if (feed && (s->n != 1 || s->n_out != 1 || g->last < 0 || s->positions[0] != g->last_position + 1 ||
                 s->sequences[0] != g->last_sequence || s->variants[0] != g->last_variant))
        return HK_ERR_ARGUMENT;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->positions[i] < 0 || s->positions[i] / HK_PAGE >= g->max_pages)
            return HK_ERR_ARGUMENT;
        if (s->sequences[i] < 0 || s->sequences[i] >= g->n_seq)
            return HK_ERR_ARGUMENT;
        if (!feed && (s->tokens[i] < 0 || s->tokens[i] >= g->n_vocab))
            return HK_ERR_ARGUMENT;
    }
    for (int32_t i = 0; i < s->n_out; i++)
        if (s->outputs[i] < 0 || s->outputs[i] >= s->n)
            return HK_ERR_ARGUMENT;
    return HK_OK;
}

/* Brings the rows of the page table that the step reads up to date on the device. */
static int send_pages(hk_segment *g, const hk_slot *s, const int32_t *table) {
    for (int32_t i = 0; i < s->n; i++) {
        if (i + 1 < s->n && s->sequences[i + 1] == s->sequences[i])
            continue; /* the last row of a run reaches furthest */
        int64_t row = (int64_t)s->sequences[i] * g->max_pages;
        int32_t end = s->positions[i] / HK_PAGE + 1, first = 0;
        if (memcmp(g->mirror + row, table + row, end * sizeof(int32_t)) == 0)
            continue;
        while (g->mirror[row + first] == table[row + first])
            first++;
        int64_t at = row + first, bytes = (int64_t)(end - first) * sizeof(int32_t);
        memcpy(s->device->pages + at, table + at, bytes);
        memcpy(g->mirror + at, table + at, bytes);
        int status = hk_cuda_copy_to_device(g->pages + at * sizeof(int32_t), s->device->pages + at, bytes, g->stream);
        if (status) {
            g->mirror[at] = -1; /* not there after all */
            return status;
        }
    }
    return 0;
}

/* In the order of hk_field. */
static void pack(const hk_class *c, const hk_slot *s) {
    int32_t *to = (int32_t *)s->device->inputs;
    const int32_t *from[] = {NULL, s->tokens, s->positions, s->sequences, s->variants, s->outputs};
    to[c->at[HK_COUNTS]] = s->n;
    to[c->at[HK_COUNTS] + 1] = s->n_out;
    for (int f = HK_TOKENS; f < HK_N_FIELDS; f++)
        memcpy(to + c->at[f], from[f], (f == HK_OUTPUTS ? s->n_out : s->n) * sizeof(int32_t));
}

/* Puts the step's inputs where its graph reads them. */
static int send_inputs(hk_segment *g, const hk_class *c, const hk_slot *s, int feed) {
    if (feed && c->advances)
        return 0;
    pack(c, s);
    int status = hk_cuda_copy_to_device(c->inputs, s->device->inputs, c->input_bytes, g->stream);
    if (feed && status == 0)
        status = hk_cuda_copy_on_device(c->inputs + 4 * (uint64_t)c->at[HK_TOKENS], c->best, 4, g->stream);
    return status;
}

static int queue(hk_segment *g, hk_slot *s, const int32_t *table, int feed, int want) {
    struct hk_device_slot *d = s->device;
    int32_t k = 0;
    int status;
    while (g->classes[k].rows < s->n || g->classes[k].outputs < s->n_out)
        k++;
    const hk_class *c = want == HK_WANT_TOP ? &g->top : &g->classes[k];
    if (d->queued && (status = hk_cuda_event_wait(d->done))) /* its memory is still in use */
        return status;
    d->queued = 0;
    g->last = -1;
    if ((status = send_inputs(g, c, s, feed)) || (status = send_pages(g, s, table)) ||
        (status = hk_cuda_graph_launch(c->graph, g->stream)))
        return status;
    if (want == HK_WANT_LOGITS && s->n_out) {
        float *to = s->n_out <= d->n_few ? d->few : s->logits;
        size_t bytes = (size_t)s->n_out * g->logits_stride * sizeof(float);
        if ((status = hk_cuda_copy_to_host(to, g->logits, bytes, g->stream)))
            return status;
    }
    if ((status = hk_cuda_event_record(d->done, g->stream)))
        return status;
    g->last = s->n == 1 && s->n_out == 1 && want != HK_WANT_TOP ? k : -1;
    g->last_position = s->positions[0];
    g->last_sequence = s->sequences[0];
    g->last_variant = s->variants[0];
    d->queued = 1;
    d->of = k;
    d->want = want;
    return 0;
}

int hk_segment_queue(hk_segment *g, hk_slot *s, const int32_t *table, int feed, int want) {
    int status = check(g, s, feed);
    if (status)
        return status;
    if (want == HK_WANT_TOP && (g->top.graph == NULL || s->n != 1 || s->n_out != 1))
        return HK_ERR_ARGUMENT;
    if ((status = hk_cuda_enter(g->context)))
        return HK_ERR_DEVICE;
    status = queue(g, s, table, feed, want);
    hk_cuda_leave();
    return as_code(status);
}

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Asking costs about a microsecond. A step of a token is over in a few milliseconds at most, and is polled for; whoever
 * takes longer is looked at less often, so that the core is free for others. Signals are looked for every 10 ms. */
static int wait(const struct hk_device_slot *d, const atomic_int *cancel, int (*poll)(void)) {
    enum { POLLED = 4000000, NAP = 50000, SIGNALS = 10000000 };
    int64_t start = nanoseconds(), looked = start;
    for (;;) {
        int ready, status = hk_cuda_event_ready(d->done, &ready);
        if (status)
            return HK_ERR_DEVICE;
        if (ready)
            return HK_OK;
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed))
            return HK_CANCELLED;
        int64_t now = nanoseconds();
        if (poll && now - looked > SIGNALS) {
            looked = now;
            if (poll())
                return HK_CANCELLED;
        }
        if (now - start > POLLED)
            nanosleep(&(struct timespec){0, NAP}, NULL);
        else
            sched_yield();
    }
}

int hk_segment_wait(hk_segment *g, hk_slot *s, const atomic_int *cancel, int (*poll)(void)) {
    struct hk_device_slot *d = s->device;
    if (!d->queued)
        return HK_ERR_ARGUMENT;
    if (hk_cuda_enter(g->context))
        return HK_ERR_DEVICE;
    int rc = wait(d, cancel, poll);
    hk_cuda_leave();
    if (rc != HK_OK)
        return rc;
    const hk_class *c = &g->classes[d->of];
    for (int32_t i = 0; d->want == HK_WANT_BEST && i < s->n_out; i++) {
        int32_t position = s->positions[s->outputs[i]];
        const hk_chosen *found = c->chosen + (int64_t)(position % HK_CHOSEN_RING) * c->outputs + i;
        s->best[i] = found->best;
        s->bad[i] = found->best < 0;
        s->best_value[i] = found->value;
        s->best_lse[i] = found->lse;
    }
    d->queued = 0;
    return HK_OK;
}

int hk_segment_copy(hk_segment *g, uint64_t to, uint64_t from, int64_t bytes) {
    if (hk_cuda_enter(g->context))
        return HK_ERR_DEVICE;
    int status = hk_cuda_copy_on_device(to, from, bytes, g->stream);
    hk_cuda_leave();
    return as_code(status);
}

int hk_segment_fill(hk_segment *g, uint64_t at, int byte, int64_t bytes) {
    if (hk_cuda_enter(g->context))
        return HK_ERR_DEVICE;
    int status = hk_cuda_fill(at, (uint8_t)byte, bytes, g->stream);
    hk_cuda_leave();
    return as_code(status);
}
