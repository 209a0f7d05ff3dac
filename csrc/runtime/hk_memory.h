/* Anonymous memory for weights, buffers and the KV cache: zero-filled, touched lazily, 64-byte aligned. */
#ifndef HK_MEMORY_H
#define HK_MEMORY_H

#include <stdint.h>

/* Returns NULL when the system refuses. `huge` asks for transparent huge pages: for memory that will be used densely.
 */
uint8_t *hk_memory_map(int64_t bytes, int huge);
void hk_memory_unmap(uint8_t *p, int64_t bytes);
/* Gives the physical pages back; the contents read as zero afterwards. */
void hk_memory_release(uint8_t *p, int64_t bytes);

#endif
