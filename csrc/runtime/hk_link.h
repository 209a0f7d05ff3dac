/* Values that cross from one device to another within a step.
 *
 * Small steps (`linked`) pass them through mapped page-locked memory, and a flag that holds the number of the step:
 * kernels write and await it themselves (csrc/cuda/link.cu), so that a step is one launch on each GPU. Larger steps use
 * the copy engines, one transfer at a time, through an area of page-locked memory that transfers share.
 */
#ifndef HK_LINK_H
#define HK_LINK_H

#include "hk_graphs.h"

#define HK_LINK_PARTS 4

/* One end of a part: rows of main memory, or of a GPU. */
typedef struct hk_end {
    float *host;
    uint64_t device;
    int64_t stride; /* floats */
} hk_end;

typedef struct hk_link_part {
    hk_end from, to;
    int64_t width;
    int32_t outputs;      /* rows are the step's outputs instead of its tokens */
    float *linked, *area; /* [rows][width], page-locked: of small steps, of larger ones */
} hk_link_part;

typedef struct hk_transfer hk_transfer;
typedef struct hk_area {
    hk_transfer *read_by; /* a GPU may still be reading it */
} hk_area;

struct hk_transfer {
    hk_graphs *from, *to; /* NULL: the CPU */
    int32_t n_parts;
    hk_link_part parts[HK_LINK_PARTS];
    atomic_int *flag;
    hk_area *area;
    void *sent, *received; /* events of the two GPUs */
};

/* How a thread of the region runs a step's transfers; the same for all threads but for `thread`. */
typedef struct hk_crossing {
    hk_slot *slot;
    hk_team *team;
    int thread, linked;
    int32_t epoch;
    atomic_int *cancel;
    int (*poll)(void);
} hk_crossing;

/* The ends of a transfer on a GPU: thread 0 queues what has to be queued, nothing in a linked step. */
int hk_link_from_device(const hk_crossing *x, hk_transfer *t);
int hk_link_to_device(const hk_crossing *x, hk_transfer *t);
/* The ends on the CPU, with a barrier behind what they copy: called by all threads of the region, and the same for all
 * but thread 0, which returns what went wrong with a device. awaited: what follows begins with a barrier, before
 * anybody writes. */
int hk_link_from_host(const hk_crossing *x, hk_transfer *t, int awaited);
int hk_link_to_host(const hk_crossing *x, hk_transfer *t);

#endif
