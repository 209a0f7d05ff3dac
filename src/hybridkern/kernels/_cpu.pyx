# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Binding of the CPU kernel set and of the runtime, steps on a GPU included. Addresses go in as integers: callers own the memory and check shapes.

Nothing here is public; `hybridkern.kernels` is.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from hybridkern.errors import ArgumentError, HybridKernError, KernelError, OutOfMemoryError

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

include "_cpu_decl.pxi"

PANEL_SCRATCH = HK_PANEL_SCRATCH  # bytes of a panel, at most, for weights that stay as raw rows


cdef int check(int rc) except -1:
    """Turns the code of a C function into an exception; HK_CANCELLED comes back as 1."""
    if rc == HK_OK or rc == HK_CANCELLED:
        return rc
    if rc == HK_ERR_THREADS:
        raise ArgumentError(f"a thread count must be from 1 to {HK_MAX_THREADS}, and the system must allow that many")
    if rc == HK_ERR_MEMORY:
        raise OutOfMemoryError("the system refused memory for the runtime's scratch buffers")
    if rc == HK_ERR_DEVICE:
        said = hk_cuda_error().decode(errors="replace")
        raise (OutOfMemoryError if "OUT_OF_MEMORY" in said else KernelError)(f"a step on the GPU failed: {said}")
    if rc == HK_ERR_HUNG:
        raise KernelError(f"a GPU did not do in {hk_patience // 1000000000} s what a step asked of it: it hangs, or is far too busy")
    raise KernelError("a step's inputs are out of range: token, position, sequence, or number of rows or outputs")


# Instruction sets and formats.

def features() -> int:
    """Mask of what this CPU and its operating system offer (HK_HAS_*)."""
    return hk_cpu_features()


def amx_denied() -> bool:
    """Whether the processor has AMX, but the operating system does not let this process use it."""
    return bool(hk_cpu_features() & HK_AMX_DENIED)


def kernel_sets() -> list:
    """(name, requirement mask, compiled in) of every kernel set, in ascending order."""
    return [(hk_cpu_set_name(i).decode(), hk_cpu_set_requires(i), bool(hk_cpu_set_built(i)))
            for i in range(hk_cpu_n_sets())]


def rounding_sets() -> list:
    """Names of the sets whose products with many columns are rounded otherwise than those of all others."""
    return [hk_cpu_set_name(i).decode() for i in range(hk_cpu_n_sets()) if hk_cpu_set_rounds(i)]


def formats() -> dict:
    """name -> (index, GGUF id, weights per block, bytes per block, kind of activation), from the format table."""
    return {hk_types[t].name.decode(): (t, hk_types[t].gguf_id, hk_types[t].block, hk_types[t].bytes, hk_types[t].act)
            for t in range(<int>HK_N_TYPES)}


def panel_bytes(int type, int64_t cols) -> int:
    """Bytes of a packed panel of 16 rows."""
    return hk_panel_bytes(<hk_type>type, cols)


def tiles_stride(int64_t K) -> int:
    """Elements from the tiles of 16 columns of K values to the next ones."""
    return hk_tiles_stride(K)


def kv_plane_bytes(int kv_type, int64_t head_dim) -> tuple:
    """Bytes of the K and of the V plane of one head in one page."""
    return hk_kv_k_plane_bytes(kv_type, head_dim), hk_kv_v_plane_bytes(kv_type, head_dim)


