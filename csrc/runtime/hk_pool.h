/* The one thread pool of the process.
 *
 * A call runs one function on n threads, the caller being thread 0, as one parallel region: a whole tape is one region,
 * and its operations are separated by barriers instead of by separate hand-offs. Waiting threads spin for a few tens of
 * microseconds (the gap between two decode steps), then sleep on a futex; when there are more threads than cores they
 * sleep at once. Regions of several callers queue on a mutex.
 */
#ifndef HK_POOL_H
#define HK_POOL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HK_OK = 0,
    HK_CANCELLED = 1,
    HK_ERR_THREADS = -1, /* a thread count out of range, or the system refused to start one */
    HK_ERR_MEMORY = -2,
    HK_ERR_ARGUMENT = -3,
    HK_ERR_DEVICE = -4, /* of the CUDA driver: hk_cuda_error() says more, in the same thread */
    HK_ERR_HUNG = -5    /* a device did not do in time what it was asked for */
};

#define HK_MAX_THREADS 256

typedef struct hk_team {
    int n;                    /* threads of this region */
    const atomic_int *cancel; /* word read once per barrier, or NULL */
    void *impl;
} hk_team;

typedef void (*hk_region_fn)(void *arg, int thread, hk_team *team);

/* Runs fn(arg, thread, team) on n threads and returns when all have finished. */
int hk_pool_run(int n, const atomic_int *cancel, hk_region_fn fn, void *arg);

/* Waits for all threads of the region. Returns the cancel word as the last thread to arrive saw it, so that all threads
 * take the same decision. */
int hk_team_sync(hk_team *team);

/* For the rest of the region: how long threads spin at a barrier before they sleep. Whoever has slept comes late to the
 * next barrier too, where the others then sleep: where thread 0 waits for a device often and briefly, a hand-over would
 * cost several times its own time. */
void hk_pool_spin(int64_t ns);

/* The private scratch memory of a thread of the region that is running: HK_SCRATCH_BYTES, 64-byte aligned. */
uint8_t *hk_pool_scratch(int thread);

/* Cores that this process may use; with more threads than that, threads do not spin. */
void hk_pool_set_cores(int n);
int hk_pool_cores(void);
/* Threads that exist, callers not counted. */
int hk_pool_workers(void);

/* Layout of the scratch memory. */
#define HK_SCRATCH_GEMM  0
#define HK_SCRATCH_ATTN  (512 * 1024)
#define HK_SCRATCH_TILE  (1024 * 1024)
#define HK_TILE_BYTES    (512 * 1024)
#define HK_SCRATCH_HEADS (HK_SCRATCH_TILE + HK_TILE_BYTES)
#define HK_SCRATCH_PANEL (HK_SCRATCH_HEADS + 2048 * 1024)
#define HK_PANEL_SCRATCH (2048 * 1024) /* panels of weights that stay raw: at least one must fit */
#define HK_SCRATCH_BYTES (HK_SCRATCH_PANEL + HK_PANEL_SCRATCH)

#endif
