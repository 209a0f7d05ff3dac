#include "hk_gpu.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "hk_cuda_driver.h"

_Atomic int64_t hk_patience = 60000000000;

int64_t hk_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Asking costs about a microsecond. A step of a token is over in a few milliseconds at most, and is polled for; whoever
 * takes longer is looked at less often, so that the core is free for others. Signals are looked for every 10 ms. */
static int wait(void *event, const atomic_int *cancel, int (*poll)(void)) {
    enum { POLLED = 4000000, NAP = 50000, SIGNALS = 10000000 };
    int64_t start = hk_now(), looked = start;
    for (;;) {
        int ready, status = hk_cuda_event_ready(event, &ready);
        if (status)
            return HK_ERR_DEVICE;
        if (ready)
            return HK_OK;
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed))
            return HK_CANCELLED;
        int64_t now = hk_now();
        if (poll && now - looked > SIGNALS) {
            looked = now;
            if (poll())
                return HK_CANCELLED;
        }
        if (now - start > hk_patience)
            return HK_ERR_HUNG;
        if (now - start > POLLED)
            nanosleep(&(struct timespec){0, NAP}, NULL);
        else
            sched_yield();
    }
}

int hk_gpu_wait(hk_gpu *g, void *event, const atomic_int *cancel, int (*poll)(void)) {
    if (hk_cuda_enter(g->context))
        return HK_ERR_DEVICE;
    int rc = wait(event, cancel, poll);
    hk_cuda_leave();
    return rc;
}

int hk_gpu_send_pages(hk_gpu *g, const hk_slot *s, const int32_t *table) {
    struct hk_device_slot *d = s->devices[g->index];
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
        memcpy(d->pages + at, table + at, bytes);
        memcpy(g->mirror + at, table + at, bytes);
        int status = hk_cuda_copy_to_device(g->pages + at * sizeof(int32_t), d->pages + at, bytes, g->stream);
        if (status) {
            g->mirror[at] = -1; /* not there after all */
            return status;
        }
    }
    return 0;
}

int hk_gpu_copy(hk_gpu *g, uint64_t to, uint64_t from, int64_t bytes) {
    if (hk_cuda_enter(g->context))
        return HK_ERR_DEVICE;
    int status = hk_cuda_copy_on_device(to, from, bytes, g->stream);
    hk_cuda_leave();
    return status ? HK_ERR_DEVICE : HK_OK;
}

int hk_gpu_fill(hk_gpu *g, uint64_t at, int byte, int64_t bytes) {
    if (hk_cuda_enter(g->context))
        return HK_ERR_DEVICE;
    int status = hk_cuda_fill(at, (uint8_t)byte, bytes, g->stream);
    hk_cuda_leave();
    return status ? HK_ERR_DEVICE : HK_OK;
}
