"""The driver shim (csrc/runtime/hk_cuda_driver.h) from Python: a status becomes an exception with the driver's text.

Calls release the GIL. They work in the context that is current in the calling thread, which pycuda has made so.
"""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hybridkern.errors import KernelError, OutOfMemoryError
from hybridkern.kernels import _cpu

from .launches import Launch, home_of

_OUT_OF_MEMORY = 2
_LIBRARY = "libhk_cuda_driver.so"
# What CMake built: in an editable installation it lies beside the extension module, not beside this file.
BUILT = Path(_cpu.__file__).with_name("cuda")


class _Launch(c.Structure):
    _fields_ = [
        ("function", c.c_void_p),
        ("grid", c.c_uint32 * 3),
        ("block", c.c_uint32 * 3),
        ("shared_bytes", c.c_uint32),
        ("early", c.c_int32),
        ("args", c.c_void_p),
        ("args_bytes", c.c_size_t),
    ]


@cache
def _library() -> Any:
    path = Path(os.environ.get("HYBRIDKERN_CUDA_DRIVER") or BUILT / _LIBRARY)
    try:
        library = c.CDLL(str(path))
    except OSError as error:
        raise KernelError(
            f"this build has no CUDA driver shim: install with -C cmake.define.HYBRIDKERN_CUDA=ON ({error})"
        ) from error
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
    """Device memory, freed by `free`."""

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

    def free(self) -> None:
        """Give it back; a second call does nothing."""
        if self.address:
            address, self.address = self.address, 0
            call("free", address)


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
    """A queue of the device that does not wait for the default one."""

    def __init__(self) -> None:
        self.handle = _made("stream_create")

    def launch(self, kernels: Kernels, launches: Sequence[Launch], early: bool = True) -> None:
        """Launch one after the other. early: each may be placed before the one in front of it has ended; kernels wait
        for that end themselves before they touch what it wrote."""
        native = (_Launch * len(launches))()
        for to, one in zip(native, launches, strict=True):
            to.function = kernels.function(one.function, one.shared)
            to.grid, to.block = one.grid, one.block
            to.shared_bytes, to.early = one.shared, early
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
    """A point in a stream, with a time."""

    def __init__(self) -> None:
        self.handle = _made("event_create", c.c_int(1))

    def record(self, stream: Stream) -> None:
        """Mark the end of what is queued."""
        call("event_record", self.handle, stream.handle)

    def since(self, start: Event) -> float:
        """Milliseconds from another event; waits."""
        call("event_wait", self.handle)
        value = c.c_float()
        call("event_elapsed", start.handle, self.handle, c.byref(value))
        return value.value
