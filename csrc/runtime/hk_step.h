/* The step program: what one call runs without the interpreter, from the token ids to the logits.
 *
 * A program is a list of commands in order. A model on the CPU is one tape, replayed in a parallel region; a model on a
 * GPU one segment, which the calling thread queues and waits for. A divided model has commands of both: one parallel
 * region runs them all, in which thread 0 queues what is for GPUs and waits for them. Nothing is queued outside of the
 * region: kernels that wait for the host hold processors, and only one region at a time can keep its promise to them.
 */
#ifndef HK_STEP_H
#define HK_STEP_H

#include "hk_link.h"

typedef enum hk_command_kind { HK_REPLAY, HK_LAUNCH, HK_SEND, HK_RECEIVE } hk_command_kind;

typedef struct hk_command {
    int32_t kind;
    int32_t first, last; /* HK_REPLAY: operations [first, last) of the tape; HK_LAUNCH: segment `first` */
    hk_tape *tape;
    hk_graphs *graphs;
    hk_transfer *transfer;
} hk_command;

typedef struct hk_program {
    hk_command *commands;
    int32_t n_commands;
    hk_tape *tapes[HK_MAX_GPUS + 1]; /* every one once */
    hk_graphs *graphs[HK_MAX_GPUS];
    int32_t n_tapes, n_graphs;
    int32_t alternates; /* tapes go on behind what GPUs send */
    atomic_int cancel;  /* set from anywhere; stays set until the owner clears it */
    int (*poll)(void);  /* looks for signals in the calling thread, or NULL */
    int32_t epoch;      /* of the step that ran last */
    atomic_int *abort;  /* page-locked: kernels that wait in the step of this number give up; or NULL */
    hk_slot *torn;      /* the slot of a step that was left early: GPUs may still be at it */
    hk_counter counters[2 * HK_MAX_THREADS];
} hk_program;

/* Runs the program for the inputs of a slot on n_threads. `table` is the cache's page table [n_seq][stride]: the rows
 * that the step needs are copied to the slot. greedy: also fill the slot's best tokens; a GPU then brings no logits
 * back. Returns HK_OK, HK_CANCELLED or HK_ERR_*. */
int hk_step_run(hk_program *p, hk_slot *slot, const int32_t *table, int32_t n_seq, int n_threads, int greedy);
/* The graphs of a program that is one segment on a GPU, or NULL. */
hk_graphs *hk_step_graphs(const hk_program *p);
/* A greedy step of such a program, of a single row, and behind it, if `next` is given, the next one, which takes the
 * token that the first one chooses: the GPU goes on while the host looks at that token. queued: the first one was
 * `next` in the call before. */
int hk_step_ahead(hk_program *p, hk_slot *slot, hk_slot *next, const int32_t *table, int queued);
/* A step of such a program, of a single row, that ends in its likeliest tokens (the class `top`). */
int hk_step_top(hk_program *p, hk_slot *slot, const int32_t *table);
/* The same as hk_step_run for tapes, without checks, page tables and greedy results. */
int hk_program_run(hk_program *p, hk_slot *slot, int n_threads);

#endif
