/* The graphs of a step program on one GPU, captured once per step class: of every segment of the program one, or, where
 * little crosses between devices (`linked`), one of all of them, whose kernels wait for the host and tell it.
 *
 * A step packs its inputs into the slot's page-locked memory, and queues one copy of them, changed rows of the page
 * table if there are any, and graphs of its class, the last kernel of which leaves the likeliest tokens in host memory.
 * Logits are copied back where they are asked for.
 *
 * A step of a program that is one segment may be queued behind one whose chosen token the host has not seen yet: it
 * takes that token on the device, and where graphs put it into the inputs themselves, it is nothing but the launch of a
 * graph.
 */
#ifndef HK_GRAPHS_H
#define HK_GRAPHS_H

#include "hk_gpu.h"

/* A row's choice, as the last kernel of a graph leaves it in host memory. best: -1 where none can be made. */
typedef struct hk_chosen {
    int32_t best, position;
    float value, lse;
} hk_chosen;
#define HK_CHOSEN_RING 8 /* entries by position */

/* Where a class of steps has its inputs on the device: int32 at these offsets from `inputs`. */
typedef enum hk_field {
    HK_COUNTS, /* tokens, outputs, epoch of the step */
    HK_TOKENS,
    HK_POSITIONS,
    HK_SEQUENCES,
    HK_VARIANTS,
    HK_OUTPUTS,
    HK_N_FIELDS
} hk_field;

#define HK_MAX_CLASSES 12

typedef struct hk_class {
    int32_t rows, outputs; /* most tokens and outputs */
    int32_t linked;        /* there is one graph */
    void **graphs;         /* by segment */
    uint64_t inputs;
    int64_t input_bytes;
    int32_t at[HK_N_FIELDS];
    uint64_t best;           /* int32 [outputs] on the device */
    const hk_chosen *chosen; /* page-locked [HK_CHOSEN_RING][outputs]; NULL: tokens are chosen elsewhere */
    int32_t advances;        /* the graph of one row puts the chosen token and the next position into its inputs */
} hk_class;

typedef struct hk_graphs {
    hk_gpu *gpu;
    int32_t n_classes, n_segments;
    hk_class classes[HK_MAX_CLASSES]; /* ascending */
    hk_class top; /* of one row and output, ends in its likeliest tokens, sorted; no graphs: there is none */
} hk_graphs;

/* What a step brings back. */
enum { HK_WANT_NOTHING, HK_WANT_BEST, HK_WANT_LOGITS, HK_WANT_TOP };

/* All of these return 0, HK_ERR_ARGUMENT, or HK_ERR_DEVICE (hk_cuda_error() says more). A step is begun, which brings
 * its inputs to the device, launched segment by segment, and ended. epoch: a number that tells the step from those
 * around it; table: the host's page table. feed: the step of a single row that continues the one in front, with the
 * token that this one has chosen. */
int hk_graphs_begin(hk_graphs *g, hk_slot *s, const int32_t *table, int32_t epoch, int feed, int want);
int hk_graphs_launch(hk_graphs *g, hk_slot *s, int32_t segment);
int hk_graphs_mark(hk_graphs *g, hk_slot *s); /* the slot's event: whoever waits in the middle of a step looks at it */
int hk_graphs_end(hk_graphs *g, hk_slot *s);
/* All of it, for a program that is one segment. */
int hk_graphs_queue(hk_graphs *g, hk_slot *s, const int32_t *table, int feed, int want);
/* Waits for the slot's last step and fills in its results. HK_CANCELLED when `cancel` is set or `poll` says so: the
 * step then ends by itself, and its results are void. */
int hk_graphs_wait(hk_graphs *g, hk_slot *s, const atomic_int *cancel, int (*poll)(void));
/* The class that a step of the slot runs in. */
const hk_class *hk_graphs_class(const hk_graphs *g, const hk_slot *s);

#endif
