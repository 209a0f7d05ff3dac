# Step slots and programs.

cdef extern from *:
    """
    /* Signals are seen by the interpreter alone. Called in the thread that runs the step, which gave the GIL away: an
     * exception that a handler raises (KeyboardInterrupt) stays pending in that thread until the step has returned. */
    static int hk_poll_python(void) {
        PyGILState_STATE s = PyGILState_Ensure();
        int rc = PyErr_CheckSignals();
        PyGILState_Release(s);
        return rc;
    }
    static void hk_program_set_cancel(hk_program *p, int v) { atomic_store(&p->cancel, v); }
    static int hk_program_cancelled(hk_program *p) { return atomic_load(&p->cancel); }
    """
    int hk_poll_python() noexcept nogil
    void hk_program_set_cancel(hk_program *p, int v) noexcept nogil
    int hk_program_cancelled(hk_program *p) noexcept nogil

cdef extern from "Python.h":
    void *PyErr_Occurred()


class Cancelled(Exception):
    """The step was cancelled from another thread; its results are void."""


cdef extern from *:
    """
    #include <time.h>
    static int64_t hk_nanoseconds(int coarse) {
        struct timespec t;
    #if defined(CLOCK_MONOTONIC_COARSE)
        clock_gettime(coarse ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC, &t);
    #else
        (void)coarse;
        clock_gettime(CLOCK_MONOTONIC, &t);
    #endif
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    """
    int64_t hk_nanoseconds(int coarse) noexcept nogil


cdef class Slot:
    """Inputs and results of one step. The addresses are those of NumPy arrays that the engine owns."""

    cdef hk_slot slot
    cdef hk_device_slot devices[16]

    def __cinit__(self, *, uintptr_t tokens, uintptr_t positions, uintptr_t sequences, uintptr_t variants,
                  uintptr_t outputs, uintptr_t pages, uintptr_t logits, uintptr_t best, uintptr_t bad,
                  uintptr_t best_value, uintptr_t best_lse):
        cdef hk_slot *s = &self.slot
        s.n = s.n_out = 0
        s.tokens, s.positions, s.sequences = <int32_t *>tokens, <int32_t *>positions, <int32_t *>sequences
        s.variants, s.outputs, s.pages = <int32_t *>variants, <int32_t *>outputs, <int32_t *>pages
        s.logits, s.best, s.bad = <float *>logits, <int32_t *>best, <int32_t *>bad
        s.best_value, s.best_lse = <float *>best_value, <double *>best_lse
        memset(s.devices, 0, sizeof(s.devices))

    def attach(self, int index, *, uintptr_t inputs, uintptr_t pages, uintptr_t few, int n_few,
               uintptr_t done) -> None:
        """For steps on a GPU: page-locked memory, see hk_gpu.h, and an event."""
        cdef hk_device_slot *d = &self.devices[index]
        memset(d, 0, sizeof(hk_device_slot))
        d.inputs, d.pages = <uint8_t *>inputs, <int32_t *>pages
        d.few, d.n_few, d.done = <float *>few, n_few, <void *>done
        self.slot.devices[index] = d


