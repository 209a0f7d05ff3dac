# GPUs in step programs. Whoever makes these owns what the addresses mean.

def set_patience(double seconds) -> None:
    """How long a step waits for a GPU before it is an error."""
    global hk_patience
    hk_patience = <int64_t>(seconds * 1e9)


cdef class Gpu:
    """What step programs share of one device. index: of its memory in slots."""

    cdef hk_gpu gpu

    def __cinit__(self, *, uintptr_t context, uintptr_t stream, int n_vocab, int max_pages, int n_seq, uint64_t pages,
                  uint64_t logits, int64_t logits_stride, int index=0):
        cdef hk_gpu *g = &self.gpu
        cdef int64_t i
        memset(g, 0, sizeof(hk_gpu))
        if not 0 <= index < HK_MAX_GPUS:
            raise KernelError(f"a model can be divided between at most {HK_MAX_GPUS} GPUs")
        g.context, g.stream, g.index = <void *>context, <void *>stream, index
        g.n_vocab, g.max_pages, g.n_seq, g.pages = n_vocab, max_pages, n_seq, pages
        g.logits, g.logits_stride = logits, logits_stride
        g.mirror = <int32_t *>calloc(<int64_t>n_seq * max_pages, sizeof(int32_t))
        if g.mirror == NULL:
            raise MemoryError
        for i in range(<int64_t>n_seq * max_pages):
            g.mirror[i] = -1

    def __dealloc__(self):
        free(self.gpu.mirror)

    def copy(self, uint64_t to, uint64_t source, int64_t nbytes) -> None:
        """Queue a copy of device memory."""
        cdef int rc
        with nogil:
            rc = hk_gpu_copy(&self.gpu, to, source, nbytes)
        check(rc)

    def fill(self, uint64_t at, int byte, int64_t nbytes) -> None:
        """Queue the filling of device memory."""
        cdef int rc
        with nogil:
            rc = hk_gpu_fill(&self.gpu, at, byte, nbytes)
        check(rc)


cdef class Graphs:
    """The graphs of one program on one device: step classes, ascending. `clear` comes before they are freed."""

    cdef hk_graphs graphs
    cdef readonly Gpu gpu
    cdef readonly int n_segments

    def __cinit__(self, Gpu gpu, int n_segments=1):
        memset(&self.graphs, 0, sizeof(hk_graphs))
        self.gpu, self.n_segments = gpu, n_segments
        self.graphs.gpu, self.graphs.n_segments = &gpu.gpu, n_segments

    def __dealloc__(self):
        self.clear()

    def add_class(self, *, int rows, int outputs, graphs, uint64_t inputs, int64_t input_bytes, at, uint64_t best,
                  uintptr_t chosen, bint advances, bint linked=False) -> None:
        """For steps of at most `rows` tokens and `outputs` outputs. graphs: handles, one for each segment, or with
        `linked` one; at: where its inputs begin, in int32; chosen: 0 where tokens are chosen elsewhere."""
        if self.graphs.n_classes == HK_MAX_CLASSES:
            raise KernelError("too many step classes")
        cdef hk_class *c = &self.graphs.classes[self.graphs.n_classes]
        self.set_class(c, rows, outputs, graphs, 1 if linked else self.n_segments, inputs, input_bytes, at)
        c.best, c.chosen, c.advances, c.linked = best, <const hk_chosen *>chosen, advances, linked
        self.graphs.n_classes += 1

    def set_top(self, *, graph, uint64_t inputs, int64_t input_bytes, at) -> None:
        """A graph for a step of one row that ends in its likeliest tokens."""
        self.set_class(&self.graphs.top, 1, 1, [graph], 1, inputs, input_bytes, at)

    cdef int set_class(self, hk_class *c, int rows, int outputs, graphs, int n, uint64_t inputs, int64_t input_bytes,
                       at) except -1:
        if len(at) != HK_N_FIELDS or len(graphs) != n:
            raise KernelError("a step class lacks inputs or graphs")
        c.graphs = <void **>calloc(n, sizeof(void *))
        if c.graphs == NULL:
            raise MemoryError
        for i in range(n):
            c.graphs[i] = <void *><uintptr_t>graphs[i]
        c.rows, c.outputs, c.inputs, c.input_bytes = rows, outputs, inputs, input_bytes
        for i, offset in enumerate(at):
            c.at[i] = offset
        return 0

    def clear(self) -> None:
        """No step is possible any more."""
        for i in range(self.graphs.n_classes):
            free(self.graphs.classes[i].graphs)
        free(self.graphs.top.graphs)
        self.graphs.n_classes, self.graphs.top.graphs = 0, NULL

    def queue(self, Slot slot, uintptr_t pages, int n, int n_out) -> None:
        """Queue a step of which nothing is asked back; of one segment."""
        cdef int rc
        slot.slot.n, slot.slot.n_out = n, n_out
        with nogil:
            rc = hk_graphs_queue(&self.graphs, &slot.slot, <const int32_t *>pages, 0, 0)
        check(rc)


cdef class Area:
    """Page-locked memory that transfers share in large steps; see hk_link.h."""

    cdef hk_area area

    def __cinit__(self):
        memset(&self.area, 0, sizeof(hk_area))


cdef hk_end end_of(object end):
    """(whether it is main memory, address, floats from row to row)."""
    cdef hk_end e
    cdef uint64_t at = end[1]
    e.host, e.device, e.stride = NULL, 0, end[2]
    if end[0]:
        e.host = <float *><uintptr_t>at
    else:
        e.device = at
    return e


cdef class Transfer:
    """Values that cross from one device to another. source, to: Graphs, or None for the CPU; sent, received: events of
    these two; flag: address of an int32 of page-locked memory."""

    cdef hk_transfer transfer
    cdef list owned

    def __cinit__(self, Graphs source, Graphs to, Area area, *, uintptr_t flag, uintptr_t sent=0, uintptr_t received=0):
        cdef hk_transfer *t = &self.transfer
        memset(t, 0, sizeof(hk_transfer))
        self.owned = [source, to, area]
        t.source = NULL if source is None else &source.graphs
        t.to = NULL if to is None else &to.graphs
        t.area, t.flag, t.sent, t.received = &area.area, <void *>flag, <void *>sent, <void *>received

    def add(self, source, to, int64_t width, bint outputs, uintptr_t linked, uintptr_t area) -> None:
        """A part of it; the ends as (whether it is main memory, address, floats from row to row), and where its rows
        pass in linked steps and in others."""
        cdef hk_transfer *t = &self.transfer
        if t.n_parts == HK_LINK_PARTS:
            raise KernelError("too many parts in one transfer")
        cdef hk_link_part *p = &t.parts[t.n_parts]
        p.source, p.to, p.width, p.outputs = end_of(source), end_of(to), width, outputs
        p.linked, p.area = <float *>linked, <float *>area
        t.n_parts += 1
