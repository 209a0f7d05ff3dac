"""Importance matrices: for each column of a matrix, the mean square of what it is multiplied by.

Two file formats are read, both of llama.cpp's: GGUF with `NAME.in_sum2` (sums of squares, [matrices][columns]) and
`NAME.counts` ([matrices][1]) per tensor, and the older .dat: little-endian int32 number of entries; per entry the
length of the name, the name, the number of calls, the number of values, and float32 means times that number of calls;
then, perhaps, the number of chunks and the name of the text. GGUF is what is written.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

from hybridkern.errors import ArgumentError, GGUFError, HybridKernError
from hybridkern.gguf import GGUFFile
from hybridkern.gguf.targets import check_target

_MAX_NAME = 65535
Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Importance:
    """means: tensor name -> float32 [matrices][columns]; chunks, chunk_size: of the text; datasets: its files."""

    path: str
    means: Mapping[str, Values]
    chunks: int
    datasets: tuple[str, ...]

    def of(self, name: str, matrices: int, cols: int) -> Values | None:
        """The means of a tensor, [matrices][cols], or None. Raises ArgumentError where the sizes do not agree."""
        found = self.means.get(name)
        if found is None:
            return None
        if found.size != matrices * cols:
            raise ArgumentError(
                f"{self.path}: tensor {name!r} has {found.size} values, but {matrices} x {cols} are needed: it was "
                "made for another model"
            )
        return found.reshape(matrices, cols)


def read_importance(path: str | os.PathLike[str]) -> Importance:
    """Read a file of either kind. Raises GGUFError for a malformed one."""
    text = os.fspath(path)
    try:
        with open(text, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise GGUFError(f"{text}: cannot be opened: {error.strerror}") from error
    made = _read_gguf(text) if magic == b"GGUF" else _read_dat(text)
    for name, values in made.means.items():
        if not np.isfinite(values).all() or (values < 0).any():
            raise GGUFError(f"{text}: tensor {name!r} holds values that are negative, infinite or NaN")
    if not made.means:
        raise GGUFError(f"{text}: holds no importance of any tensor")
    return made


def _read_gguf(path: str) -> Importance:
    means: dict[str, Values] = {}
    with GGUFFile.open(path) as file:
        kind = file.metadata.get_str("general.type", "")
        if kind != "imatrix":
            raise GGUFError(f"{path}: general.type is {kind!r}, but 'imatrix' is wanted")
        for name, info in file.tensors.items():
            if not name.endswith(".in_sum2"):
                continue
            tensor = name.removesuffix(".in_sum2")
            counts = file.tensors.get(f"{tensor}.counts")
            if counts is None or info.type.name != "F32" or counts.type.name != "F32":
                raise GGUFError(f"{path}: tensor {name!r} must be F32, with {tensor + '.counts'!r} in F32 beside it")
            cols = info.shape[0]
            sums = file.data(name).view("<f4").reshape(-1, cols)
            n = file.data(counts.name).view("<f4").reshape(-1, 1)
            if len(n) != len(sums):
                raise GGUFError(f"{path}: {counts.name!r} has {len(n)} counts for {len(sums)} matrices")
            # An expert that no token reached says nothing: all of its columns count alike.
            means[tensor] = np.where(n > 0, sums / np.where(n > 0, n, 1), np.float32(1)).astype(np.float32)
        datasets = tuple(file.metadata.get_array("imatrix.datasets", [], of="str"))
        chunks = file.metadata.get_int("imatrix.chunk_count", 0)
        file.check_intact()
    return Importance(path, means, chunks, datasets)


class _Words:
    """Takes numbers and bytes off a buffer, and says where it is too short."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, n: int, what: str) -> bytes:
        if n < 0 or n > len(self.data) - self.at:
            problem = f"{what} is said to take {n} bytes, but {len(self.data) - self.at} are left"
            raise GGUFError(f"{self.path}: not an importance matrix, or cut short at byte {self.at}: {problem}")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, what: str) -> int:
        return int(struct.unpack("<i", self.take(4, what))[0])


def _read_dat(path: str) -> Importance:
    with open(path, "rb") as file:
        words = _Words(path, file.read())
    means: dict[str, Values] = {}
    for i in range(words.number("the number of entries")):
        what = f"entry {i}"
        length = words.number(f"the length of the name of {what}")
        if length > _MAX_NAME:
            raise GGUFError(f"{path}: the name of {what} is said to have {length} bytes: not an importance matrix")
        name = words.take(length, f"the name of {what}").decode("utf-8", "replace")
        calls, n = words.number(f"the calls of {name!r}"), words.number(f"the size of {name!r}")
        if n < 1:
            raise GGUFError(f"{path}: tensor {name!r} has {n} values")
        values = np.frombuffer(words.take(4 * n, f"tensor {name!r}"), "<f4")
        means[name] = (values / max(calls, 1)).astype(np.float32)
    if words.at == len(words.data):
        return Importance(path, means, 0, ())
    chunks = words.number("the number of chunks")
    dataset = words.take(words.number("the length of the text's name"), "the text's name").decode("utf-8", "replace")
    return Importance(path, means, chunks, (dataset,))


def write_importance(
    path: str | os.PathLike[str],
    sums: Mapping[str, npt.NDArray[np.float64]],
    chunks: int,
    chunk_size: int,
    datasets: Sequence[str],
) -> None:
    """Write a GGUF file of importance. sums: tensor name -> float64 [columns + 1], sums of squares and their count."""
    check_target(path)
    part = f"{os.fspath(path)}.{os.getpid()}.part"
    writer = gguf.GGUFWriter(part, "")
    writer.kv_data[0].clear()  # there is no architecture
    try:
        writer.add_string("general.type", "imatrix")
        writer.add_array("imatrix.datasets", list(datasets))
        writer.add_uint32("imatrix.chunk_count", chunks)
        writer.add_uint32("imatrix.chunk_size", chunk_size)
        for name, values in sorted(sums.items()):
            # [matrices][columns], as the tools that read it want it even for one matrix
            writer.add_tensor(f"{name}.in_sum2", values[None, :-1].astype(np.float32))
            writer.add_tensor(f"{name}.counts", values[None, -1:].astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            writer.close()
        with contextlib.suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError):
            raise HybridKernError(f"{os.fspath(path)}: cannot be written: {error.strerror or error}") from error
        raise