cdef class Program:
    """A step program: replays of tapes, launches of graphs and transfers that one call runs without the GIL."""

    cdef hk_program *program  # aligned to 128 bytes, which the memory of Python objects is not
    cdef readonly list owned
    cdef hk_graphs *graphs  # of a program that is one segment on a GPU
    cdef const int32_t *pages
    cdef int32_t n_seq
    cdef Decoding armed
    cdef int64_t left  # when the last step ended, where gaps are noted
    cdef int64_t *gaps
    cdef int64_t n_gaps, max_gaps

    def __cinit__(self, uintptr_t pages, int n_seq, uintptr_t abort=0):
        """pages: the page table int32 [n_seq][...]; abort: an int32 that kernels look at while they wait."""
        self.program = <hk_program *>aligned_alloc(128, sizeof(hk_program))
        if self.program == NULL:
            raise MemoryError
        memset(self.program, 0, sizeof(hk_program))
        self.owned = []
        self.program.poll = &hk_poll_python
        self.program.abort = <void *>abort
        self.pages, self.n_seq = <const int32_t *>pages, n_seq

    def __dealloc__(self):
        if self.program != NULL:
            free(self.program.commands)
        free(self.program)
        free(self.gaps)

    cdef hk_command *append(self, int kind, object owned) except NULL:
        cdef hk_program *p = self.program
        p.commands = <hk_command *>realloc(p.commands, (p.n_commands + 1) * sizeof(hk_command))
        if p.commands == NULL:
            raise MemoryError
        cdef hk_command *c = &p.commands[p.n_commands]
        memset(c, 0, sizeof(hk_command))
        c.kind = kind
        self.owned.append(owned)
        return c

    cdef void appended(self):
        self.program.n_commands += 1
        self.graphs = hk_step_graphs(self.program)

    def replay(self, Tape tape, int first=0, last=None) -> Program:
        """Operations [first, last) of a tape."""
        cdef hk_command *c = self.append(HK_REPLAY, tape)
        cdef int i
        c.tape, c.first, c.last = &tape.tape, first, tape.tape.n_ops if last is None else last
        for i in range(self.program.n_tapes):
            if self.program.tapes[i] == &tape.tape:
                break
        else:
            if self.program.n_tapes > HK_MAX_GPUS:
                raise KernelError("too many tapes in one program")
            self.program.tapes[self.program.n_tapes] = &tape.tape
            self.program.n_tapes += 1
        self.appended()
        return self

    def launch(self, Graphs graphs, int segment=0) -> Program:
        """A segment of a GPU."""
        cdef hk_command *c = self.append(HK_LAUNCH, graphs)
        cdef int i
        c.graphs, c.first = &graphs.graphs, segment
        for i in range(self.program.n_graphs):
            if self.program.graphs[i] == &graphs.graphs:
                break
        else:
            if self.program.n_graphs == HK_MAX_GPUS:
                raise KernelError("too many GPUs in one program")
            self.program.graphs[self.program.n_graphs] = &graphs.graphs
            self.program.n_graphs += 1
        self.appended()
        return self

    def send(self, Transfer transfer) -> Program:
        """What leaves a device."""
        self.append(HK_SEND, transfer).transfer = &transfer.transfer
        self.appended()
        return self

    def receive(self, Transfer transfer) -> Program:
        """What arrives on a device."""
        self.append(HK_RECEIVE, transfer).transfer = &transfer.transfer
        if transfer.transfer.to == NULL and transfer.transfer.source != NULL:
            self.program.alternates = True
        self.appended()
        return self

    def cancel(self) -> None:
        """Ends the step that is running, and every later one, until `resume`. From any thread."""
        hk_program_set_cancel(self.program, 1)

    def resume(self) -> None:
        """Something else than the decoding under way begins: disarms it, and allows steps again after a cancel."""
        if self.armed is not None:
            self.armed.disarm()
        hk_program_set_cancel(self.program, 0)

    def note_gaps(self, int64_t n) -> None:
        """From now on, the time between the end of a step and the beginning of the next is noted, n times."""
        free(self.gaps)
        self.gaps, self.n_gaps, self.max_gaps, self.left = <int64_t *>calloc(max(n, 1), sizeof(int64_t)), 0, n, 0
        if self.gaps == NULL:
            raise MemoryError

    def noted_gaps(self) -> list:
        """Nanoseconds between steps, as noted."""
        return [self.gaps[i] for i in range(self.n_gaps)]

    cdef void note_gap(self) noexcept nogil:
        if self.gaps != NULL and self.left and self.n_gaps < self.max_gaps:
            self.gaps[self.n_gaps] = hk_nanoseconds(0) - self.left
            self.n_gaps += 1

    cdef int go(self, hk_slot *slot, int threads, bint greedy) except -1:
        cdef int rc
        with nogil:
            self.note_gap()
            rc = hk_step_run(self.program, slot, self.pages, self.n_seq, threads, greedy)
            if self.gaps != NULL:
                self.left = hk_nanoseconds(0)
        return 0 if rc == HK_OK else self.failed(rc)

    cdef int go_ahead(self, hk_slot *slot, hk_slot *following, bint queued) except -1:
        """A greedy step of one row, see hk_step_ahead."""
        cdef int rc
        with nogil:
            self.note_gap()
            rc = hk_step_ahead(self.program, slot, following, self.pages, queued)
            if self.gaps != NULL:
                self.left = hk_nanoseconds(0)
        return 0 if rc == HK_OK else self.failed(rc)

    cdef int failed(self, int rc) except -1:
        check(rc)
        if PyErr_Occurred() != NULL:  # a signal's handler raised during the step
            return -1
        raise Cancelled

    def run(self, Slot slot, int n, int n_out, int threads, bint greedy=False) -> None:
        """One step over the n tokens and n_out outputs that the slot's arrays hold. Raises Cancelled, or what a
        signal's handler raised."""
        slot.slot.n, slot.slot.n_out = n, n_out
        self.go(&slot.slot, threads, greedy)

    def decode_top(self, Slot slot, int token, int position, int sequence, int variant) -> None:
        """One token of one sequence on a GPU; where its likeliest tokens lie then is for whoever made the segment."""
        cdef hk_slot *s = &slot.slot
        cdef int rc
        s.n = s.n_out = 1
        s.tokens[0], s.positions[0], s.sequences[0], s.variants[0], s.outputs[0] = token, position, sequence, variant, 0
        with nogil:
            rc = hk_step_top(self.program, s, self.pages)
        if rc != HK_OK:
            self.failed(rc)

    def decode(self, Slot slot, int token, int position, int sequence, int variant, int threads) -> tuple:
        """One token of one sequence, greedy: (best token, its log-probability, bad)."""
        cdef hk_slot *s = &slot.slot
        s.n = s.n_out = 1
        s.tokens[0], s.positions[0], s.sequences[0], s.variants[0], s.outputs[0] = token, position, sequence, variant, 0
        self.go(s, threads, True)
        return s.best[0], s.best_value[0] - s.best_lse[0], s.bad[0]
