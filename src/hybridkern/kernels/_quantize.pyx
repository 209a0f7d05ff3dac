# cython: language_level=3
"""Binding of the quantisers. Addresses go in as integers: callers own the memory and check shapes.

Nothing here is public; `hybridkern.quants.quantize` is.
"""

from libc.stdint cimport int64_t, uint8_t, uintptr_t


cdef extern from "quantize/hk_quantize.h" nogil:
    ctypedef enum hk_type:
        pass
    enum:
        HK_QUANTIZE_OK
        HK_QUANTIZE_NOT_FINITE
        HK_QUANTIZE_TOO_LARGE
    ctypedef struct hk_quantize_job:
        hk_type type "from"
        hk_type to
        const uint8_t *src
        int64_t rows, cols
        const float *importance
        uint8_t *dst
        int64_t fault
    ctypedef int (*hk_quantize_fn)(hk_quantize_job *)
    hk_quantize_fn hk_quantize_for(const char *isa)

OK, NOT_FINITE, TOO_LARGE = HK_QUANTIZE_OK, HK_QUANTIZE_NOT_FINITE, HK_QUANTIZE_TOO_LARGE


def rows(str isa, int from_type, int to_type, uintptr_t src, int64_t n_rows, int64_t cols, uintptr_t importance,
         uintptr_t dst) -> tuple:
    """Quantises n_rows x cols floats at src into blocks at dst, without the GIL; (a code above, index of a fault)."""
    cdef hk_quantize_job job
    cdef int rc
    cdef bytes name = isa.encode()
    cdef hk_quantize_fn run = hk_quantize_for(name)
    job.type, job.to = <hk_type>from_type, <hk_type>to_type
    job.src, job.dst = <const uint8_t *>src, <uint8_t *>dst
    job.importance = <const float *>importance
    job.rows, job.cols, job.fault = n_rows, cols, -1
    with nogil:
        rc = run(&job)
    return rc, job.fault
