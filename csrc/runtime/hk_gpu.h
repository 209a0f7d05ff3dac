/* What step programs share of one GPU: its stream, the page table, the memory of logits.
 *
 * Everything is queued on one stream, in the context of the device, which is current only during a call: nothing of the
 * caller's own use of CUDA changes.
 */
#ifndef HK_GPU_H
#define HK_GPU_H

#include <stdatomic.h>

#include "hk_tape.h"

typedef struct hk_gpu {
    void *context, *stream;
    int32_t index; /* of its memory in a slot */
    int32_t n_vocab, max_pages, n_seq;
    uint64_t pages;  /* the page table on the device, int32 [n_seq][max_pages] */
    int32_t *mirror; /* what was queued to it */
    uint64_t logits; /* float [outputs][logits_stride]; 0: they are made elsewhere */
    int64_t logits_stride;
    int32_t last; /* whether the step that was queued last had a single row and output, chosen there: */
    int32_t last_position, last_sequence, last_variant;
} hk_gpu;

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

extern _Atomic int64_t hk_patience; /* nanoseconds: whoever waits longer for a device takes it for hung */

/* Waits for an event of the device: HK_OK, HK_ERR_DEVICE, HK_ERR_HUNG, or HK_CANCELLED when `cancel` is set or `poll`
 * says so. */
int hk_gpu_wait(hk_gpu *g, void *event, const atomic_int *cancel, int (*poll)(void));
/* Brings the rows of the page table that a step reads up to date on the device, where it is current; a status. */
int hk_gpu_send_pages(hk_gpu *g, const hk_slot *s, const int32_t *table);
/* Queues a copy or a filling of device memory behind what is queued. */
int hk_gpu_copy(hk_gpu *g, uint64_t to, uint64_t from, int64_t bytes);
int hk_gpu_fill(hk_gpu *g, uint64_t at, int byte, int64_t bytes);

int64_t hk_now(void); /* nanoseconds of the monotonic clock */

#endif
