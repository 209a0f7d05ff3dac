/* Exercises csrc/runtime/hk_sigbus.c from C, with threads and with an earlier handler. Prints "ok" and returns 0. */
#define _GNU_SOURCE
#include "hk_sigbus.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(x)                                                                                                       \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            fprintf(stderr, "line %d: %s\n", __LINE__, #x);                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

enum { PAGES = 64, THREADS = 8, ROUNDS = 200 };
static size_t page;

/* A mapping of PAGES pages of ones, of a file that has since been cut to `keep` pages. */
static unsigned char *cut_mapping(size_t keep) {
    char name[] = "/tmp/hk_guard_XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    unlink(name);
    unsigned char *ones = malloc(page * PAGES);
    memset(ones, 1, page * PAGES);
    CHECK(write(fd, ones, page * PAGES) == (ssize_t)(page * PAGES));
    free(ones);
    unsigned char *p = mmap(NULL, page * PAGES, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED);
    CHECK(ftruncate(fd, (off_t)(page * keep)) == 0);
    close(fd);
    return p;
}

static sigjmp_buf back;
static volatile sig_atomic_t earlier_calls;
static void *volatile earlier_address;

static void earlier(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    earlier_calls++;
    earlier_address = info->si_addr;
    siglongjmp(back, 1);
}

static void *read_all(void *p) {
    unsigned long sum = 0;
    for (size_t i = 0; i < page * PAGES; i += 64)
        sum += ((volatile unsigned char *)p)[i];
    return (void *)sum;
}

static void *add_and_remove(void *p) {
    for (int i = 0; i < 20000; i++) {
        int slot = hk_guard_add(p, page);
        CHECK(slot >= 0);
        hk_guard_remove(slot);
    }
    return NULL;
}

int main(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    struct sigaction a = {.sa_sigaction = earlier, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &a, NULL);

    /* Pages that are left keep their bytes, those behind read as zeros, and only this slot's flag is set. */
    unsigned char *p = cut_mapping(3), *q = cut_mapping(PAGES);
    int slot = hk_guard_add(p, page * PAGES), other = hk_guard_add(q, page * PAGES - 1);
    CHECK(slot >= 0 && other >= 0 && slot != other);
    CHECK(p[3 * page - 1] == 1 && !hk_guard_faulted(slot) && !hk_guard_any_faulted());
    CHECK(p[5 * page + 7] == 0 && hk_guard_faulted(slot) && !hk_guard_faulted(other) && hk_guard_any_faulted());
    CHECK(p[3 * page] == 0 && p[page * PAGES - 1] == 0 && p[2 * page] == 1);
    CHECK((unsigned long)read_all(q) == page * PAGES / 64 && !hk_guard_faulted(other));
    hk_guard_remove(slot);
    CHECK(!hk_guard_faulted(slot) && !hk_guard_any_faulted());
    munmap(p, page * PAGES);
    hk_guard_remove(slot);
    hk_guard_remove(-1);
    hk_guard_remove(HK_GUARD_SLOTS);

    /* A fault elsewhere goes to the earlier handler, with its address. */
    unsigned char *unguarded = cut_mapping(1);
    if (sigsetjmp(back, 1) == 0)
        (void)((volatile unsigned char *)unguarded)[page + 5];
    CHECK(earlier_calls == 1 && earlier_address == unguarded + page + 5);
    if (sigsetjmp(back, 1) == 0)
        (void)((volatile unsigned char *)unguarded)[2 * page];
    CHECK(earlier_calls == 2);

    /* Bad arguments, and more guards than there are slots. */
    CHECK(hk_guard_add(NULL, 1) == -1 && hk_guard_add(q + 1, 1) == -1 && hk_guard_add(q, 0) == -1);
    CHECK(hk_guard_add(q, (size_t)-1) == -1);
    int n = 1;
    while (hk_guard_add(q, page) >= 0)
        n++;
    CHECK(n == HK_GUARD_SLOTS);
    for (int i = 0; i < HK_GUARD_SLOTS; i++)
        if (i != other)
            hk_guard_remove(i);

    /* Many threads fault in one range while others add and remove guards. */
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char *r = cut_mapping(2);
        int s = hk_guard_add(r, page * PAGES);
        pthread_t t[THREADS], busy;
        if (round == 0)
            CHECK(pthread_create(&busy, NULL, add_and_remove, q) == 0);
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_create(&t[i], NULL, read_all, r) == 0);
        for (int i = 0; i < THREADS; i++) {
            void *sum;
            pthread_join(t[i], &sum);
            CHECK((unsigned long)sum == 2 * page / 64);
        }
        if (round == 0)
            pthread_join(busy, NULL);
        CHECK(hk_guard_faulted(s) && !hk_guard_faulted(other));
        hk_guard_remove(s);
        munmap(r, page * PAGES);
    }
    CHECK(earlier_calls == 2);
    puts("ok");
    return 0;
}
