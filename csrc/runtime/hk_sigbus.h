/* Guard of memory-mapped files: a fault on a page that the file no longer has becomes a flag instead of SIGBUS.
 *
 * A mapped file that someone truncates, or a disk that fails, raises SIGBUS in whoever touches the missing page. For
 * a fault inside a guarded range, the process-wide handler puts pages of zeros in place from the fault to the end of
 * the range, sets the range's flag and lets the instruction run again. Whoever computes from the range asks for the
 * flag afterwards and throws the results away. Every other SIGBUS goes to the handler that was there before.
 *
 * All functions may be called from any thread. hk_guard_faulted and hk_guard_any_faulted may also be called from a
 * signal handler.
 */
#ifndef HK_SIGBUS_H
#define HK_SIGBUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HK_GUARD_SLOTS = 1024 };

/* Guards the `len` bytes at `base`, a read-only mapping; base is page-aligned. Returns a slot >= 0, or -1: bad
 * arguments, no slot left, or no handler on this platform. Installs the handler, again if another was put over it. */
int hk_guard_add(void *base, size_t len);

/* Ends the guard. Call it before the range is unmapped. A slot that is not in use is ignored. */
void hk_guard_remove(int slot);

/* 1 if a page of the slot's range was missing when it was touched, else 0. */
int hk_guard_faulted(int slot);

/* 1 if that is so for any slot in use, else 0. */
int hk_guard_any_faulted(void);

#ifdef __cplusplus
}
#endif

#endif
