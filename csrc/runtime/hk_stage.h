/* Threads that bring memory into page-locked buffers for a GPU that cannot read it where it lies: the system did not
 * let it be registered. A graph calls hk_stage_run between the copy that empties a buffer and the one that takes it
 * next, so only threads of its own touch what may be missing from a mapped file (hk_sigbus.h): the driver's thread may
 * have that signal blocked. */
#ifndef HK_STAGE_H
#define HK_STAGE_H

#include <stdint.h>

#ifndef HK_STAGE_API
#define HK_STAGE_API __attribute__((visibility("default")))
#endif

typedef struct hk_stage hk_stage;
typedef struct hk_stage_part {
    const uint8_t *from;
    uint8_t *to;
    int64_t bytes;
} hk_stage_part;
typedef struct hk_stage_job {
    hk_stage *stage;
    const hk_stage_part *parts;
    int64_t n;
} hk_stage_job;

/* NULL where there is no memory, or no thread. */
HK_STAGE_API hk_stage *hk_stage_create(int threads);
/* Nothing may be running. */
HK_STAGE_API void hk_stage_destroy(hk_stage *stage);
/* Copies the parts of an hk_stage_job, and returns when they are there. One call at a time. */
HK_STAGE_API void hk_stage_run(void *job);

#endif
