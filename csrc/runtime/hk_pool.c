#define _GNU_SOURCE
#include "hk_pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <limits.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hk_memory.h"

#define SPIN_BARRIER_NS 30000 /* operations of one step: the others are at most a task behind */
#define SPIN_IDLE_NS    50000 /* between two decode steps: sampling and the caller's own work */

typedef struct worker {
    _Alignas(128) atomic_uint ticket; /* counts the regions that this worker was called to */
    atomic_int sleeping;
    int index;
} worker;

static struct {
    pthread_mutex_t lock; /* one region at a time */
    worker workers[HK_MAX_THREADS];
    uint8_t *scratch[HK_MAX_THREADS];
    int n_workers;
    atomic_int cores;
    int atfork_set;
    /* the region */
    hk_region_fn fn;
    void *arg;
    hk_team team;
    atomic_int may_spin;
    _Atomic int64_t spin_ns; /* at barriers */
    atomic_int stop;         /* the cancel word as the last barrier saw it */
    _Alignas(128) atomic_int arrived;
    _Alignas(128) atomic_uint generation;
    _Alignas(128) atomic_int sleepers;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void futex_wait(atomic_uint *word, unsigned expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until *word differs from `seen`; returns 0 when the time is up. */
static int spin(atomic_uint *word, unsigned seen, int64_t limit_ns) {
    /* More threads than cores: sleep at once. Yielding instead loses a time slice to whatever else is running. */
    if (!atomic_load_explicit(&pool.may_spin, memory_order_relaxed))
        return atomic_load_explicit(word, memory_order_acquire) != seen;
    int64_t end = 0;
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen)
                return 1;
            relax();
        }
        int64_t t = now_ns();
        if (!end)
            end = t + limit_ns;
        if (t > end)
            return 0;
    }
}

/* A central barrier: the last thread to arrive opens the next generation. The generation never goes back, so that a
 * thread that wakes late can only see "open". Sleepers announce themselves before they look at the generation a last
 * time and the opener looks for sleepers after it has opened: with sequential consistency, one of the two sees the
 * other. */
int hk_team_sync(hk_team *team) {
    /* Read before arriving: as soon as the last thread has arrived, the caller may set up the next region. */
    int n = team->n;
    const atomic_int *cancel = team->cancel;
    if (n == 1)
        return cancel ? atomic_load_explicit(cancel, memory_order_relaxed) : 0;
    unsigned seen = atomic_load_explicit(&pool.generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&pool.arrived, 1, memory_order_acq_rel) == n - 1) {
        int stop = cancel ? atomic_load_explicit(cancel, memory_order_relaxed) : 0;
        atomic_store_explicit(&pool.stop, stop, memory_order_relaxed);
        atomic_store_explicit(&pool.arrived, 0, memory_order_relaxed);
        atomic_fetch_add(&pool.generation, 1);
        if (atomic_load(&pool.sleepers))
            futex_wake(&pool.generation, INT_MAX);
        return stop;
    }
    if (!spin(&pool.generation, seen, atomic_load_explicit(&pool.spin_ns, memory_order_relaxed))) {
        atomic_fetch_add(&pool.sleepers, 1);
        while (atomic_load(&pool.generation) == seen)
            futex_wait(&pool.generation, seen);
        atomic_fetch_sub(&pool.sleepers, 1);
    }
    return atomic_load_explicit(&pool.stop, memory_order_relaxed);
}

static void *worker_main(void *arg) {
    worker *w = arg;
    unsigned seen = 0;
    for (;;) {
        if (!spin(&w->ticket, seen, SPIN_IDLE_NS)) {
            atomic_store(&w->sleeping, 1);
            while (atomic_load(&w->ticket) == seen)
                futex_wait(&w->ticket, seen);
            atomic_store(&w->sleeping, 0);
        }
        seen++;
        pool.fn(pool.arg, w->index, &pool.team);
        hk_team_sync(&pool.team);
    }
    return NULL;
}

/* A child has none of its parent's threads: it begins with an empty pool. What it inherits of a model is refused above,
 * where it is known which models these are. */
static void after_fork_in_child(void) {
    for (int i = 0; i < HK_MAX_THREADS; i++) {
        atomic_store(&pool.workers[i].ticket, 0);
        atomic_store(&pool.workers[i].sleeping, 0);
    }
    pool.n_workers = 0;
    atomic_store(&pool.arrived, 0);
    atomic_store(&pool.sleepers, 0);
    pthread_mutex_init(&pool.lock, NULL);
}

/* Workers take no asynchronous signals: Ctrl-C belongs to the thread that runs Python. Faults stay deliverable. */
static int start_worker(int index) {
    worker *w = &pool.workers[index];
    w->index = index;
    sigset_t mask, old;
    sigfillset(&mask);
    sigdelset(&mask, SIGBUS);
    sigdelset(&mask, SIGSEGV);
    sigdelset(&mask, SIGFPE);
    sigdelset(&mask, SIGILL);
    pthread_sigmask(SIG_SETMASK, &mask, &old);
    pthread_t id;
    int rc = pthread_create(&id, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return HK_ERR_THREADS;
    pthread_detach(id);
    return HK_OK;
}

static int ensure_threads(int n) {
    if (!pool.atfork_set) {
        pthread_atfork(NULL, NULL, after_fork_in_child);
        pool.atfork_set = 1;
    }
    for (int i = 0; i < n; i++)
        if (!pool.scratch[i] && !(pool.scratch[i] = hk_memory_map(HK_SCRATCH_BYTES, 0)))
            return HK_ERR_MEMORY;
    while (pool.n_workers < n - 1) {
        int rc = start_worker(pool.n_workers + 1);
        if (rc)
            return rc;
        pool.n_workers++;
    }
    return HK_OK;
}

int hk_pool_run(int n, const atomic_int *cancel, hk_region_fn fn, void *arg) {
    if (n < 1 || n > HK_MAX_THREADS)
        return HK_ERR_THREADS;
    pthread_mutex_lock(&pool.lock);
    atomic_store_explicit(&pool.may_spin, n <= hk_pool_cores(), memory_order_relaxed);
    hk_pool_spin(SPIN_BARRIER_NS);
    int rc = ensure_threads(n);
    if (rc == HK_OK) {
        pool.fn = fn;
        pool.arg = arg;
        pool.team = (hk_team){.n = n, .cancel = cancel};
        for (int i = 1; i < n; i++) {
            worker *w = &pool.workers[i];
            atomic_fetch_add(&w->ticket, 1);
            if (atomic_load(&w->sleeping))
                futex_wake(&w->ticket, 1);
        }
        fn(arg, 0, &pool.team);
        hk_team_sync(&pool.team);
    }
    pthread_mutex_unlock(&pool.lock);
    return rc;
}

void hk_pool_spin(int64_t ns) { atomic_store_explicit(&pool.spin_ns, ns, memory_order_relaxed); }

uint8_t *hk_pool_scratch(int thread) { return pool.scratch[thread]; }

void hk_pool_set_cores(int n) { atomic_store(&pool.cores, n); }

int hk_pool_cores(void) {
    int n = atomic_load(&pool.cores);
    if (n > 0)
        return n;
    cpu_set_t set;
    n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    hk_pool_set_cores(n);
    return n;
}

int hk_pool_workers(void) { return pool.n_workers; }
