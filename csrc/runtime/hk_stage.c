#define _GNU_SOURCE
#include "hk_stage.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((int64_t)256 << 10) /* bytes that a thread takes at a time */

struct hk_stage {
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    const hk_stage_job *job;
    atomic_llong next; /* byte of all parts that nobody has taken */
    uint64_t round;
    int n_threads, busy, ending;
    pthread_t threads[];
};

static void copy_chunk(const hk_stage_job *job, int64_t at) {
    int64_t left = CHUNK;
    for (int64_t i = 0; i < job->n && left > 0; i++) {
        const hk_stage_part *p = &job->parts[i];
        if (at >= p->bytes) {
            at -= p->bytes;
            continue;
        }
        int64_t n = p->bytes - at < left ? p->bytes - at : left;
        memcpy(p->to + at, p->from + at, (size_t)n);
        left -= n;
        at = 0;
    }
}

static int64_t total_bytes(const hk_stage_job *job) {
    int64_t total = 0;
    for (int64_t i = 0; i < job->n; i++)
        total += job->parts[i].bytes;
    return total;
}

static void *serve(void *arg) {
    hk_stage *s = arg;
    uint64_t seen = 0;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->round == seen && !s->ending)
            pthread_cond_wait(&s->begin, &s->lock);
        if (s->ending)
            break;
        seen = s->round;
        const hk_stage_job *job = s->job;
        pthread_mutex_unlock(&s->lock);
        int64_t total = total_bytes(job), at;
        while ((at = atomic_fetch_add(&s->next, CHUNK)) < total)
            copy_chunk(job, at);
        pthread_mutex_lock(&s->lock);
        if (--s->busy == 0)
            pthread_cond_signal(&s->end);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

hk_stage *hk_stage_create(int threads) {
    hk_stage *s = calloc(1, sizeof *s + (size_t)threads * sizeof(pthread_t));
    if (s == NULL)
        return NULL;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->begin, NULL);
    pthread_cond_init(&s->end, NULL);
    /* Signals of the process are the interpreter's; faults are the thread's own. */
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (s->n_threads < threads && pthread_create(&s->threads[s->n_threads], NULL, serve, s) == 0)
        s->n_threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (s->n_threads == 0) {
        hk_stage_destroy(s);
        return NULL;
    }
    return s;
}

void hk_stage_destroy(hk_stage *s) {
    pthread_mutex_lock(&s->lock);
    s->ending = 1;
    pthread_cond_broadcast(&s->begin);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_threads; i++)
        pthread_join(s->threads[i], NULL);
    pthread_cond_destroy(&s->begin);
    pthread_cond_destroy(&s->end);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void hk_stage_run(void *arg) {
    const hk_stage_job *job = arg;
    hk_stage *s = job->stage;
    pthread_mutex_lock(&s->lock);
    s->job = job;
    s->busy = s->n_threads;
    atomic_store(&s->next, 0);
    s->round++;
    pthread_cond_broadcast(&s->begin);
    while (s->busy)
        pthread_cond_wait(&s->end, &s->lock);
    pthread_mutex_unlock(&s->lock);
}
