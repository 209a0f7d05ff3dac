#include "hk_link.h"

#include <string.h>

#include "hk_cuda_driver.h"

#define SHARED_BYTES (128 << 10) /* from here on all threads copy */

static int64_t rows_of(const hk_crossing *x, const hk_link_part *p) { return p->outputs ? x->slot->n_out : x->slot->n; }

static int64_t bytes_of(const hk_crossing *x, const hk_transfer *t) {
    int64_t n = 0;
    for (int i = 0; i < t->n_parts; i++)
        n += rows_of(x, &t->parts[i]) * t->parts[i].width * (int64_t)sizeof(float);
    return n;
}

static float *staging(const hk_crossing *x, const hk_link_part *p) { return x->linked ? p->linked : p->area; }

/* Copies between main memory and page-locked memory; a thread's share of the rows, or all of them. */
static void copy_rows(const hk_crossing *x, const hk_transfer *t, int out, int shared) {
    for (int i = 0; i < t->n_parts; i++) {
        const hk_link_part *p = &t->parts[i];
        const hk_end *end = out ? &p->from : &p->to;
        int64_t b = 0, e = rows_of(x, p);
        if (shared)
            hk_split(e, x->thread, x->team->n, &b, &e);
        for (int64_t r = b; r < e; r++) {
            float *host = end->host + r * end->stride, *locked = staging(x, p) + r * p->width;
            memcpy(out ? locked : host, out ? host : locked, p->width * sizeof(float));
        }
    }
}

static int copy_device(const hk_crossing *x, const hk_transfer *t, int out) {
    hk_gpu *g = (out ? t->from : t->to)->gpu;
    if (hk_cuda_enter(g->context))
        return HK_ERR_DEVICE;
    int status = 0;
    for (int i = 0; i < t->n_parts && status == 0; i++) {
        const hk_link_part *p = &t->parts[i];
        const hk_end *end = out ? &p->from : &p->to;
        size_t width = p->width * sizeof(float), pitch = end->stride * sizeof(float), n = rows_of(x, p);
        if (n)
            status = hk_cuda_copy_rows(p->area, end->device, width, pitch, n, out, g->stream);
    }
    if (status == 0)
        status = hk_cuda_event_record(out ? t->sent : t->received, g->stream);
    hk_cuda_leave();
    return status ? HK_ERR_DEVICE : HK_OK;
}

/* The area may be written again once the GPU that read it last has done so. */
static int until_free(const hk_crossing *x, hk_area *area) {
    hk_transfer *last = area->read_by;
    if (last == NULL)
        return HK_OK;
    int rc = hk_gpu_wait(last->to->gpu, last->received, x->cancel, x->poll);
    if (rc == HK_OK)
        area->read_by = NULL;
    return rc;
}

/* Until the kernels of a GPU have written what they send. */
static int until_flagged(const hk_crossing *x, const hk_transfer *t) {
    enum { LOOK = 1000000, SIGNALS = 10000000 };
    hk_gpu *g = t->from->gpu;
    int64_t start = 0, looked = 0, polled = 0;
    for (;;) {
        for (int i = 0; i < 256; i++) {
            if (atomic_load_explicit(t->flag, memory_order_acquire) == x->epoch)
                return HK_OK;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        if (atomic_load_explicit(x->cancel, memory_order_relaxed))
            return HK_CANCELLED;
        int64_t now = hk_now();
        if (!start)
            start = looked = polled = now;
        if (x->poll && now - polled > SIGNALS) {
            polled = now;
            if (x->poll())
                return HK_CANCELLED;
        }
        if (now - start > hk_patience)
            return HK_ERR_HUNG;
        if (now - looked < LOOK)
            continue;
        looked = now; /* a context that is broken flags nothing */
        int ready = 0;
        if (hk_cuda_enter(g->context))
            return HK_ERR_DEVICE;
        int status = hk_cuda_event_ready(x->slot->devices[g->index]->done, &ready);
        hk_cuda_leave();
        if (status)
            return HK_ERR_DEVICE;
        if (ready && atomic_load_explicit(t->flag, memory_order_acquire) != x->epoch)
            return HK_ERR_HUNG;
    }
}

/* Thread 0 has `rc`; everybody learns whether it goes on. */
static int together(const hk_crossing *x, int rc) {
    if (rc != HK_OK)
        atomic_store(x->cancel, 1);
    int stop = hk_team_sync(x->team);
    return rc != HK_OK ? rc : stop ? HK_CANCELLED : HK_OK;
}

int hk_link_from_device(const hk_crossing *x, hk_transfer *t) {
    if (x->linked)
        return HK_OK;
    int rc = until_free(x, t->area);
    return rc == HK_OK ? copy_device(x, t, 1) : rc;
}

int hk_link_to_device(const hk_crossing *x, hk_transfer *t) {
    int rc = HK_OK;
    if (x->linked)
        return HK_OK;
    if (t->from != NULL)
        rc = hk_gpu_wait(t->from->gpu, t->sent, x->cancel, x->poll);
    rc = rc == HK_OK ? copy_device(x, t, 0) : rc;
    if (rc == HK_OK)
        t->area->read_by = t;
    return rc;
}

int hk_link_from_host(const hk_crossing *x, hk_transfer *t, int awaited) {
    int rc = HK_OK, shared = bytes_of(x, t) >= SHARED_BYTES;
    if (x->thread == 0 && !x->linked)
        rc = until_free(x, t->area);
    if (shared && !x->linked && (rc = together(x, rc)) != HK_OK)
        return rc;
    if (rc == HK_OK && (shared || x->thread == 0))
        copy_rows(x, t, 1, shared);
    if (x->linked && !shared && x->thread == 0)
        atomic_store_explicit(t->flag, x->epoch, memory_order_release);
    if (x->linked && !shared && awaited)
        return HK_OK;
    rc = together(x, rc); /* what was sent may now be overwritten */
    if (x->linked && shared && x->thread == 0 && rc == HK_OK)
        atomic_store_explicit(t->flag, x->epoch, memory_order_release);
    return rc;
}

int hk_link_to_host(const hk_crossing *x, hk_transfer *t) {
    int rc = HK_OK, shared = bytes_of(x, t) >= SHARED_BYTES;
    if (x->thread == 0 && t->from != NULL)
        rc = x->linked ? until_flagged(x, t) : hk_gpu_wait(t->from->gpu, t->sent, x->cancel, x->poll);
    if (shared && (rc = together(x, rc)) != HK_OK)
        return rc;
    if (rc == HK_OK && (shared || x->thread == 0))
        copy_rows(x, t, 0, shared);
    return together(x, rc);
}
