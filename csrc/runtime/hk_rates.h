/* What the machine can do at most, for benchmarks to stand beside. */
#ifndef HK_RATES_H
#define HK_RATES_H

/* int8 multiply-accumulates per second of n_threads together, with the instructions of kernel set `set`, measured over
 * at least `seconds`. 0 when the threads cannot be had. */
double hk_rate_int8(int set, double seconds, int n_threads);

#endif
