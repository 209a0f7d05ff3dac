#define _GNU_SOURCE
#include "hk_memory.h"

#include <stddef.h>
#include <sys/mman.h>

#define HUGE ((int64_t)2 << 20)

/* A mapping is reserved one huge page too large and trimmed to a 2 MiB boundary, so that the kernel can back all of it.
 */
uint8_t *hk_memory_map(int64_t bytes, int huge) {
    if (bytes <= 0)
        return NULL;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (!huge || bytes < HUGE) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        return p == MAP_FAILED ? NULL : p;
    }
    int64_t page = 4096, size = (bytes + page - 1) & ~(page - 1);
    uint8_t *raw = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    uint8_t *p = (uint8_t *)(((uintptr_t)raw + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    if (p > raw)
        munmap(raw, p - raw);
    int64_t tail = raw + size + HUGE - (p + size);
    if (tail > 0)
        munmap(p + size, tail);
    madvise(p, size, MADV_HUGEPAGE);
    return p;
}

void hk_memory_unmap(uint8_t *p, int64_t bytes) {
    if (p)
        munmap(p, (bytes + 4095) & ~(int64_t)4095);
}

void hk_memory_release(uint8_t *p, int64_t bytes) {
    if (p)
        madvise(p, bytes, MADV_DONTNEED);
}
