"""The driver shim (csrc/runtime/hk_cuda_driver.h) from Python: a status becomes an exception with the driver's text.

The shim is part of the extension module, whose step program calls it in C; what happens once per model is called from
here, by ctypes. Calls release the GIL, and work in the context that is current in the calling thread.
"""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.errors import KernelError, OutOfMemoryError
from hybridkern.kernels import _cpu

from .launches import Launch, home_of

_OUT_OF_MEMORY = 2
# What CMake built: in an editable installation it lies beside the extension module, not beside this file.
BUILT = Path(_cpu.__file__).with_name("cuda")


class _Launch(c.Structure):
    _fields_ = [
        ("function", c.c_void_p),
        ("grid", c.c_uint32 * 3),
        ("block", c.c_uint32 * 3),
        ("shared_bytes", c.c_uint32),
        ("early", c.c_int32),
        ("together", c.c_int32),
        ("args", c.c_void_p),
        ("args_bytes", c.c_size_t),
    ]


@cache
def _library() -> Any:
    library = c.CDLL(_cpu.__file__)
    library.hk_cuda_error.restype = c.c_char_p
    return library


def call(name: str, *args: Any) -> None:
    """hk_cuda_<name>(*args). Integers are passed as 64 bits unless they come as ctypes values."""
    library = _library()
    status = getattr(library, f"hk_cuda_{name}")(*(c.c_uint64(a) if isinstance(a, int) else a for a in args))
    if status:
        text = library.hk_cuda_error().decode(errors="replace")
        raise (OutOfMemoryError if status == _OUT_OF_MEMORY else KernelError)(text)


def _made(name: str, *args: Any) -> int:
    """hk_cuda_<name>(*args, &handle)."""
    handle = c.c_void_p()
    call(name, *args, c.byref(handle))
    return handle.value or 0


def current_context() -> int:
    """The handle of the context that is current in this thread, 0 for none."""
    return _made("context")


@dataclass(frozen=True)
class Facts:
    """What is known of a GPU without using it."""

    number: int
    name: str
    capability: tuple[int, int]
    total_bytes: int


