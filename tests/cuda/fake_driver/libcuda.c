/* A libcuda.so.1 without a GPU: device memory is host memory, everything queued happens at once, and of all kernels
 * only those do something that make up a model whose next token is a hash of all tokens so far, read from the cache's
 * pages. What is wrong with a page table, a copy, a context or a queued step shows in the tokens, or as an error.
 *
 * Environment: FAKE_CUDA_DEVICES (1), FAKE_CUDA_MIB memory (1024), FAKE_CUDA_VERSION (13000), FAKE_CUDA_LOAD status of
 * loading images (0), FAKE_CUDA_SLOW microseconds until a step is seen to have ended (0), FAKE_CUDA_BREAK number of the
 * graph launch that fails and breaks the context (never), FAKE_CUDA_MAPPED: kernels reach host memory, and every stream
 * has a thread that does what was queued (0), FAKE_CUDA_MUTE: kernels that send never say so (0), FAKE_CUDA_REGISTER:
 * status of registering memory (0).
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/hk_args.h"

enum { INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NO_CONTEXT = 201, NOT_READY = 600, BROKEN = 700 };
#define API __attribute__((visibility("default"))) int

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

/* contexts: a stack in every thread */
static _Thread_local void *stack[16];
static _Thread_local int depth;
static int broken, primary, launched;
#define NEED                                                                                                           \
    if (!depth || !stack[depth - 1])                                                                                   \
        return NO_CONTEXT;                                                                                             \
    if (broken)                                                                                                        \
    return BROKEN

API cuInit(unsigned flags) { return flags || setting("FAKE_CUDA_DEVICES", 1) < 1 ? NO_DEVICE : 0; }
API cuDriverGetVersion(int *v) { return *v = (int)setting("FAKE_CUDA_VERSION", 13000), 0; }
API cuGetErrorName(int status, const char **name) {
    static _Thread_local char text[32];
    snprintf(text, sizeof text, status == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_%d", status);
    return *name = text, 0;
}
API cuGetErrorString(int status, const char **text) { return (void)status, *text = "as the test asked", 0; }
API cuDeviceGetCount(int *n) { return *n = (int)setting("FAKE_CUDA_DEVICES", 1), 0; }
API cuDeviceGet(int *d, int n) { return *d = n, n < 0 || n >= setting("FAKE_CUDA_DEVICES", 1) ? INVALID : 0; }
API cuDeviceGetName(char *name, int n, int d) { return snprintf(name, n, "Fake %d", d), 0; }
API cuDeviceTotalMem_v2(size_t *n, int d) { return (void)d, *n = (size_t)setting("FAKE_CUDA_MIB", 1024) << 20, 0; }
API cuDeviceGetAttribute(int *value, int attribute, int d) {
    return (void)d,
           *value = attribute == 75                         ? 9
                    : attribute == 16                       ? 4
                    : attribute == 113                      ? 1
                    : (attribute == 19) | (attribute == 41) ? (int)setting("FAKE_CUDA_MAPPED", 0)
                                                            : 0,
           0;
}
API cuDevicePrimaryCtxRetain(void **c, int d) { return (void)d, primary++, *c = &primary, 0; }
API cuDevicePrimaryCtxRelease_v2(int d) { return (void)d, primary--, 0; }
API cuCtxGetCurrent(void **c) { return *c = depth ? stack[depth - 1] : NULL, 0; }
API cuCtxPushCurrent_v2(void *c) { return depth == 16 ? INVALID : (stack[depth++] = c, 0); }
API cuCtxPopCurrent_v2(void **c) { return depth ? (*c = stack[--depth], 0) : NO_CONTEXT; }
API cuCtxGetDevice(int *d) {
    NEED;
    return *d = 0, 0;
}

/* memory */
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
API cuMemAlloc_v2(uint64_t *at, size_t n) {
    NEED;
    pthread_mutex_lock(&lock);
    int fits = used + n <= (size_t)setting("FAKE_CUDA_MIB", 1024) << 20;
    used += fits ? n : 0;
    pthread_mutex_unlock(&lock);
    if (!fits)
        return OUT_OF_MEMORY;
    size_t *p = aligned_alloc(256, (n + 256 + 255) / 256 * 256);
    p[0] = n;
    memset(p + 32, 0xFF, n);
    return *at = (uint64_t)(p + 32), 0;
}
API cuMemFree_v2(uint64_t at) {
    NEED;
    size_t *p = (size_t *)at - 32;
    pthread_mutex_lock(&lock);
    used -= p[0];
    pthread_mutex_unlock(&lock);
    memset(p, 0xEE, p[0] + 256);
    return free(p), 0;
}
API cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    NEED;
    *total = (size_t)setting("FAKE_CUDA_MIB", 1024) << 20;
    return *free_bytes = *total - used, 0;
}
static struct {
    char *at;
    size_t n;
} locked[4096]; /* page-locked host memory */
API cuMemHostAlloc(void **p, size_t n, unsigned flags) {
    NEED;
    (void)flags, *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < 4096 && locked[i].at)
        i++;
    if (i < 4096)
        locked[i].at = *p, locked[i].n = n;
    return pthread_mutex_unlock(&lock), i < 4096 ? 0 : OUT_OF_MEMORY;
}
static int is_locked(const char *p) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 4096; i++)
        found |= locked[i].at && p >= locked[i].at && p < locked[i].at + locked[i].n;
    return pthread_mutex_unlock(&lock), found;
}
API cuMemFreeHost(void *p) {
    NEED;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 4096; i++)
        if (locked[i].at == p)
            locked[i].at = NULL;
    pthread_mutex_unlock(&lock);
    return free(p), 0;
}
static int registered; /* ranges */
API fake_registered(void) { return registered; }
API cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
    NEED;
    int status = (int)setting("FAKE_CUDA_REGISTER", 0);
    if ((uint64_t)p % 4096 || n % 4096 || !flags)
        return INVALID;
    registered += status == 0;
    return status;
}
API cuMemHostUnregister(void *p) {
    NEED;
    return (void)p, registered--, 0;
}

