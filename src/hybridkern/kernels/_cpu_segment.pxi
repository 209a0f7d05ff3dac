# Segments of a program on a GPU.

cdef class Segment:
    """Graphs of one device, one per step class, ascending. Whoever makes it owns what the addresses mean, and calls
    `clear` before that is freed."""

    cdef hk_segment segment

    def __cinit__(self, *, uintptr_t context, uintptr_t stream, int n_vocab, int max_pages, int n_seq, uint64_t pages,
                  uint64_t logits, int64_t logits_stride):
        cdef hk_segment *g = &self.segment
        cdef int64_t i
        memset(g, 0, sizeof(hk_segment))
        g.context, g.stream, g.last = <void *>context, <void *>stream, -1
        g.n_vocab, g.max_pages, g.n_seq, g.pages = n_vocab, max_pages, n_seq, pages
        g.logits, g.logits_stride = logits, logits_stride
        g.mirror = <int32_t *>calloc(<int64_t>n_seq * max_pages, sizeof(int32_t))
        if g.mirror == NULL:
            raise MemoryError
        for i in range(<int64_t>n_seq * max_pages):
            g.mirror[i] = -1

    def __dealloc__(self):
        free(self.segment.mirror)

    def add_class(self, *, int rows, int outputs, uintptr_t graph, uint64_t inputs, int64_t input_bytes, at,
                  uint64_t best, uintptr_t chosen, bint advances) -> None:
        """A graph for steps of at most `rows` tokens and `outputs` outputs; at: where its inputs begin, in int32."""
        if self.segment.n_classes == HK_MAX_CLASSES:
            raise KernelError("too many step classes")
        self.set_class(&self.segment.classes[self.segment.n_classes], rows, outputs, graph, inputs, input_bytes, at)
        cdef hk_class *c = &self.segment.classes[self.segment.n_classes]
        c.best, c.chosen, c.advances = best, <const hk_chosen *>chosen, advances
        self.segment.n_classes += 1

    def set_top(self, *, uintptr_t graph, uint64_t inputs, int64_t input_bytes, at) -> None:
        """A graph for a step of one row that ends in its likeliest tokens."""
        self.set_class(&self.segment.top, 1, 1, graph, inputs, input_bytes, at)

    cdef int set_class(self, hk_class *c, int rows, int outputs, uintptr_t graph, uint64_t inputs, int64_t input_bytes,
                       at) except -1:
        if len(at) != HK_N_FIELDS:
            raise KernelError("too few inputs of a step class")
        c.rows, c.outputs, c.graph, c.inputs, c.input_bytes = rows, outputs, <void *>graph, inputs, input_bytes
        for i, offset in enumerate(at):
            c.at[i] = offset
        return 0

    def clear(self) -> None:
        """No step is possible any more."""
        self.segment.n_classes = 0
        self.segment.top.graph = NULL

    def queue(self, Slot slot, uintptr_t pages, int n, int n_out) -> None:
        """Queue a step of which nothing is asked back."""
        cdef int rc
        slot.slot.n, slot.slot.n_out = n, n_out
        with nogil:
            rc = hk_segment_queue(&self.segment, &slot.slot, <const int32_t *>pages, 0, 0)
        check(rc)

    def copy(self, uint64_t to, uint64_t source, int64_t nbytes) -> None:
        """Queue a copy of device memory."""
        cdef int rc
        with nogil:
            rc = hk_segment_copy(&self.segment, to, source, nbytes)
        check(rc)

    def fill(self, uint64_t at, int byte, int64_t nbytes) -> None:
        """Queue the filling of device memory."""
        cdef int rc
        with nogil:
            rc = hk_segment_fill(&self.segment, at, byte, nbytes)
        check(rc)