cdef class KernelTable:
    """The functions of one kernel set, over those of the sets below it."""

    cdef hk_cpu_set table
    cdef readonly str name

    def __cinit__(self, int index):
        memset(&self.table, 0, sizeof(self.table))
        if not 0 <= index < hk_cpu_n_sets() or hk_cpu_fill(index, &self.table) != 0:
            raise KernelError(f"kernel set {index} cannot run here")
        self.name = hk_cpu_set_name(index).decode()

    @property
    def reads_tiles(self) -> bool:
        """Whether products want their input as tiles of bf16 beside the codes."""
        return self.table.op.to_tiles != NULL

    def origins(self) -> dict:
        """Which set each function came from: {format: (gemv, gemm, dequantise, gemv of raw rows)}, {"ops": set}."""
        found = {hk_types[t].name.decode(): (text(self.table.type[t].gemv_isa), text(self.table.type[t].gemm_isa),
                                             text(self.table.type[t].dequant_isa), text(self.table.type[t].gemv_raw_isa))
                 for t in range(<int>HK_N_TYPES)}
        found["ops"] = (text(self.table.op_isa),)
        return found

    def dequantize(self, int type, uintptr_t raw, int64_t n_blocks, uintptr_t out) -> None:
        """Raw GGUF blocks at `raw` -> float32 at `out`."""
        cdef hk_dequant_fn f = self.table.type[type].dequant
        if f == NULL:
            raise KernelError(f"no kernel dequantises {hk_types[type].name.decode()}")
        with nogil:
            f(<const uint8_t *>raw, n_blocks, <float *>out)

    def quantize(self, int kind, uintptr_t x, int64_t n, int64_t K, uintptr_t codes, uintptr_t scales, uintptr_t sums):
        """n contiguous rows of K floats (64-byte aligned rows) -> codes [n][K], scales [n][K / 32], sums [n][K / 16]."""
        cdef int64_t i
        with nogil:
            for i in range(n):
                self.table.op.quantize[kind](<const float *>x + i * K, K, <int8_t *>codes + i * K,
                                             <float *>scales + i * (K // 32), <int16_t *>sums + i * (K // 16))

    def matmul(self, int type, uintptr_t panels, int64_t rows, int64_t cols, uintptr_t x, int64_t x_stride, int64_t n,
               uintptr_t out, int64_t out_stride, int threads) -> None:
        """out [n][out_stride] = x [n][x_stride] @ W.T; rows of both padded to 16 floats and 64-byte aligned."""
        cdef int rc
        if self.table.type[type].gemv == NULL or self.table.type[type].gemm == NULL:
            raise KernelError(f"no kernel multiplies {hk_types[type].name.decode()}")
        with nogil:
            rc = hk_direct_matmul(&self.table, <hk_type>type, <const uint8_t *>panels, rows, cols, <float *>x, x_stride,
                                  n, <float *>out, out_stride, threads)
        check(rc)

    def argmax(self, uintptr_t x, int64_t n) -> tuple:
        """(index, value, log-sum-exp, bad) of n floats."""
        cdef float value = 0
        cdef double lse = 0
        cdef int bad = 0
        cdef int64_t at
        with nogil:
            at = self.table.op.argmax(<const float *>x, n, &value, &lse, &bad)
        return at, value, lse, bool(bad)

    def survey(self, const float[::1] x) -> tuple:
        """(index of the largest value, log-sum-exp, bad) of a row."""
        cdef float value = 0
        cdef double lse = 0
        cdef int bad = 0
        cdef int64_t at
        with nogil:
            at = self.table.op.argmax(&x[0], x.shape[0], &value, &lse, &bad)
        return at, lse, bad

    def topk(self, const float[::1] x, int32_t[::1] ids, float[::1] values) -> int:
        """Fills `ids` and `values` with the largest of a row, best first; how many there are, 0 where a NaN is among them."""
        cdef int bad = 0
        cdef int64_t found
        with nogil:
            found = self.table.op.topk(&x[0], x.shape[0], ids.shape[0], &ids[0], &values[0], &bad)
        return found


cdef str text(const char *s):
    return "none" if s == NULL else s.decode()


def pack(int type, uintptr_t raw, int64_t row_bytes, int64_t rows, int64_t cols, uintptr_t dst, int threads) -> None:
    """Packs a matrix of raw GGUF rows into panels of 16 rows at `dst`."""
    cdef int rc
    with nogil:
        rc = hk_direct_pack(<hk_type>type, <const uint8_t *>raw, row_bytes, rows, cols, <uint8_t *>dst, threads)
    check(rc)


def read_rate(Memory memory, int threads) -> float:
    """Bytes per second at which `threads` together read the memory once."""
    cdef double rate
    with nogil:
        rate = hk_direct_read_rate(memory.p, memory.size, threads)
    return rate


def int8_rate(int set, double seconds, int threads) -> float:
    """int8 multiply-accumulates per second of `threads` together, with the instructions of kernel set number `set`."""
    cdef double rate
    with nogil:
        rate = hk_rate_int8(set, seconds, threads)
    return rate


# Memory.

cdef class Memory:
    """Anonymous memory: zero-filled, touched lazily, page-aligned. Supports the buffer protocol (bytes)."""

    cdef uint8_t *p
    cdef readonly int64_t size

    def __cinit__(self, int64_t size, bint huge=False):
        self.size = max(size, 1)
        with nogil:
            self.p = hk_memory_map(self.size, huge)
        if self.p == NULL:
            raise OutOfMemoryError(f"the system refused a mapping of {size} bytes of memory")

    def __dealloc__(self):
        hk_memory_unmap(self.p, self.size)

    @property
    def address(self) -> int:
        return <uintptr_t>self.p

    def release(self, int64_t offset, int64_t size) -> None:
        """Gives whole physical pages back; they read as zero afterwards."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError("range outside the memory")
        hk_memory_release(self.p + offset, size)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.p, self.size, 0, flags)


# Threads.

def set_cores(int n) -> None:
    """Tells the pool how many cores this process may use: with more threads than that, threads sleep instead of spinning."""
    hk_pool_set_cores(n)


def pool_workers() -> int:
    """Threads of the pool that exist, callers not counted."""
    return hk_pool_workers()


# Guard of mapped files.

def guard_add(uintptr_t address, size_t size) -> int:
    """Guards a mapped range; returns a slot, or -1."""
    return hk_guard_add(<void *>address, size)


def guard_remove(int slot) -> None:
    """Ends a guard."""
    hk_guard_remove(slot)


def guard_faulted(int slot) -> bool:
    """Whether a page of the guarded range was missing when it was touched."""
    return bool(hk_guard_faulted(slot))


include "_cpu_tape.pxi"
include "_cpu_graphs.pxi"
include "_cpu_program.pxi"
include "_cpu_decode.pxi"
include "_cpu_turn.pxi"
