/* The step program: what one call runs without the interpreter, from the token ids to the logits.
 *
 * Today a program is a list of tapes of the CPU set, all replayed in one parallel region; launches of device graphs and
 * transfers over the link become further kinds of commands.
 */
#ifndef HK_STEP_H
#define HK_STEP_H

#include "hk_tape.h"

typedef enum hk_command_kind { HK_REPLAY, HK_LAUNCH, HK_SEND, HK_RECV } hk_command_kind;

typedef struct hk_command {
    int32_t kind;
    hk_tape *tape; /* HK_REPLAY */
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
 * that the step needs are copied to the slot. greedy: also fill the slot's best tokens. Returns HK_OK, HK_CANCELLED or
 * HK_ERR_*. */
int hk_step_run(hk_program *p, hk_slot *slot, const int32_t *table, int32_t n_seq, int n_threads, int greedy);
/* The same without checks, page tables and greedy results. */
int hk_program_run(hk_program *p, hk_slot *slot, int n_threads, int greedy);

#endif
