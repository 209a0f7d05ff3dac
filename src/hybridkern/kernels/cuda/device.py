"""One device: its context, its kernels, and the one thread that allocates, frees and launches on it."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from hybridkern.errors import KernelError

from .driver import Kernels, Stream, attribute, call, current_context, driver_version
from .images import load_images
from .tiles import WGMMA_KERNEL

T = TypeVar("T")
_PROCESSORS, _MAJOR, _MINOR, _BLOCK_MEMORY, _MAPS, _ONE_ADDRESS_SPACE = (
    16,
    75,
    76,
    97,
    19,
    41,
)  # attribute numbers of the driver
_devices: dict[int, Device] = {}
_lock = threading.Lock()
_forked = False  # this process is a child of one that had opened a device


def _visible() -> str:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if hidden is None else f" (CUDA_VISIBLE_DEVICES is {hidden!r})"


def _refuse_after_fork() -> None:
    if _forked:
        raise KernelError(
            "the GPU was in use before this process was forked, and CUDA cannot be used in such a child: start it with "
            "the 'spawn' method"
        )


def _after_fork() -> None:
    global _forked, _lock
    _forked, _lock = bool(_devices), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Device:
    """Use `Device.get(number)`: there is one per device and process.

    pycuda gives the one Context object, that of the device's primary context, which other libraries in the process
    share. It is current in the device's thread, and in others only while a step is queued or waited for. pycuda's own
    stack of contexts stays empty: pycuda aborts the process when a thread ends that has something on it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended = False
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        # A daemon, so that it still serves while the interpreter's exit handlers run: one of them closes the device.
        self._thread = threading.Thread(target=self._serve, name=f"hybridkern-cuda-{number}", daemon=True)
        self._thread.start()
        try:
            self.run(self._open)
        except BaseException:
            self._queue.put(None)
            raise
        atexit.register(self._at_exit, os.getpid())  # after pycuda's import, so before its own handlers

    @classmethod
    def get(cls, number: int = 0) -> Device:
        """The device. Raises KernelError where it cannot be used, saying why."""
        _refuse_after_fork()
        with _lock:
            if number not in _devices:
                _devices[number] = cls(number)
            return _devices[number]

    def run(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function in the device's thread, in which its context is current."""
        _refuse_after_fork()
        if self.ended:
            raise KernelError("the GPU was closed: the process is ending")
        return self.later(function, *args, **options).result()

    def later(self, function: Callable[..., T], *args: Any, **options: Any) -> Future[T]:
        """The same without waiting: for finalisers."""
        future: Future[T] = Future()
        self._queue.put((future, lambda: function(*args, **options)))
        return future

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            future, call_it = job
            try:
                future.set_result(call_it())
            except BaseException as error:
                future.set_exception(error)
            del job, future, call_it

    def _at_exit(self, process: int) -> None:
        if os.getpid() != process:
            return  # a fork has no threads, and nothing of its own on the device
        self.ended = True
        self.later(self._close)
        self._queue.put(None)
        self._thread.join()

    def _close(self) -> None:
        # A broken context refuses every call; the process ends all the same, and the driver frees what is left.
        for give_back in (self.stream.destroy, self.kernels.unload, lambda: call("leave"), self.context.detach):
            with suppress(Exception):
                give_back()

    def _open(self) -> None:
        try:
            version = driver_version()
        except KernelError as error:
            raise KernelError(f"no GPU can be used: {error}{_visible()}") from error
        try:
            import pycuda.driver as cuda
        except ImportError as error:
            raise KernelError(
                f"no GPU can be used: pycuda is not installed: run `hybridkern setup-cuda` ({error})"
            ) from error
        try:
            cuda.init()
            count = cuda.Device.count()
        except cuda.Error as error:
            raise KernelError(f"no GPU can be used: {error}{_visible()}") from error
        if not 0 <= self.number < count:
            raise KernelError(f"there is no GPU {self.number}: this process sees {count}{_visible()}")
        device = cuda.Device(self.number)
        self.name = device.name()
        self.context = device.retain_primary_context()
        self.context.push()
        self.handle = current_context()
        self.context.pop()
        call("enter", self.handle)
        self.processors, self.block_memory = attribute(_PROCESSORS), attribute(_BLOCK_MEMORY)
        self.capability = attribute(_MAJOR), attribute(_MINOR)
        self.mapped = bool(attribute(_MAPS) and attribute(_ONE_ADDRESS_SPACE))  # kernels reach page-locked memory
        try:
            self.kernels = Kernels(load_images(self.capability, version))
            self.stream = Stream()
        except BaseException as error:
            call("leave")
            self.context.detach()
            if not isinstance(error, KernelError):
                raise
            major, minor = self.capability
            raise KernelError(
                f"the kernels of this build do not run on {self.name} (sm_{major}{minor}, driver for CUDA "
                f"{version[0]}.{version[1]}): {error}"
            ) from error
        # Machine code for sm_90a alone has these; code for sm_90 or PTX does not.
        self.wgmma = self.capability == (9, 0) and self.kernels.has(WGMMA_KERNEL)

    @property
    def early(self) -> bool:
        """Whether kernels may start before the one in front of them has ended."""
        return self.capability >= (9, 0)
