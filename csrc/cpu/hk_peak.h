/* How fast the multiply units are: products of int8 held in registers, nothing loaded and nothing stored. What a matrix
 * product could reach at most on this set, measured beside it. */
#ifndef HK_PEAK_H
#define HK_PEAK_H

#include <stdint.h>

/* Runs `rounds` rounds and returns the int8 multiply-accumulates done. */
typedef int64_t (*hk_peak_fn)(int64_t rounds);

/* The loop of set i, or of the best set below it that has one. */
hk_peak_fn hk_peak_int8(int i);

int64_t hk_peak_int8_scalar(int64_t rounds);
int64_t hk_peak_int8_avx2(int64_t rounds);
int64_t hk_peak_int8_avxvnni(int64_t rounds);
int64_t hk_peak_int8_avx512(int64_t rounds);
int64_t hk_peak_int8_avx512vnni(int64_t rounds);
int64_t hk_peak_int8_amx(int64_t rounds);

/* Accumulators that are independent of each other, enough to cover the latency of a multiply-add on two units. Sixteen
 * 256-bit registers hold them and the operands. */
#define HK_PEAK_CHAINS 12
/* Keeps the compiler from merging, moving or dropping the arithmetic on a register. */
#define HK_OPAQUE(v) __asm__ volatile("" : "+x"(v))

#endif