/* streams: with FAKE_CUDA_MAPPED a queue and a thread, else everything happens at once */
typedef struct plane {
    size_t x, y;
    int kind;
    char *host;
    uint64_t device;
    void *array;
    size_t pitch;
} plane;
typedef struct planes {
    plane from, to;
    size_t width, height;
} planes;
typedef struct event {
    int recorded, happened; /* how often */
    double seen;
} event;
typedef struct job {
    enum { COPY, ROWS, FILL, GRAPH, EVENT, CALL, LAUNCH, END } kind;
    uint64_t to, from;
    size_t n;
    int byte;
    planes rows;
    void *what;
    void (*function)(void *);
    struct job *next;
} job;
typedef struct graph { /* what was queued, to any stream: no test of the edges between them */
    job nodes[8192];
    int n;
} graph;
static _Thread_local graph *capture;
typedef struct stream {
    pthread_t thread;
    job *first, *last;
    int running, asynchronous;
} stream;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static void run_graph(void *what), run_kernel(void *what);
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
static void work(const job *j) {
    event *e = j->what;
    const planes *r = &j->rows;
    switch (j->kind) {
    case COPY:
        memmove((void *)j->to, (void *)j->from, j->n);
        break;
    case ROWS:
        for (size_t i = 0; i < r->height; i++) {
            char *from = r->from.kind == 1 ? r->from.host : (char *)r->from.device;
            char *to = r->to.kind == 1 ? r->to.host : (char *)r->to.device;
            memmove(to + i * r->to.pitch, from + i * r->from.pitch, r->width);
        }
        break;
    case FILL:
        memset((void *)j->to, j->byte, j->n);
        break;
    case GRAPH:
        run_graph(j->what);
        break;
    case EVENT:
        pthread_mutex_lock(&lock);
        e->seen = now() + (double)setting("FAKE_CUDA_SLOW", 0);
        e->happened++;
        pthread_mutex_unlock(&lock);
        break;
    case CALL:
        j->function(j->what);
        break;
    case LAUNCH:
        run_kernel(j->what);
        break;
    case END:
        break;
    }
}
static void *serve(void *arg) {
    stream *s = arg;
    for (int end = 0; !end;) {
        pthread_mutex_lock(&lock);
        while (!s->first)
            pthread_cond_wait(&moved, &lock);
        job *j = s->first;
        s->first = j->next;
        s->running = 1;
        pthread_mutex_unlock(&lock);
        work(j);
        end = j->kind == END;
        free(j);
        pthread_mutex_lock(&lock);
        s->running = 0;
        pthread_cond_broadcast(&moved);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}
API cuStreamSynchronize(void *p);
static int queue(void *to, job j) {
    stream *s = to;
    NEED;
    if (capture)
        return capture->nodes[capture->n++] = j, 0;
    if (!s || !s->asynchronous)
        return work(&j), 0;
    job *made = malloc(sizeof j);
    *made = j;
    pthread_mutex_lock(&lock);
    if (s->first)
        s->last->next = made;
    else
        s->first = made;
    s->last = made;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
    return 0;
}
API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) {
    return queue(s, (job){.kind = COPY, .to = to, .from = (uint64_t)from, .n = n});
}
API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) {
    int status = queue(s, (job){.kind = COPY, .to = (uint64_t)to, .from = from, .n = n});
    /* To memory that is not page-locked: the driver waits for it. */
    return status || is_locked(to) ? status : cuStreamSynchronize(s);
}
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s) {
    return queue(s, (job){.kind = COPY, .to = to, .from = from, .n = n});
}
API cuMemcpy2DAsync_v2(const planes *c, void *s) { return queue(s, (job){.kind = ROWS, .rows = *c}); }
API cuMemsetD8Async(uint64_t at, unsigned char byte, size_t n, void *s) {
    return queue(s, (job){.kind = FILL, .to = at, .byte = byte, .n = n});
}

