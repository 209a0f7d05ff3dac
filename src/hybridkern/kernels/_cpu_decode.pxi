# Greedy decoding, a token a call.

cdef extern from "Python.h":
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int interruptible) nogil
    void PyThread_release_lock(PyThread_type_lock lock)
    int PyErr_CheckSignals() except -1

cdef int forks = 0
cdef int64_t NEVER = 1 << 62


def note_fork() -> None:
    """This process is a child: nothing that was armed in its parent goes on."""
    global forks
    forks += 1


cdef class Lock:
    """A plain lock, as threading.Lock, that compiled code takes without a call: `taken` is guarded by the GIL, and the
    system's lock only lets those wait who find it taken."""

    cdef PyThread_type_lock gate  # closed; opened once for one who waits
    cdef bint taken, opened
    cdef bint missed  # someone who would not wait has come since it was last acquired, and may have left work to do
    cdef int waiting

    def __cinit__(self):
        self.gate = PyThread_allocate_lock()
        if self.gate == NULL:
            raise MemoryError
        PyThread_acquire_lock_timed(self.gate, 0, 0)

    def __dealloc__(self):
        if self.gate != NULL:
            PyThread_release_lock(self.gate)
            PyThread_free_lock(self.gate)

    def acquire(self, bint blocking=True) -> bool:
        """Whether the lock was taken. Signals are handled while waiting."""
        cdef PyLockStatus status
        while self.taken:
            if not blocking:
                self.missed = True
                return False
            self.waiting += 1
            with nogil:
                status = PyThread_acquire_lock_timed(self.gate, -1, 1)
            self.waiting -= 1
            if status == PY_LOCK_ACQUIRED:
                self.opened = False
            else:
                PyErr_CheckSignals()
        self.taken, self.missed = True, False
        return True

    cdef void give(self) noexcept:
        self.taken = False
        if self.waiting and not self.opened:
            self.opened = True
            PyThread_release_lock(self.gate)

    def release(self) -> None:
        """Give the lock back."""
        if not self.taken:
            raise RuntimeError("release of a lock that nobody holds")
        self.give()


cdef class Decoding:
    """The next tokens of one sequence, greedily, as long as nothing else happens to the model.

    Behind a step that has streamed hundreds of megabytes of weights, the interpreter runs with cold caches: what costs
    is how much code and how many objects are touched, not how often. So whoever made the last step the careful way arms
    the decoding, and `step` only repeats it: one more token of the same sequence, in the page that it has already.
    Everything else (another call of the engine, a full page, a limit, a cancel, another thread, a sequence to free, a
    doubtful result) makes `step` return None with nothing changed, and the caller takes the careful way again, which
    knows what to do.

    On a GPU the step behind the one that is asked for is queued too, with the token that it will choose, so that the GPU
    has work while Python looks at that token. If nobody asks for it, it has only written where nothing stands yet.
    """

    cdef Program program  # None: not armed
    cdef Slot slot, spare  # spare: of a GPU, for the step that is queued ahead
    cdef bint ahead  # the step of `expected` at `position` is queued in `slot`
    cdef int expected
    cdef Lock outer, inner
    cdef list ids, lengths
    cdef int sequence, variant, position, limit, threads, forks
    cdef object check
    cdef int64_t period, due

    def __cinit__(self, Lock outer, list ids, check, double seconds):
        """outer: the lock of the model; ids: the tokens of the sequence, appended to; check: raises an error where a
        mapped file has changed, called that often; None for no file."""
        self.outer, self.ids, self.check = outer, ids, check
        self.period = <int64_t>(seconds * 1e9)

    def arm(self, Program program, Slot slot, Lock inner, list lengths, *, int sequence, int variant, int limit,
            int threads, Slot spare=None) -> None:
        """From now on `step` may run; the caller holds both locks, and has checked the file.

        inner: the lock of the engine; lengths: the tokens of every sequence in the cache; limit: the position to stop
        before.
        """
        if len(self.ids) != lengths[sequence] or (self.check is not None and hk_guard_any_faulted()):
            return
        self.slot, self.spare, self.inner, self.lengths = slot, spare, inner, lengths
        self.ahead = False
        self.sequence, self.variant, self.limit, self.threads = sequence, variant, limit, threads
        self.position, self.forks = len(self.ids), forks
        self.due = NEVER if self.check is None else hk_nanoseconds(1) + self.period
        if program.armed is not None:
            program.armed.disarm()
        self.program, program.armed = program, self

    def disarm(self) -> None:
        """Nothing goes on, and nothing of the engine is kept."""
        if self.program is not None:
            self.program.armed = None
            self.program = self.slot = self.spare = self.inner = self.lengths = None

    def step(self, int token):
        """Append a token: (the likeliest next one, its log-probability), or None, and then nothing was done."""
        cdef Program program = self.program
        cdef Lock inner = self.inner
        if (program is None or self.position >= self.limit or self.forks != forks or self.outer.taken or inner.taken
                or self.outer.missed or hk_program_cancelled(program.program)):
            return None
        self.outer.taken = inner.taken = True
        try:
            return self.run(program, token)
        finally:
            inner.give()
            self.outer.give()

    cdef object run(self, Program program, int token):
        cdef Slot slot = self.slot
        cdef list lengths = self.lengths
        cdef hk_slot *s = &slot.slot
        if hk_nanoseconds(1) >= self.due:
            self.check()
            self.due = hk_nanoseconds(1) + self.period
        if program.graphs == NULL:
            self.fill(s, token, self.position)
            program.go(s, self.threads, True)
        elif not self.run_ahead(program, slot, token):
            return None
        if s.bad[0] or self.program is not program or (self.check is not None and hk_guard_any_faulted()):
            self.disarm()
            return None
        self.ids.append(token)
        self.position += 1
        self.expected = s.best[0]
        lengths[self.sequence] = self.position
        return s.best[0], s.best_value[0] - s.best_lse[0]

    cdef void fill(self, hk_slot *s, int token, int position) noexcept:
        s.n = s.n_out = 1
        s.tokens[0], s.positions[0], s.outputs[0] = token, position, 0
        s.sequences[0], s.variants[0] = self.sequence, self.variant

    cdef bint run_ahead(self, Program program, Slot slot, int token) except -1:
        """The step of `token`, which may be under way, and the start of the next; False: another token is under way."""
        cdef Slot spare = self.spare
        cdef bint more = self.position + 1 < self.limit, queued = self.ahead
        if queued and token != self.expected:
            self.disarm()
            return False
        if not queued:
            self.fill(&slot.slot, token, self.position)
        if more:
            self.fill(&spare.slot, 0, self.position + 1)
        try:
            program.go_ahead(&slot.slot, &spare.slot if more else NULL, queued)
        except BaseException:
            self.disarm()
            raise
        if self.program is program:
            self.slot, self.spare, self.ahead = spare, slot, more
        return True
