/* The step program: what one call runs without the interpreter, from the token ids to the logits.
 *
 * A program is a list of commands in order. Neighbouring tapes of the CPU set are replayed in one parallel region;
 * segments of a GPU are queued by the calling thread, which waits for the last one. Today a model lies on one of the
 * two sets; transfers over the link become further kinds of commands.
 */
#ifndef HK_STEP_H
#define HK_STEP_H

#include "hk_segment.h"
#include "hk_tape.h"

typedef enum hk_command_kind { HK_REPLAY, HK_LAUNCH, HK_SEND, HK_RECV } hk_command_kind;

typedef struct hk_command {
    int32_t kind;
    hk_tape *tape;       /* HK_REPLAY */
    hk_segment *segment; /* HK_LAUNCH */
} hk_command;

#define HK_MAX_COMMANDS 64

typedef struct hk_program {
    hk_command commands[HK_MAX_COMMANDS];
    int32_t n_commands;
    atomic_int cancel; /* set from anywhere; stays set until the owner clears it */
    int (*poll)(void); /* looks for signals in the calling thread, or NULL */
    hk_counter counters[2 * HK_MAX_THREADS];
} hk_program;

/* Runs the program for the inputs of a slot on n_threads. `table` is the cache's page table [n_seq][stride]: the rows
 * that the step needs are copied to the slot. greedy: also fill the slot's best tokens; a GPU then brings no logits
 * back. Returns HK_OK, HK_CANCELLED or HK_ERR_*. */
int hk_step_run(hk_program *p, hk_slot *slot, const int32_t *table, int32_t n_seq, int n_threads, int greedy);
/* The segment that a program consists of, or NULL. */
hk_segment *hk_step_segment(const hk_program *p);
/* A greedy step of such a program, of a single row, and behind it, if `next` is given, the next one, which takes the
 * token that the first one chooses: the GPU goes on while the host looks at that token. queued: the first one was
 * `next` in the call before. */
int hk_step_ahead(hk_program *p, hk_slot *slot, hk_slot *next, const int32_t *table, int queued);
/* A step of such a program, of a single row, that ends in its likeliest tokens (the segment's `top`). */
int hk_step_top(hk_program *p, hk_slot *slot, const int32_t *table);
/* The same as hk_step_run for tapes, without checks, page tables and greedy results. */
int hk_program_run(hk_program *p, hk_slot *slot, int n_threads, int greedy);

#endif