/* modules and kernels: a function is its name */
API cuModuleLoadData(void **m, const void *image) {
    NEED;
    return (void)image, *m = &used, (int)setting("FAKE_CUDA_LOAD", 0);
}
API cuModuleUnload(void *m) { return (void)m, 0; }
API cuModuleGetFunction(void **f, void *m, const char *name) { return (void)m, *f = strdup(name), 0; }
API cuFuncSetAttribute(void *f, int attribute, int value) { return (void)f, (void)attribute, (void)value, 0; }
API cuFuncGetAttribute(int *value, int attribute, void *f) { return (void)f, (void)attribute, *value = 0, 0; }

typedef struct launch {
    const char *name;
    void *args;
} launch;
static _Thread_local uint32_t hashes[1 << 14]; /* of the step's rows */

static int32_t *cell(const hk_step *s, const hk_cache *c, int row, int position) {
    int page = s->pages[s->sequences[row] * s->page_stride + position / 128];
    return (int32_t *)(c->pages + page * c->page_bytes) + position % 128;
}
/* Of all blocks only the first one's keys are remembered: as tokens. */
static void store(const hk_step *s, const hk_cache *c) {
    for (int i = 0; c->pages && !c->block_offset && i < s->counts[0]; i++)
        *cell(s, c, i, s->positions[i]) = s->tokens[i];
}
static void find_top(const hk_topk_args *a);
static void move_rows(const hk_link_args *a, int receive) {
    for (int p = 0; p < a->n_rows; p++)
        for (int i = 0; i < a->step.counts[a->rows[p].outputs]; i++) {
            const hk_link_rows *r = &a->rows[p];
            float *here = r->at + i * r->stride, *there = r->host + (long long)i * r->width;
            memcpy(receive ? here : there, receive ? there : here, r->width * sizeof(float));
        }
}
static void cross(const hk_link_args *a, int receive) {
    volatile const int *flag = a->flag, *abort = a->abort;
    int step = a->step.counts[2];
    while (receive && *flag != step && *abort != step)
        sched_yield();
    __sync_synchronize();
    move_rows(a, receive);
    __sync_synchronize();
    if (!receive && !setting("FAKE_CUDA_MUTE", 0))
        *a->flag = step;
}
static void execute(const launch *l) {
    if (!strcmp(l->name, "hk_topk"))
        find_top(l->args);
    else if (!strncmp(l->name, "hk_link", 7))
        cross(l->args, !strcmp(l->name, "hk_link_receive"));
    else if (!strcmp(l->name, "hk_observe")) {
        const hk_observe_args *a = l->args; /* as though everything were 1 */
        for (long long i = 0; i <= a->width; i++)
            a->sums[i] += a->step.counts[a->rows_are_outputs];
    } else if (!strcmp(l->name, "hk_heads")) {
        const hk_heads_args *a = l->args;
        store(&a->step, &a->cache);
    } else if (!strncmp(l->name, "hk_decode", 9) || !strncmp(l->name, "hk_prefill", 10)) {
        const hk_attend_args *a = l->args;
        for (int i = 0; !a->cache.block_offset && i < a->step.counts[0]; i++) {
            uint32_t h = 7;
            for (int p = 0; p <= a->step.positions[i]; p++)
                h = h * 31 + (uint32_t)*cell(&a->step, &a->cache, i, p);
            hashes[i] = h;
        }
    } else if (!strcmp(l->name, "hk_argmax")) {
        const hk_argmax_args *a = l->args;
        for (int i = 0; i < a->step.counts[1]; i++) {
            float *row = (float *)a->logits + i * a->stride;
            int best = (int)(hashes[a->step.outputs[i]] % (uint32_t)a->width);
            memset(row, 0, a->width * sizeof(float));
            row[best] = 5;
            a->best[i] = best;
            a->value[2 * i] = 5;
            a->value[2 * i + 1] = logf(expf(5) + (float)(a->width - 1));
            int position = a->step.positions[a->step.outputs[i]];
            hk_choice chosen = {best, position, 5, a->value[2 * i + 1]};
            if (a->to.host)
                a->to.host[position % HK_CHOICES * a->to.host_stride + i] = chosen;
            if (a->to.next_tokens) {
                a->to.next_tokens[i] = best;
                a->to.next_positions[i] = position + 1;
            }
        }
    }
}
static void find_top(const hk_topk_args *a) {
    int best = (int)(hashes[a->step.outputs[0]] % (uint32_t)a->width);
    a->ids[0] = best; /* and then the others in order */
    a->values[0] = 5;
    for (int i = 1; i < a->k; i++) {
        int id = i - (i <= best);
        a->ids[i] = i < a->width ? id : -1;
        a->values[i] = i < a->width ? 0 : -INFINITY;
    }
    a->total[0] = 5;
    a->total[1] = logf(expf(5) + (float)(a->width - 1));
}
typedef struct config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
} config;
API cuLaunchKernelEx(const config *c, void *f, void **params, void **extra) {
    NEED;
    (void)c, (void)params;
    size_t n = *(size_t *)extra[3];
    launch l = {f, memcpy(malloc(n), extra[1], n)};
    if (capture)
        return queue(NULL, (job){.kind = LAUNCH, .what = memcpy(malloc(sizeof l), &l, sizeof l)});
    return execute(&l), free(l.args), 0;
}
API cuStreamBeginCapture_v2(void *s, int mode) {
    NEED;
    return (void)s, (void)mode, capture = calloc(1, sizeof *capture), 0;
}
API cuStreamEndCapture(void *s, void **g) { return (void)s, *g = capture, capture = NULL, 0; }
API cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long flags) { return (void)flags, *e = g, 0; }
API cuGraphDestroy(void *g) { return (void)g, 0; }
API cuGraphExecDestroy(void *e) {
    NEED;
    return free(e), 0;
}
static void run_kernel(void *what) { execute(what); }
static void run_graph(void *what) {
    graph *g = what;
    for (int i = 0; i < g->n; i++)
        work(&g->nodes[i]);
}
API cuGraphLaunch(void *e, void *s) {
    NEED;
    pthread_mutex_lock(&lock);
    broken |= ++launched == setting("FAKE_CUDA_BREAK", -1);
    pthread_mutex_unlock(&lock);
    return broken ? BROKEN : queue(s, (job){.kind = GRAPH, .what = e});
}

