#include "hk_rates.h"

#include <time.h>

#include "../cpu/hk_peak.h"
#include "hk_pool.h"

typedef struct peak_job {
    hk_peak_fn run;
    int64_t rounds;
    _Atomic int64_t done;
} peak_job;

static void peak_part(void *arg, int thread, hk_team *team) {
    peak_job *j = arg;
    (void)thread;
    (void)team;
    atomic_fetch_add(&j->done, j->run(j->rounds));
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double hk_rate_int8(int set, double seconds, int n_threads) {
    peak_job j = {.run = hk_peak_int8(set), .rounds = 1 << 12};
    for (;;) {
        atomic_store(&j.done, 0);
        double begin = seconds_now();
        if (hk_pool_run(n_threads, NULL, peak_part, &j) != HK_OK)
            return 0;
        double took = seconds_now() - begin;
        if (took >= seconds)
            return (double)atomic_load(&j.done) / took;
        j.rounds *= 2;
    }
}
