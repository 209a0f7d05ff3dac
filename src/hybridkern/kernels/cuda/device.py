"""One device: its context, its kernels, and the one thread that allocates, frees and launches on it."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from hybridkern.errors import KernelError

from .driver import BUILT, Kernels, Stream, attribute
from .tiles import WGMMA_KERNEL

T = TypeVar("T")
_PROCESSORS, _MAJOR, _MINOR, _BLOCK_MEMORY = 16, 75, 76, 97  # attribute numbers of the driver
_devices: dict[int, Device] = {}
_lock = threading.Lock()


def image_files() -> list[Path]:
    """The compiled kernels of this build (or of the folder HYBRIDKERN_CUDA_IMAGES)."""
    folder = os.environ.get("HYBRIDKERN_CUDA_IMAGES")
    at = Path(folder) if folder else BUILT
    return sorted([*at.glob("*.fatbin"), *at.glob("*.cubin")])


class Device:
    """Use `Device.get(number)`: there is one per device and process."""

    def __init__(self, number: int) -> None:
        self.number = number
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
        with _lock:
            if number not in _devices:
                _devices[number] = cls(number)
            return _devices[number]

    def run(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function in the device's thread, in which its context is current."""
        return self.later(function, *args, **options).result()

    def later(self, function: Callable[..., T], *args: Any, **options: Any) -> Future[T]:
        """The same without waiting: for finalisers."""
        future: Future[T] = Future()
        self._queue.put((future, lambda: function(*args, **options)))
        return future

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            future, call = job
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del job, future, call

    def _at_exit(self, process: int) -> None:
        if os.getpid() != process:
            return  # a fork has no threads, and nothing of its own on the device
        self.run(self._close)
        self._queue.put(None)
        self._thread.join()

    def _close(self) -> None:
        self.stream.destroy()
        self.kernels.unload()
        self._context.pop()

    def _open(self) -> None:
        try:
            import pycuda.driver as cuda
        except ImportError as error:
            raise KernelError(
                f'no GPU can be used: pycuda is not installed (pip install "hybridkern[cuda]"): {error}'
            ) from error
        try:
            cuda.init()
            count = cuda.Device.count()
        except cuda.Error as error:
            raise KernelError(f"no GPU can be used: {error}") from error
        if not 0 <= self.number < count:
            raise KernelError(f"there is no GPU {self.number}: this process sees {count}")
        files = image_files()
        if not files:
            raise KernelError("this build has no CUDA kernels: install with -C cmake.define.HYBRIDKERN_CUDA=ON")
        device = cuda.Device(self.number)
        self.name = device.name()
        self._context = device.retain_primary_context()
        self._context.push()
        self.processors, self.block_memory = attribute(_PROCESSORS), attribute(_BLOCK_MEMORY)
        self.capability = attribute(_MAJOR), attribute(_MINOR)
        try:
            self.kernels = Kernels({f.stem: f.read_bytes() for f in files})
        except KernelError as error:
            major, minor = self.capability
            raise KernelError(
                f"the kernels of this build do not run on {self.name} (sm_{major}{minor}): {error}"
            ) from error
        # Machine code for sm_90a alone has these; code for sm_90 or PTX does not.
        self.wgmma = self.capability == (9, 0) and self.kernels.has(WGMMA_KERNEL)
        self.stream = Stream()

    @property
    def early(self) -> bool:
        """Whether kernels may start before the one in front of them has ended."""
        return self.capability >= (9, 0)
