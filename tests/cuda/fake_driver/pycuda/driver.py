"""Devices and contexts. As pycuda does, it ends a process whose stack of contexts is not empty at the end."""

from __future__ import annotations

import atexit
import ctypes as c
import os

_cuda = c.CDLL("libcuda.so.1")
_pushed = 0


class Error(Exception):
    """A status of the driver."""


def init() -> None:
    if status := _cuda.cuInit(0):
        raise Error(f"cuInit failed: {status}")


class Context:
    def __init__(self, number: int) -> None:
        self._number, self._handle = number, c.c_void_p()
        _cuda.cuDevicePrimaryCtxRetain(c.byref(self._handle), number)

    def push(self) -> None:
        global _pushed
        _pushed += 1
        _cuda.cuCtxPushCurrent_v2(self._handle)

    def pop(self) -> None:
        global _pushed
        _pushed -= 1
        _cuda.cuCtxPopCurrent_v2(c.byref(c.c_void_p()))

    def detach(self) -> None:
        _cuda.cuDevicePrimaryCtxRelease_v2(self._number)


class Device:
    def __init__(self, number: int) -> None:
        self._number = number

    @staticmethod
    def count() -> int:
        return int(os.environ.get("FAKE_CUDA_DEVICES", "1"))

    def name(self) -> str:
        return f"Fake {self._number}"

    def retain_primary_context(self) -> Context:
        return Context(self._number)


def _check_stack() -> None:
    if _pushed:
        os.abort()


atexit.register(_check_stack)