def driver_version() -> tuple[int, int]:
    """The newest CUDA version that the driver serves. Raises KernelError where there is no driver."""
    version = c.c_int()
    call("driver_version", c.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def gpus() -> list[Facts]:
    """The GPUs that this process sees. Raises KernelError where there is no driver, or no GPU."""
    n = c.c_int()
    call("device_count", c.byref(n))
    found = []
    for number in range(n.value):
        name, total, major, minor = c.create_string_buffer(256), c.c_size_t(), c.c_int(), c.c_int()
        call("device_facts", c.c_int(number), name, c.c_int(256), c.byref(total), c.byref(major), c.byref(minor))
        found.append(Facts(number, name.value.decode(errors="replace"), (major.value, minor.value), total.value))
    return found


def attribute(number: int) -> int:
    """An attribute of the current context's device, by the driver's number."""
    value = c.c_int()
    call("device_attribute", c.c_int(number), c.byref(value))
    return value.value


def memory_info() -> tuple[int, int]:
    """Free and total bytes of the device."""
    free, total = c.c_size_t(), c.c_size_t()
    call("memory_info", c.byref(free), c.byref(total))
    return free.value, total.value


class Memory:
    """Device memory, freed by `free`. `Memory.live` is the sum of all that is not, in bytes."""

    live = 0

    def __init__(self, nbytes: int, what: str = "") -> None:
        address = c.c_uint64()
        try:
            call("alloc", max(1, nbytes), c.byref(address))
        except OutOfMemoryError as error:
            free, total = memory_info()
            raise OutOfMemoryError(
                f"the GPU cannot give {nbytes / 2**20:.1f} MiB{' for ' + what if what else ''}: {free / 2**20:.1f} of "
                f"{total / 2**20:.1f} MiB are free. Place fewer layers on it, or shorten the context ({error})"
            ) from error
        self.address, self.nbytes = address.value, nbytes
        Memory.live += nbytes

    def free(self) -> None:
        """Give it back; a second call does nothing."""
        if self.address:
            address, self.address = self.address, 0
            Memory.live -= self.nbytes
            with suppress(KernelError):  # a context that a failed step has broken accepts nothing any more
                call("free", address)


class HostMemory:
    """Page-locked host memory, which the GPU copies to and from without help. It is given back once neither this object
    nor a view of it is left, by `later(free)`: that may happen in any thread."""

    def __init__(self, nbytes: int, later: Callable[..., Any]) -> None:
        self.nbytes = max(1, nbytes)
        self.address = _made("host_alloc", self.nbytes)
        self._memory: Any = (c.c_uint8 * self.nbytes).from_address(self.address)
        finalizer = weakref.finalize(self._memory, later, call, "host_free", c.c_void_p(self.address))
        finalizer.atexit = False  # the process ends, and with it the mapping

    def view(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Part of it."""
        return np.frombuffer(self._memory, np.uint8, nbytes, offset)


class Module:
    """Kernels of one image."""

    def __init__(self, image: bytes) -> None:
        self._image = image  # kept until the load is done
        self.handle = _made("module_load", c.c_char_p(image))

    def function(self, name: str, shared: int = 0) -> int:
        """The handle of a kernel, which may use that much dynamic shared memory."""
        handle = c.c_void_p()
        call("function", self.handle, c.c_char_p(name.encode()), c.c_uint32(shared), c.byref(handle))
        return handle.value or 0

    def unload(self) -> None:
        """Free the kernels."""
        if self.handle:
            handle, self.handle = self.handle, 0
            call("module_unload", handle)


class Kernels:
    """Kernels of several images, given by the name of their source file."""

    def __init__(self, images: Mapping[str, bytes]) -> None:
        self._modules = {name: Module(image) for name, image in images.items()}
        self._functions: dict[str, tuple[int, int]] = {}

    def function(self, name: str, shared: int) -> int:
        """The handle of a kernel."""
        handle, most = self._functions.get(name, (0, 0))
        if not handle or shared > max(most, 48 * 1024):  # the limit of a kernel must not shrink again
            home = home_of(name)
            if home not in self._modules:
                raise KernelError(f"this build has no image {home!r}, which holds the CUDA kernel {name}")
            handle = self._modules[home].function(name, shared)
            self._functions[name] = handle, shared
        return handle

    def has(self, name: str) -> bool:
        """Whether the images have a kernel for this device."""
        try:
            return bool(self.function(name, 0))
        except KernelError:
            return False

    def unload(self) -> None:
        """Free them all."""
        for module in self._modules.values():
            module.unload()
        self._functions.clear()


class Stream:
    """A queue of the device that does not wait for the default one. urgent: its kernels are placed before others."""

    def __init__(self, urgent: bool = False) -> None:
        self.handle = _made("stream_create_urgent" if urgent else "stream_create")

    def launch(self, kernels: Kernels, launches: Sequence[Launch], early: bool = True) -> None:
        """Launch one after the other. early: each may be placed before the one in front of it has ended; kernels wait
        for that end themselves before they touch what it wrote."""
        native = (_Launch * len(launches))()
        for to, one in zip(native, launches, strict=True):
            to.function = kernels.function(one.function, one.shared)
            to.grid, to.block = one.grid, one.block
            to.shared_bytes, to.early, to.together = one.shared, early and not one.together, one.together
            to.args, to.args_bytes = one.args.ctypes.data, one.args.nbytes
        call("launch_all", native, c.c_int(len(launches)), self.handle)

    def capture(self, kernels: Kernels, launches: Sequence[Launch], early: bool = True) -> Graph:
        """The same as a graph."""
        call("capture_begin", self.handle)
        try:
            self.launch(kernels, launches, early)
        finally:
            handle = _made("capture_end", self.handle)
        return Graph(handle, len(launches))

    def upload(self, to: int, array: Any) -> None:
        """Queue the copy of a contiguous array to the device."""
        call("copy_to_device", to, c.c_void_p(array.ctypes.data), array.nbytes, self.handle)

    def download(self, array: Any, at: int) -> None:
        """Queue the copy of device memory into a contiguous array."""
        call("copy_to_host", c.c_void_p(array.ctypes.data), at, array.nbytes, self.handle)

    def fill(self, at: int, byte: int, nbytes: int) -> None:
        """Queue the filling of device memory."""
        call("fill", at, c.c_uint8(byte), nbytes, self.handle)

    def wait(self) -> None:
        """Until everything queued is done."""
        call("stream_wait", self.handle)

    def destroy(self) -> None:
        """Free it."""
        if self.handle:
            handle, self.handle = self.handle, 0
            call("stream_destroy", handle)


class Graph:
    """Launches that start with one call."""

    def __init__(self, handle: int, n_launches: int) -> None:
        self.handle, self.n_launches = handle, n_launches

    def launch(self, stream: Stream) -> None:
        """Queue it."""
        call("graph_launch", self.handle, stream.handle)

    def destroy(self) -> None:
        """Free it."""
        if self.handle:
            handle, self.handle = self.handle, 0
            call("graph_destroy", handle)


class Event:
    """A point in a stream, with a time if that is asked for."""

    def __init__(self, timed: bool = True) -> None:
        self.handle = _made("event_create", c.c_int(timed))

    def record(self, stream: Stream) -> None:
        """Mark the end of what is queued."""
        call("event_record", self.handle, stream.handle)

    def since(self, start: Event) -> float:
        """Milliseconds from another event; waits."""
        call("event_wait", self.handle)
        value = c.c_float()
        call("event_elapsed", start.handle, self.handle, c.byref(value))
        return value.value

    def destroy(self) -> None:
        """Free it."""
        if self.handle:
            handle, self.handle = self.handle, 0
            call("event_destroy", handle)
