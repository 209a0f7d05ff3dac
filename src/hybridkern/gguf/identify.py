"""What a file that does not begin with the GGUF magic seems to be."""

from __future__ import annotations

_PREFIXES: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer: the file itself was never downloaded (run `git lfs pull`)"),
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint: convert it to GGUF first"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"),
    (b"\xfd7zXZ\x00", "an xz archive: unpack it first"),
    (b"\x7fELF", "a program"),
    (b"\x89HDF", "an HDF5 file: convert it to GGUF first"),
    (b"FUGG", "a byte-swapped GGUF file: only little-endian files can be read"),
    # The magics before GGUF were little-endian 32-bit words, so that "ggml" stands in the file as "lmgg".
    (b"lmgg", "a GGML file from before GGUF: convert the original model again"),
    (b"tjgg", "a GGJT file from before GGUF: convert the original model again"),
    (b"fmgg", "a GGMF file from before GGUF: convert the original model again"),
    (b"algg", "a GGLA adapter from before GGUF: convert the original adapter again"),
)


def describe(head: bytes) -> str:
    """Name what a file beginning with `head` (up to 64 bytes) seems to be, or show its first bytes."""
    for prefix, text in _PREFIXES:
        if head.startswith(prefix):
            return f"it looks like {text}"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "it looks like an HTML or XML page, perhaps an error page that was saved in place of the model"
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return "it looks like a safetensors file: convert it to GGUF first"
    if text.startswith((b"{", b"[")):
        return "it looks like a JSON text"
    if len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return "it looks like a Python pickle, perhaps a PyTorch checkpoint: convert it to GGUF first"
    if head and not any(head):
        return "it begins with zeros, perhaps a download that was never finished"
    return f"it begins with the bytes {head[:8].hex(' ')}"
