"""The validated reader of GGUF files, versions 2 and 3, little-endian, whole or split.

A file is a trust boundary: everything it claims is checked when it is opened, and whatever is wrong becomes a
GGUFError that names the file, the key or tensor, and the byte offset. Layout: the public GGUF specification.
"""

from __future__ import annotations

import os
from types import MappingProxyType, TracebackType

import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError, GGUFError

from .cursor import shown, shown_path
from .metadata import Metadata
from .part import Part, parse_digests
from .split import check_part, check_total, part_count, part_paths
from .storage import Storage
from .tensors import TensorInfo


class GGUFFile:
    """An open GGUF file, or all parts of a split one.

    metadata: of the first part. tensors: name -> TensorInfo in file order, parts one after the other.
    Safe to use from several threads. Closing does not invalidate arrays that `data` has returned: the memory behind
    them goes with the last of them.
    """

    def __init__(self, parts: list[Part], use_mmap: bool) -> None:
        """Use `GGUFFile.open`."""
        self._parts = parts
        self._closed = False
        self.mmap = use_mmap
        self.metadata: Metadata = parts[0].metadata
        self.tensors = MappingProxyType({name: info for part in parts for name, info in part.tensors.items()})

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, mmap: bool = True, mlock: bool = False, sha256: str | None = None
    ) -> GGUFFile:
        """Open and validate a GGUF file; the first part of a split model opens all of them.

        mmap: map the tensor data; otherwise each tensor is read into anonymous memory on first use.
        mlock: lock the tensor data in memory.
        sha256: the digest that the whole file at `path` must have, checked before anything in it is believed. For a
        split model it covers the first part only; "digest,digest,..." with one digest per part covers them all.

        Raises GGUFError for a file that cannot be opened, is malformed, incomplete or of a newer format, or cannot be
        locked; ArgumentError for a malformed digest; OutOfMemoryError where there is no memory for `mmap=False`.
        """
        text = os.fsdecode(path)
        digests = parse_digests(sha256)
        parts: list[Part] = []
        try:
            parts.append(Part.open(text, 0, digests[0] if digests else None))
            cls._open_rest(parts, digests)
            for part in parts:
                part.attach(mmap, mlock)
            return cls(parts, mmap)
        except BaseException:
            for part in parts:
                part.close()
            raise

    @staticmethod
    def _open_rest(parts: list[Part], digests: list[str]) -> None:
        first = parts[0]
        count = part_count(first)
        if len(digests) not in (0, 1, count):
            raise ArgumentError(f"sha256 has {len(digests)} digests, but {shown_path(first.path)} has {count} part(s)")
        if count == 1:
            return
        for no, path in enumerate(part_paths(first, count)[1:], 1):
            parts.append(Part.open(path, no, digests[no] if len(digests) == count else None))
            check_part(first, parts[no], no, count)
        check_total(first, parts)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in the order of the parts."""
        return tuple(part.path for part in self._parts)

    @property
    def path(self) -> str:
        """The file that was opened."""
        return self._parts[0].path

    @property
    def version(self) -> int:
        """The format's version, 2 or 3."""
        return self._parts[0].version

    @property
    def alignment(self) -> int:
        """The alignment of tensor data within the first part."""
        return self._parts[0].alignment

    @property
    def nbytes(self) -> int:
        """The size of all files together."""
        return sum(part.size for part in self._parts)

    def _locate(self, name: str) -> tuple[TensorInfo, Storage]:
        if self._closed:
            raise GGUFError(f"{shown_path(self.path)}: the file is closed; tensor {shown(name)} cannot be read")
        info = self.tensors.get(name)
        if info is None:
            raise GGUFError(f"{shown_path(self.path)}: holds no tensor {shown(name)}")
        storage = self._parts[info.part].storage
        assert storage is not None  # a part without tensor data has no tensors
        return info, storage

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor: uint8 (nbytes,), read-only, not a copy. With mmap=False the first call reads them.

        Raises GGUFError: no such tensor, file closed, or bytes that can no longer be read.
        """
        info, storage = self._locate(name)
        storage.load(info.offset, info.nbytes)
        return storage.view(info.offset, info.nbytes)

    def address(self, name: str) -> int:
        """The address of a tensor's first byte, valid while this file is open. Raises like `data`."""
        info, storage = self._locate(name)
        storage.load(info.offset, info.nbytes)
        return storage.address(info.offset)

    def prefetch(self, name: str, start: int = 0, nbytes: int | None = None) -> None:
        """Have the system read bytes of a mapped tensor ahead, without waiting for them."""
        info, storage = self._locate(name)
        storage.prefetch(info.offset + start, info.nbytes - start if nbytes is None else nbytes)

    def release(self, name: str, start: int = 0, nbytes: int | None = None) -> None:
        """Give the memory of a tensor, or of `nbytes` of it from byte `start` on, back, once it has been copied
        elsewhere; the next `data` brings it back.

        Earlier views of the tensor stay safe to read; with mmap=False they hold zeros until `data` is called again.
        Does nothing with mlock.
        """
        info, storage = self._locate(name)
        storage.release(info.offset + start, info.nbytes - start if nbytes is None else nbytes)

    def check_intact(self) -> None:
        """Raise GGUFError if a file was cut short since it was opened; cheap enough to ask after every step.

        What was computed from a mapped file since the last successful check must then be thrown away: missing pages
        read as zeros.
        """
        if self._closed:
            raise GGUFError(f"{shown_path(self.path)}: the file is closed")
        for part in self._parts:
            part.check_intact()

    def close(self) -> None:
        """Close the files. Metadata and arrays already handed out stay usable; `data` and `address` raise."""
        self._closed = True
        for part in self._parts:
            part.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_parts"):
            self.close()
