"""Writes a model in another file type: through gguf-py's writer, into a temporary file that is renamed at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from hybridkern.errors import GGUFError, HybridKernError, KernelError
from hybridkern.gguf import GGUFFile, findings_of
from hybridkern.gguf.targets import check_target

from .importance import Importance
from .plan import Target
from .recipes import FileType

Progress = Callable[[int], None]
QUANTIZATION_VERSION = 2
_SPLIT = ("split.no", "split.count", "split.tensors.count")


@dataclass(frozen=True)
class Raw:
    """A metadata value as its file has it: the bytes behind its type id."""

    type_id: int
    data: bytes


class Writer(gguf.GGUFWriter):
    """gguf-py's writer, which also takes values as they lie in a file: nothing is decoded and encoded on the way, so
    texts that are no UTF-8 and empty arrays stay what they are."""

    def _pack_val(self, val: Any, *rest: Any, **named: Any) -> bytes:
        if isinstance(val, Raw):
            return val.type_id.to_bytes(4, "little") + val.data
        made: bytes = super()._pack_val(val, *rest, **named)
        return made

    def carry(self, file: GGUFFile) -> None:
        """Take over all metadata of a file but what says how it was split."""
        self.data_alignment = file.alignment
        for key in file.metadata:
            if key not in _SPLIT:
                type_id, data = file.metadata.raw(key)
                self.kv_data[0].pop(key, None)  # the architecture is there from the start
                self.add_key_value(key, Raw(type_id, data), gguf.GGUFValueType(type_id))

    def put(self, key: str, value: int | str) -> None:
        """Set a key to a text or an unsigned number, whatever it was."""
        kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.UINT32
        at = self.kv_data[0]
        at[key] = gguf.gguf_writer.GGUFValue(value=value, type=kind)


def quantize_file(
    file: GGUFFile,
    out: str | os.PathLike[str],
    type: FileType,
    targets: Sequence[Target],
    importance: Importance | None = None,
    *,
    threads: int = 1,
    progress: Progress | None = None,
) -> int:
    """Write the file's tensors as `targets` says; returns the bytes written.

    importance: how much the columns matter. progress hears of the source bytes that are done, from any thread. Whatever
    stands at `out` is replaced when everything is there, and not before. Raises GGUFError, with the tensor's name, for
    NaN and infinity, KernelError for values that a type cannot hold, ArgumentError for a path or an importance matrix
    that does not fit.
    """
    path = check_target(out, file.paths)

    def start(writer: Writer) -> None:
        writer.carry(file)
        writer.put("general.file_type", type.id)
        writer.put("general.quantization_version", QUANTIZATION_VERSION)
        if importance is not None:
            _tell_importance(writer, importance)
        for t in targets:
            # float32 says only that the shape is one of values, not of bytes
            writer.add_tensor_info(
                t.info.name, t.info.numpy_shape, np.dtype(np.float32), t.nbytes, gguf.GGMLQuantizationType(t.type.id)
            )

    def tensors() -> Iterator[Any]:
        for t in targets:
            yield _tensor(file, t, importance, threads, progress)
            file.release(t.info.name)
        file.check_intact()  # a mapped file that was cut short reads as zeros

    return write_whole(path, file.metadata.get_str("general.architecture"), start, tensors())


def write_whole(path: Path, arch: str, start: Callable[[Writer], None], tensors: Iterable[Any]) -> int:
    """Write a file beside `path` and rename it when it is complete; returns its bytes.

    start: gives the writer the metadata, and what it has to know of the tensors; tensors: their values, one at a time,
    in that order. Whatever goes wrong, `path` stays what it was. Raises HybridKernError where the system cannot write.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    writer = Writer(part, arch)
    try:
        start(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for values in tensors:
            writer.write_tensor_data(values)
        writer.close()
        written = part.stat().st_size
        os.replace(part, path)
        return written
    except BaseException as error:
        with contextlib.suppress(OSError):
            writer.close()
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise HybridKernError(f"{path}: cannot be written: {error.strerror or error}") from error
        raise


def _tell_importance(writer: Writer, importance: Importance) -> None:
    writer.put("quantize.imatrix.file", importance.path)
    if importance.datasets:
        writer.put("quantize.imatrix.dataset", importance.datasets[0])
    writer.put("quantize.imatrix.entries_count", len(importance.means))
    if importance.chunks:
        writer.put("quantize.imatrix.chunks_count", importance.chunks)


def _tensor(
    file: GGUFFile, target: Target, importance: Importance | None, threads: int, progress: Progress | None
) -> Any:
    """The bytes of one tensor in its new type."""
    from hybridkern.kernels.quantizing import UnfitValue, quantize_rows

    info, data = target.info, file.data(target.info.name)
    if target.copied:
        for finding in findings_of(file, info):
            raise GGUFError(str(finding))
        if progress is not None:
            progress(info.nbytes)
        return np.ascontiguousarray(data)
    cols = info.shape[0]
    matrices = info.shape[2] * (info.shape[3] if len(info.shape) > 3 else 1) if len(info.shape) > 2 else 1
    rows = info.n_elements // cols // matrices
    means = None if importance is None else importance.of(info.name, matrices, cols)
    per_weight = info.nbytes / info.n_elements

    def heard(weights: int) -> None:
        assert progress is not None
        progress(int(weights * per_weight))

    made = []
    for i, each in enumerate(data.reshape(matrices, -1)):
        try:
            made.append(
                quantize_rows(
                    each,
                    info.type.name,
                    target.type.name,
                    (rows, cols),
                    None if means is None else means[i],
                    threads=threads,
                    progress=None if progress is None else heard,
                )
            )
        except UnfitValue as error:
            matrix = f", matrix {i}" if matrices > 1 else ""
            problem = f"{file.paths[info.part]}: tensor {info.name!r} ({info.type.name}){matrix}: {error}"
            if not error.finite:
                raise GGUFError(problem) from None
            raise KernelError(f"{problem}; F32 and BF16 hold it: --tensor-type '^{info.name}$=BF16'") from None
    return made[0] if matrices == 1 else np.concatenate(made)
