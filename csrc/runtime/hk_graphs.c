#include "hk_graphs.h"

#include <string.h>

#include "hk_cuda_driver.h"

static int as_code(int status) { return status ? HK_ERR_DEVICE : HK_OK; }

const hk_class *hk_graphs_class(const hk_graphs *g, const hk_slot *s) {
    int32_t k = 0;
    while (k < g->n_classes - 1 && (g->classes[k].rows < s->n || g->classes[k].outputs < s->n_out))
        k++;
    return &g->classes[k];
}

/* Nothing that a kernel would index with is taken on trust. */
static int check(const hk_graphs *graphs, const hk_slot *s, int feed) {
    const hk_gpu *g = graphs->gpu;
    const hk_class *most = &graphs->classes[graphs->n_classes - 1];
    if (graphs->n_classes == 0 || s->devices[g->index] == NULL || s->n < 1 || s->n > most->rows || s->n_out < 0 ||
        s->n_out > most->outputs)
        return HK_ERR_ARGUMENT;
    if (feed && (s->n != 1 || s->n_out != 1 || !g->last || s->positions[0] != g->last_position + 1 ||
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

/* In the order of hk_field. */
static void pack(const hk_class *c, const hk_slot *s, int32_t *to, int32_t epoch) {
    const int32_t *from[] = {NULL, s->tokens, s->positions, s->sequences, s->variants, s->outputs};
    to[c->at[HK_COUNTS]] = s->n;
    to[c->at[HK_COUNTS] + 1] = s->n_out;
    to[c->at[HK_COUNTS] + 2] = epoch;
    for (int f = HK_TOKENS; f < HK_N_FIELDS; f++)
        memcpy(to + c->at[f], from[f], (f == HK_OUTPUTS ? s->n_out : s->n) * sizeof(int32_t));
}

/* Puts the step's inputs where its graph reads them. */
static int send_inputs(hk_gpu *g, const hk_class *c, const hk_slot *s, int32_t epoch, int feed) {
    uint8_t *inputs = s->devices[g->index]->inputs;
    if (feed && c->advances)
        return 0;
    pack(c, s, (int32_t *)inputs, epoch);
    int status = hk_cuda_copy_to_device(c->inputs, inputs, c->input_bytes, g->stream);
    if (feed && status == 0)
        status = hk_cuda_copy_on_device(c->inputs + 4 * (uint64_t)c->at[HK_TOKENS], c->best, 4, g->stream);
    return status;
}

static const hk_class *class_of(const hk_graphs *graphs, const struct hk_device_slot *d) {
    return d->want == HK_WANT_TOP ? &graphs->top : &graphs->classes[d->of];
}

static int begin(hk_graphs *graphs, hk_slot *s, const int32_t *table, int32_t epoch, int feed, int want) {
    hk_gpu *g = graphs->gpu;
    struct hk_device_slot *d = s->devices[g->index];
    int status;
    if (d->queued && (status = hk_cuda_event_wait(d->done))) /* its memory is still in use */
        return status;
    d->queued = 0;
    g->last = 0;
    d->of = hk_graphs_class(graphs, s) - graphs->classes;
    d->want = want;
    if ((status = send_inputs(g, class_of(graphs, d), s, epoch, feed)))
        return status;
    return hk_gpu_send_pages(g, s, table);
}

static int launch(hk_graphs *graphs, hk_slot *s, int32_t segment) {
    const hk_class *c = class_of(graphs, s->devices[graphs->gpu->index]);
    return hk_cuda_graph_launch(c->graphs[segment], graphs->gpu->stream);
}

static int end(hk_graphs *graphs, hk_slot *s) {
    hk_gpu *g = graphs->gpu;
    struct hk_device_slot *d = s->devices[g->index];
    int status;
    if (d->want == HK_WANT_LOGITS && g->logits && s->n_out) {
        float *to = s->n_out <= d->n_few ? d->few : s->logits;
        size_t bytes = (size_t)s->n_out * g->logits_stride * sizeof(float);
        if ((status = hk_cuda_copy_to_host(to, g->logits, bytes, g->stream)))
            return status;
    }
    if ((status = hk_cuda_event_record(d->done, g->stream)))
        return status;
    g->last = s->n == 1 && s->n_out == 1 && d->want != HK_WANT_TOP && graphs->n_segments == 1;
    g->last_position = s->positions[0];
    g->last_sequence = s->sequences[0];
    g->last_variant = s->variants[0];
    d->queued = 1;
    return 0;
}

int hk_graphs_begin(hk_graphs *g, hk_slot *s, const int32_t *table, int32_t epoch, int feed, int want) {
    int status = check(g, s, feed);
    if (status)
        return status;
    if (want == HK_WANT_TOP && (g->top.graphs == NULL || s->n != 1 || s->n_out != 1))
        return HK_ERR_ARGUMENT;
    if (hk_cuda_enter(g->gpu->context))
        return HK_ERR_DEVICE;
    status = begin(g, s, table, epoch, feed, want);
    hk_cuda_leave();
    return as_code(status);
}

int hk_graphs_launch(hk_graphs *g, hk_slot *s, int32_t segment) {
    if (hk_cuda_enter(g->gpu->context))
        return HK_ERR_DEVICE;
    int status = launch(g, s, segment);
    hk_cuda_leave();
    return as_code(status);
}

int hk_graphs_mark(hk_graphs *g, hk_slot *s) {
    if (hk_cuda_enter(g->gpu->context))
        return HK_ERR_DEVICE;
    int status = hk_cuda_event_record(s->devices[g->gpu->index]->done, g->gpu->stream);
    hk_cuda_leave();
    return as_code(status);
}

int hk_graphs_end(hk_graphs *g, hk_slot *s) {
    if (hk_cuda_enter(g->gpu->context))
        return HK_ERR_DEVICE;
    int status = end(g, s);
    hk_cuda_leave();
    return as_code(status);
}

int hk_graphs_queue(hk_graphs *g, hk_slot *s, const int32_t *table, int feed, int want) {
    if (g->n_segments != 1)
        return HK_ERR_ARGUMENT;
    int status = check(g, s, feed);
    if (status)
        return status;
    if (want == HK_WANT_TOP && (g->top.graphs == NULL || s->n != 1 || s->n_out != 1))
        return HK_ERR_ARGUMENT;
    if (hk_cuda_enter(g->gpu->context))
        return HK_ERR_DEVICE;
    (void)((status = begin(g, s, table, 0, feed, want)) || (status = launch(g, s, 0)) || (status = end(g, s)));
    hk_cuda_leave();
    return as_code(status);
}

int hk_graphs_wait(hk_graphs *g, hk_slot *s, const atomic_int *cancel, int (*poll)(void)) {
    struct hk_device_slot *d = s->devices[g->gpu->index];
    if (!d->queued)
        return HK_ERR_ARGUMENT;
    int rc = hk_gpu_wait(g->gpu, d->done, cancel, poll);
    if (rc != HK_OK)
        return rc;
    const hk_class *c = &g->classes[d->of];
    for (int32_t i = 0; c->chosen && d->want == HK_WANT_BEST && i < s->n_out; i++) {
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