static int wait_for(const int *count, int n) {
    pthread_mutex_lock(&lock);
    while (*count < n)
        pthread_cond_wait(&moved, &lock);
    return pthread_mutex_unlock(&lock), 0;
}
API cuStreamCreate(void **to, unsigned flags) {
    NEED;
    stream *s = calloc(1, sizeof *s);
    s->asynchronous = (int)setting("FAKE_CUDA_MAPPED", 0);
    if (s->asynchronous)
        pthread_create(&s->thread, NULL, serve, s);
    return (void)flags, *to = s, 0;
}
API cuStreamCreateWithPriority(void **to, unsigned flags, int priority) {
    return (void)priority, cuStreamCreate(to, flags);
}
API cuStreamWaitEvent(void *s, void *e, unsigned flags) {
    NEED;
    return (void)e, (void)flags, capture || !((stream *)s)->asynchronous ? 0 : INVALID; /* all is done, if not queued */
}
API cuLaunchHostFunc(void *s, void (*function)(void *), void *argument) {
    return queue(s, (job){.kind = CALL, .function = function, .what = argument});
}
API cuStreamDestroy_v2(void *p) {
    NEED;
    stream *s = p;
    queue(s, (job){.kind = END});
    if (s->asynchronous)
        pthread_join(s->thread, NULL);
    return free(s), 0;
}
API cuStreamSynchronize(void *p) {
    NEED;
    stream *s = p;
    pthread_mutex_lock(&lock);
    while (s && (s->first || s->running))
        pthread_cond_wait(&moved, &lock);
    return pthread_mutex_unlock(&lock), 0;
}
API cuEventCreate(void **e, unsigned flags) {
    NEED;
    return (void)flags, *e = calloc(1, sizeof(event)), 0;
}
API cuEventDestroy_v2(void *e) {
    NEED;
    return free(e), 0;
}
API cuEventRecord(void *e, void *s) {
    if (capture)
        return 0;
    ((event *)e)->recorded++;
    return queue(s, (job){.kind = EVENT, .what = e});
}
API cuEventQuery(void *p) {
    NEED;
    event *e = p;
    pthread_mutex_lock(&lock);
    int ready = e->happened == e->recorded && now() >= e->seen;
    return pthread_mutex_unlock(&lock), ready ? 0 : NOT_READY;
}
API cuEventSynchronize(void *p) {
    NEED;
    event *e = p;
    wait_for(&e->happened, e->recorded);
    while (now() < e->seen)
        ;
    return 0;
}
API cuEventElapsedTime(float *ms, void *a, void *b) {
    return *ms = (float)(((event *)b)->seen - ((event *)a)->seen) / 1000, 0;
}
