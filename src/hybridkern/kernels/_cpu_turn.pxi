# A lock that Ctrl-C cannot leave taken, and that a forked child never finds taken.

cdef class Turn:
    """One caller at a time: `with turn:`, whose value is the lock. A plain lock, not a re-entrant one.

    Python runs the handlers of signals between bytecodes. In an `__exit__` written in Python, one that raises
    (KeyboardInterrupt) could run before the lock is given back, which then nobody can take again. There are no
    bytecodes between the edges of the `with` statement and the lock here. `begin` and `end` are for subclasses.
    """

    cdef readonly Lock lock

    def __init__(self):
        self.lock = Lock()

    def begin(self) -> None:
        """Called with the lock taken; what it raises gives the lock back."""

    def end(self) -> None:
        """Called after the lock was given back."""

    def __enter__(self):
        cdef Lock lock = self.lock
        lock.acquire()
        try:
            self.begin()
        except BaseException:
            lock.give()
            raise
        return lock

    def __exit__(self, *exc):
        self.lock.give()
        self.end()

    def attempt(self, work) -> bool:
        """Calls `work` in a turn of its own if the lock is free, without `begin` and `end`; says whether it did."""
        cdef Lock lock = self.lock
        if not lock.acquire(False):
            return False
        try:
            work()
        finally:
            lock.give()
        return True

    @property
    def taken(self) -> bool:
        """Whether it is somebody's turn."""
        return self.lock.taken

    def renew(self) -> None:
        """A fresh lock, for a child process: there the old one stays as some thread of the parent held it."""
        self.lock = Lock()
