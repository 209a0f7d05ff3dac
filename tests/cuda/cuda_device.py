"""A device for tests, on pycuda and NumPy alone: memory between guards, filled with NaN bytes, and launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkern.kernels.cuda.images import image_files
from hybridkern.kernels.cuda.launches import Launch, home_of

GUARD, POISON = 0xA5, 0xFF
_GUARD_BYTES = 4096


def why_not() -> str | None:
    """Why no GPU can be used, or None."""
    try:
        import pycuda.driver as cuda

        cuda.init()
        if cuda.Device.count() == 0:
            return "no NVIDIA GPU"
    except ImportError:
        return "pycuda is not installed"
    except Exception as error:
        return f"no usable NVIDIA GPU: {error}"
    return None if image_files() else "no compiled CUDA kernels: build with -C cmake.define.HYBRIDKERN_CUDA=ON"


class Gpu:
    """Device 0 with all kernels loaded."""

    def __init__(self) -> None:
        import pycuda.driver as cuda

        cuda.init()
        self.cuda = cuda
        self.context = cuda.Device(0).retain_primary_context()
        self.context.push()
        self.processors = cuda.Device(0).get_attribute(cuda.device_attribute.MULTIPROCESSOR_COUNT)
        self._modules = {p.stem: cuda.module_from_buffer(p.read_bytes()) for p in image_files()}
        self._functions: dict[str, Any] = {}
        self._memory: list[tuple[Any, int]] = []

    def close(self) -> None:
        self.release()
        self._functions.clear()
        self._modules.clear()
        self.context.pop()

    # memory

    def empty(self, nbytes: int) -> int:
        """Device memory filled with NaN bytes, between guards."""
        size = -(-nbytes // 256) * 256
        memory = self.cuda.mem_alloc(size + 2 * _GUARD_BYTES)
        base = int(memory)
        self.cuda.memset_d8(base, GUARD, size + 2 * _GUARD_BYTES)
        self.cuda.memset_d8(base + _GUARD_BYTES, POISON, nbytes)
        self._memory.append((memory, nbytes))
        return base + _GUARD_BYTES

    def put(self, data: npt.ArrayLike, kind: Any = None) -> int:
        """A copy of an array."""
        array = np.ascontiguousarray(data, kind)
        at = self.empty(max(1, array.nbytes))
        if array.nbytes:
            self.cuda.memcpy_htod(at, array)
        return at

    def get(self, at: int, shape: Any, kind: Any = np.float32) -> npt.NDArray[Any]:
        """What lies there now."""
        out = np.empty(shape, kind)
        self.cuda.memcpy_dtoh(out, at)
        return out

    def release(self) -> None:
        """Free everything; raises AssertionError where a guard was overwritten."""
        self.cuda.Context.synchronize()
        broken = 0
        for memory, nbytes in self._memory:
            end = -(-nbytes // 256) * 256 - nbytes + _GUARD_BYTES
            for at, size in ((int(memory), _GUARD_BYTES), (int(memory) + _GUARD_BYTES + nbytes, end)):
                broken += int((self.get(at, size, np.uint8) != GUARD).sum())
            memory.free()
        self._memory.clear()
        assert broken == 0, f"{broken} bytes outside of allocations were written"

    # launches

    def function(self, name: str) -> Any:
        """A kernel of any module."""
        if name not in self._functions:
            self._functions[name] = self._modules[home_of(name)].get_function(name)
        return self._functions[name]

    def has(self, name: str) -> bool:
        """Whether the images have a kernel for this device."""
        try:
            return self.function(name) is not None
        except self.cuda.LogicError:
            return False

    def run(self, *launches: Launch) -> None:
        """One after the other, and wait."""
        for one in launches:
            function = self.function(one.function)
            if one.shared > 48 * 1024:
                function.set_attribute(self.cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, one.shared)
            function(one.args[()], grid=one.grid, block=one.block, shared=one.shared)
        self.cuda.Context.synchronize()

    # what kernels need

    def step(
        self,
        n: int,
        m: int = 0,
        *,
        tokens: npt.ArrayLike | None = None,
        positions: npt.ArrayLike | None = None,
        sequences: npt.ArrayLike | None = None,
        variants: npt.ArrayLike | None = None,
        outputs: npt.ArrayLike | None = None,
        pages: npt.NDArray[np.int32] | None = None,
    ) -> dict[str, int]:
        """A step slot."""
        zeros = np.zeros(n, np.int32)
        table = np.zeros((1, 1), np.int32) if pages is None else pages
        return {
            "counts": self.put([n, m], np.int32),
            "tokens": self.put(zeros if tokens is None else tokens, np.int32),
            "positions": self.put(zeros if positions is None else positions, np.int32),
            "sequences": self.put(zeros if sequences is None else sequences, np.int32),
            "variants": self.put(zeros if variants is None else variants, np.int32),
            "outputs": self.put(np.arange(max(m, 1)) if outputs is None else outputs, np.int32),
            "pages": self.put(table, np.int32),
            "page_stride": table.shape[1],
        }
