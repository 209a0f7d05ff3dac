"""Converts a folder: all is checked first, then tensor after tensor goes into a file that is renamed at the end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from hybridkern.errors import ArgumentError, KernelError, ModelError
from hybridkern.gguf.targets import check_target
from hybridkern.quantize.recipes import FILE_TYPES
from hybridkern.quantize.write import QUANTIZATION_VERSION, Writer, write_whole

from .hparams import Shape, read_shape
from .shards import read_json, sources
from .tensors import Place, Values, places
from .vocabulary import tokenizer_keys

OUT_TYPES = ("auto", "f16", "bf16", "f32")
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Conversion:
    """A folder that can be converted. type: F32, F16 or BF16, of the matrices; vectors are F32 always."""

    folder: Path
    shape: Shape
    metadata: dict[str, Any]
    places: list[Place]
    type: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that are read."""
        return sum(p.source.end - p.source.begin for p in self.places)

    def type_of(self, place: Place) -> str:
        """The type of a tensor in the new file."""
        return self.type if len(place.shape) > 1 else "F32"


def inspect_folder(folder: str | os.PathLike[str], outtype: str = "auto") -> Conversion:
    """Read and check a folder, all but the values of its tensors.

    outtype: "f16", "bf16", "f32", or "auto": f16 for matrices that are, else bf16. Raises ArgumentError for a path that
    is no folder, ModelError and TokenizerError for a model that cannot be converted.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ArgumentError(f"{path}: is not a folder; the folder with config.json is expected")
    if outtype not in OUT_TYPES:
        raise ArgumentError(f"--outtype: {outtype!r} is none of {', '.join(OUT_TYPES)}")
    config = read_json(path / "config.json")
    shape = read_shape(config)
    found = places(shape, sources(path))
    kinds = {p.source.type for p in found if len(p.shape) > 1}
    kind = outtype.upper() if outtype != "auto" else "F16" if kinds == {"F16"} else "BF16"
    arch = shape.arch.name
    metadata: dict[str, Any] = {
        "general.type": "model",
        "general.name": path.resolve().name,
        "general.file_type": 0 if kind == "F32" else FILE_TYPES[kind].id,
        "general.quantization_version": QUANTIZATION_VERSION,
    }
    metadata |= {f"{arch}.{key}": value for key, value in shape.metadata.items()}
    metadata |= tokenizer_keys(path, config, shape.n_vocab, shape.notes)
    name = metadata["general.name"]
    if arch == "phi3" and metadata["tokenizer.ggml.model"] == "llama" and not re.search("phi-?3", name.lower()):
        # Phi-3's special tokens swallow the white space behind them; readers know it by the model's name.
        metadata["general.name"] = f"Phi-3 {name}"
    return Conversion(path, shape, metadata, found, kind)


def convert_folder(conversion: Conversion, out: str | os.PathLike[str], progress: Progress | None = None) -> int:
    """Write the GGUF file; returns its bytes. progress hears of the bytes that have been read.

    Whatever stands at `out` is replaced when everything is there, unless it lies in the folder. Raises ArgumentError
    for such a path, ModelError for NaN and infinity, KernelError for values that F16 cannot hold.
    """
    path = check_target(out, conversion.folder.iterdir())

    def tensors() -> Iterator[Any]:
        for place in conversion.places:
            yield _encoded(place, place.values(conversion.shape), conversion.type_of(place))
            if progress is not None:
                progress(place.source.end - place.source.begin)
        for divisors in conversion.shape.rope_tensors.values():
            yield np.asarray(divisors, np.float32)

    def start(writer: Writer) -> None:
        for key, value in conversion.metadata.items():
            _add(writer, key, value)
        for place in conversion.places:
            kind = gguf.GGMLQuantizationType[conversion.type_of(place)]
            nbytes = int(np.prod(place.shape)) * (4 if kind == gguf.GGMLQuantizationType.F32 else 2)
            # float32 says only that the shape is one of values, not of bytes
            writer.add_tensor_info(place.name, place.shape, np.dtype(np.float32), nbytes, kind)
        for name, divisors in conversion.shape.rope_tensors.items():
            n = len(divisors)
            writer.add_tensor_info(name, (n,), np.dtype(np.float32), 4 * n, gguf.GGMLQuantizationType.F32)

    return write_whole(path, conversion.shape.arch.name, start, tensors())


def _encoded(place: Place, values: Values, kind: str) -> Any:
    if kind == "F32":
        return values
    if kind == "F16":
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16)
        if not np.isfinite(halves).all():
            raise KernelError(
                f"{place.source.path}: tensor {place.source.name!r} has values up to {np.abs(values).max():g}, which "
                "F16 cannot hold: --outtype bf16"
            )
        return halves
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)


def _add(writer: Writer, key: str, value: Any) -> None:
    kinds = gguf.GGUFValueType
    plain = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}
    if not isinstance(value, list):
        writer.add_key_value(key, value, plain[type(value)])
        return
    if not value:
        raise ModelError(f"{key} would be an empty list")
    element = kinds.INT32 if type(value[0]) is int else plain[type(value[0])]
    writer.add_key_value(key, value, kinds.ARRAY, element)
