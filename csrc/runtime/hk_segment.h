/* A segment of a step program on a GPU: graphs, captured once per step class, over one set of device addresses.
 *
 * A step packs its inputs into the slot's page-locked memory, and queues one copy of them, changed rows of the page
 * table if there are any, and the graph of its class, whose last kernel leaves the likeliest tokens in host memory.
 * Logits are copied back where they are asked for. All of it on the segment's own stream, in the context of the device,
 * which is current only during the call: nothing of the caller's own use of CUDA changes.
 *
 * A step may be queued behind one whose chosen token the host has not seen yet: it takes that token on the device, and
 * where graphs put it into the inputs themselves, it is nothing but the launch of a graph.
 */
#ifndef HK_SEGMENT_H
#define HK_SEGMENT_H

#include <stdatomic.h>

#include "hk_tape.h"

/* A row's choice, as the last kernel of a graph leaves it in host memory. best: -1 where none can be made. */
typedef struct hk_chosen {
    int32_t best, position;
    float value, lse;
} hk_chosen;
#define HK_CHOSEN_RING 8 /* entries by position */

/* Where a class of steps has its inputs on the device: int32 at these offsets from `inputs`. */
typedef enum hk_field {
    HK_COUNTS,
    HK_TOKENS,
    HK_POSITIONS,
    HK_SEQUENCES,
    HK_VARIANTS,
    HK_OUTPUTS,
    HK_N_FIELDS
} hk_field;

typedef struct hk_class {
    int32_t rows, outputs; /* most tokens and outputs */
    void *graph;
    uint64_t inputs;
    int64_t input_bytes;
    int32_t at[HK_N_FIELDS];
    uint64_t best;           /* int32 [outputs] on the device */
    const hk_chosen *chosen; /* page-locked [HK_CHOSEN_RING][outputs] */
    int32_t advances;        /* the graph of one row puts the chosen token and the next position into its inputs */
} hk_class;

#define HK_MAX_CLASSES 12

typedef struct hk_segment {
    void *context, *stream;
    int32_t n_classes;
    hk_class classes[HK_MAX_CLASSES]; /* ascending */
    hk_class top; /* of one row and output, ends in its likeliest tokens, sorted; no graph: there is none */
    int32_t n_vocab, max_pages, n_seq;
    uint64_t pages;  /* the page table on the device, int32 [n_seq][max_pages] */
    int32_t *mirror; /* what was queued to it */
    uint64_t logits; /* float [outputs][logits_stride] */
    int64_t logits_stride;
    int32_t last; /* class of the step that was queued last, if that had a single row and output; -1 otherwise */
    int32_t last_position, last_sequence, last_variant;
} hk_segment;

/* Memory of a slot for steps on a device, page-locked but for `many`. */
struct hk_device_slot {
    uint8_t *inputs;
    int32_t *pages; /* [n_seq][max_pages] */
    float *few;     /* logits [n_few][logits_stride]; of more outputs they go to the slot's own memory */
    int32_t n_few;
    void *done;     /* event behind the slot's last step */
    int32_t queued; /* that event has not been waited for */
    int32_t of;     /* class of that step, */
    int32_t want;   /* and what it brings back */
};

/* What a step brings back. */
enum { HK_WANT_NOTHING, HK_WANT_BEST, HK_WANT_LOGITS, HK_WANT_TOP };

/* Queues a step; 0, HK_ERR_ARGUMENT, HK_ERR_DEVICE (hk_cuda_error() says more). table: the host's page table. feed: the
 * step of a single row that continues the one in front, with the token that this one has chosen. */
int hk_segment_queue(hk_segment *g, hk_slot *s, const int32_t *table, int feed, int want);
/* Waits for the slot's last step and fills in its results. HK_CANCELLED when `cancel` is set or `poll` says so: the
 * step then ends by itself, and its results are void. */
int hk_segment_wait(hk_segment *g, hk_slot *s, const atomic_int *cancel, int (*poll)(void));
/* Queues a copy or a filling of device memory behind what is queued. */
int hk_segment_copy(hk_segment *g, uint64_t to, uint64_t from, int64_t bytes);
int hk_segment_fill(hk_segment *g, uint64_t at, int byte, int64_t bytes);

#endif
