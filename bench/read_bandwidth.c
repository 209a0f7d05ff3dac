/* Memory read bandwidth: THREADS threads each sum their share of a buffer much larger than the caches.
 *
 *     cc -O3 -march=native -pthread read_bandwidth.c -o read_bandwidth && ./read_bandwidth THREADS MIB PASSES
 *
 * Prints the best and the median pass in GB/s (1e9). Each thread touches its share first, so that its pages are local; huge pages
 * are asked for, since a TLB miss per 4 KB would cost some of what the memory can do. Eight independent sums keep enough loads in
 * flight for the adds not to be the limit.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef uint64_t vec __attribute__((vector_size(32)));
enum { UNROLL = 8, MAX_PASSES = 64 };

static struct {
    vec *data;
    size_t share; /* vectors per thread */
    int passes;
    pthread_barrier_t barrier;
} job;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double pass_time[MAX_PASSES];
static volatile uint64_t sink;

static void *reader(void *arg) {
    size_t me = (size_t)arg;
    const vec *data = job.data + me * job.share;
    memset(job.data + me * job.share, 1, job.share * sizeof(vec));
    for (int pass = 0; pass < job.passes; pass++) {
        pthread_barrier_wait(&job.barrier);
        double begin = seconds();
        vec sum[UNROLL] = {0};
        for (size_t i = 0; i < job.share; i += UNROLL)
            for (int j = 0; j < UNROLL; j++)
                sum[j] += data[i + j];
        for (int j = 1; j < UNROLL; j++)
            sum[0] += sum[j];
        sink += sum[0][0];
        pthread_barrier_wait(&job.barrier);
        if (me == 0)
            pass_time[pass] = seconds() - begin;
    }
    return NULL;
}

static int ascending(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s THREADS MIB PASSES\n", argv[0]);
        return 2;
    }
    long threads = atol(argv[1]), mib = atol(argv[2]);
    job.passes = atoi(argv[3]);
    if (threads < 1 || mib < threads || job.passes < 1 || job.passes > MAX_PASSES) {
        fprintf(stderr, "%s: argument out of range\n", argv[0]);
        return 2;
    }
    job.share = ((size_t)mib << 20) / sizeof(vec) / threads / UNROLL * UNROLL;
    size_t bytes = job.share * sizeof(vec) * threads;
    const size_t huge = 2 << 20;
    if (posix_memalign((void **)&job.data, huge, (bytes + huge - 1) / huge * huge)) {
        fprintf(stderr, "%s: out of memory\n", argv[0]);
        return 1;
    }
    madvise(job.data, bytes, MADV_HUGEPAGE);
    pthread_barrier_init(&job.barrier, NULL, threads);
    pthread_t *handles = malloc(threads * sizeof(*handles));
    for (long i = 1; i < threads; i++)
        if (pthread_create(&handles[i], NULL, reader, (void *)i)) {
            fprintf(stderr, "%s: cannot start a thread\n", argv[0]);
            return 1;
        }
    reader((void *)0);
    for (long i = 1; i < threads; i++)
        pthread_join(handles[i], NULL);
    qsort(pass_time, job.passes, sizeof(double), ascending);
    printf("%.2f %.2f\n", bytes / pass_time[0] * 1e-9, bytes / pass_time[job.passes / 2] * 1e-9);
    return 0;
}
