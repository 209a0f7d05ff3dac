#define _GNU_SOURCE
#include "hk_sigbus.h"

#if defined(_WIN32)

/* Windows refuses to truncate a mapped file. */
int hk_guard_add(void *base, size_t len) {
    (void)base, (void)len;
    return -1;
}
void hk_guard_remove(int slot) { (void)slot; }
int hk_guard_faulted(int slot) {
    (void)slot;
    return 0;
}
int hk_guard_any_faulted(void) { return 0; }

#else

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

/* One guarded range. The handler reads it without a lock: `version` is odd while base and end change, so that it never
 * acts on half of one range and half of the next. */
struct slot {
    atomic_uint version;
    atomic_uintptr_t base; /* 0: free */
    atomic_uintptr_t end;
    atomic_int faulted;
};

static struct slot slots[HK_GUARD_SLOTS];
static atomic_int slots_used; /* slots [0, slots_used) have been in use at some time */
static uintptr_t page_size;

/* Serialises add and remove; never taken in the handler. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* `below` is what stood there when the handler was first installed, `above` when it was last installed: another handler
 * may have been put over ours in between, and may itself call ours. Written before the handler that reads them is in
 * force. */
static struct sigaction below, above;
static int installed;

/* Set once a fault outside every range has been passed on, which is nearly always the end of the process. */
static atomic_int passed_on;

static void on_sigbus(int sig, siginfo_t *info, void *context);

static int covers(struct slot *s, uintptr_t address, uintptr_t *end) {
    unsigned before = atomic_load_explicit(&s->version, memory_order_acquire);
    uintptr_t base = atomic_load_explicit(&s->base, memory_order_relaxed);
    *end = atomic_load_explicit(&s->end, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    unsigned after = atomic_load_explicit(&s->version, memory_order_relaxed);
    /* A slot that changes right now is not the one whose mapping is being read. */
    return before == after && !(before & 1) && base != 0 && address >= base && address < *end;
}

/* Puts zeros where the file has gone; 1 if the fault was in a guarded range. */
static int repair(uintptr_t address) {
    int used = atomic_load_explicit(&slots_used, memory_order_acquire);
    for (int i = 0; i < used; i++) {
        uintptr_t end;
        if (!covers(&slots[i], address, &end))
            continue;
        /* All pages up to the end, not one: behind the end of a file every further page would fault as well. The flag
         * is set first, so that no thread can read zeros and then find the flag clear. */
        atomic_store_explicit(&slots[i].faulted, 1, memory_order_release);
        uintptr_t page = address & ~(page_size - 1);
        void *p = mmap((void *)page, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        return p != MAP_FAILED;
    }
    return 0;
}

/* Does with the signal what `action` says. */
static void dispatch(const struct sigaction *action, int is_fault, int sig, siginfo_t *info, void *context) {
    if (action->sa_flags & SA_SIGINFO) {
        action->sa_sigaction(sig, info, context);
    } else if (action->sa_handler == SIG_IGN && !is_fault) {
        return;
    } else if (action->sa_handler == SIG_DFL || action->sa_handler == SIG_IGN) {
        /* A fault happens again when the handler returns, and then ends the process; a signal that was sent must be
         * sent again, and waits until the handler returns. */
        struct sigaction standard = {.sa_handler = SIG_DFL};
        sigemptyset(&standard.sa_mask);
        sigaction(SIGBUS, &standard, NULL);
        if (!is_fault)
            raise(SIGBUS);
    } else {
        action->sa_handler(sig);
    }
}

static void on_sigbus(int sig, siginfo_t *info, void *context) {
    int saved_errno = errno;
    /* BUS_ADRERR is the missing page; the other codes are misaligned access and broken memory. */
    int is_fault = info->si_code > 0;
    if (is_fault && info->si_code == BUS_ADRERR && repair((uintptr_t)info->si_addr)) {
        errno = saved_errno;
        return;
    }
    /* A handler above may answer by calling ours, or by putting ours back and sending the signal again, as Python's
     * faulthandler does: then go down, not round in a circle. */
    int again = is_fault ? atomic_exchange(&passed_on, 1) : atomic_load(&passed_on);
    dispatch(again ? &below : &above, is_fault, sig, info, context);
    errno = saved_errno;
}

/* Under the lock. 0 if the handler is in force. */
static int install(void) {
    struct sigaction current;
    if (sigaction(SIGBUS, NULL, &current) != 0)
        return -1;
    if (installed && (current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_sigbus)
        return 0;
    above = current;
    if (!installed)
        below = current;
    /* SA_ONSTACK: work on the alternate stack where a thread has one. */
    struct sigaction ours = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGBUS, &ours, NULL) != 0)
        return -1;
    installed = 1;
    return 0;
}

static void set_range(struct slot *s, uintptr_t base, uintptr_t end) {
    unsigned version = atomic_load_explicit(&s->version, memory_order_relaxed);
    atomic_store_explicit(&s->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&s->faulted, 0, memory_order_relaxed);
    atomic_store_explicit(&s->base, base, memory_order_relaxed);
    atomic_store_explicit(&s->end, end, memory_order_relaxed);
    atomic_store_explicit(&s->version, version + 2, memory_order_release);
}

int hk_guard_add(void *base, size_t len) {
    uintptr_t start = (uintptr_t)base;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (start == 0 || start % page != 0 || len == 0 || len > UINTPTR_MAX - start - page)
        return -1;
    uintptr_t end = (start + len + page - 1) & ~(page - 1);
    int slot = -1;
    pthread_mutex_lock(&lock);
    page_size = page;
    if (install() == 0) {
        for (int i = 0; i < HK_GUARD_SLOTS && slot < 0; i++)
            if (atomic_load_explicit(&slots[i].base, memory_order_relaxed) == 0)
                slot = i;
    }
    if (slot >= 0) {
        set_range(&slots[slot], start, end);
        if (slot >= atomic_load_explicit(&slots_used, memory_order_relaxed))
            atomic_store_explicit(&slots_used, slot + 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return slot;
}

void hk_guard_remove(int slot) {
    if (slot < 0 || slot >= HK_GUARD_SLOTS)
        return;
    pthread_mutex_lock(&lock);
    set_range(&slots[slot], 0, 0);
    pthread_mutex_unlock(&lock);
}

int hk_guard_faulted(int slot) {
    if (slot < 0 || slot >= HK_GUARD_SLOTS)
        return 0;
    return atomic_load_explicit(&slots[slot].faulted, memory_order_acquire);
}

int hk_guard_any_faulted(void) {
    int used = atomic_load_explicit(&slots_used, memory_order_acquire);
    for (int i = 0; i < used; i++)
        if (atomic_load_explicit(&slots[i].faulted, memory_order_acquire))
            return 1;
    return 0;
}

#endif
