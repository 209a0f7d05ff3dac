"""One file on disk: opened safely, its digest checked, its header walked and validated."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass

from hybridkern.errors import ArgumentError, GGUFError

from . import identify
from .cursor import Cursor, shown_path
from .metadata import Metadata, read_entries
from .storage import AnonymousStorage, MappedStorage, Storage
from .tensors import TensorInfo, place, read_table

DEFAULT_ALIGNMENT = 32
_HASH_CHUNK = 4 << 20


def open_regular(path: str) -> tuple[int, int]:
    """Open a regular file for reading; returns (fd, size). GGUFError for anything else, without ever blocking."""
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to would hang.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e)
        if isinstance(e, OSError) and e.errno == errno.ENXIO:
            reason = "it is a socket, or a device that is not there"
        raise GGUFError(f"{shown_path(path)}: cannot be opened: {reason}") from e
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
        raise GGUFError(f"{shown_path(path)}: is {kind}, not a regular file")
    return fd, status.st_size


def parse_digests(text: str | None) -> list[str]:
    """The SHA-256 digests of an argument "HEX[,HEX...]", in lower case; ArgumentError where one is malformed."""
    digests = []
    for given in text.split(",") if text is not None else ():
        digest = given.strip().lower().removeprefix("sha256:")
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise ArgumentError(f"sha256 {given.strip()!r}: a SHA-256 digest has 64 hexadecimal digits")
        digests.append(digest)
    return digests


def check_digest(fd: int, path: str, wanted: str) -> None:
    """Hash the whole file in chunks; GGUFError with both digests where it differs from `wanted`."""
    digest, buffer, at = hashlib.sha256(), bytearray(_HASH_CHUNK), 0
    view = memoryview(buffer)
    try:
        while got := os.preadv(fd, [buffer], at):
            digest.update(view[:got])
            at += got
    except OSError as e:
        raise GGUFError(f"{shown_path(path)}: cannot be read at byte {at}: {e.strerror}") from e
    if digest.hexdigest() != wanted:
        raise GGUFError(
            f"{shown_path(path)}: SHA-256 is {digest.hexdigest()}, but {wanted} was asked for: the file is damaged or "
            "another one"
        )


def _read_version(cursor: Cursor) -> int:
    if cursor.size == 0:
        raise cursor.error("the file", 0, "is empty")
    head = bytes(cursor.buffer[: cursor.fill(min(64, cursor.size), "the magic")][:64])
    if not head.startswith(b"GGUF"):
        if len(head) < 4:
            raise cursor.error("the magic", 0, f"the file has only {cursor.size} bytes")
        raise cursor.error("the magic", 0, f"not a GGUF file; {identify.describe(head)}")
    cursor.need(4, "the magic")
    version = cursor.u32("the version")
    if version in (2, 3):
        return version
    if version and not version & 0xFFFF:
        raise cursor.error("the version", 4, "the file is big-endian; only little-endian files can be read")
    if version == 1:
        raise cursor.error("the version", 4, "version 1 is no longer in use: convert the model again")
    problem = f"{version} is not a version that this program knows (2 and 3); the file may be newer than this program"
    raise cursor.error("the version", 4, problem)


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    what, at = f"key {key!r}", metadata.offset_of(key)
    if metadata.type_of(key) != "uint32":
        raise cursor.error(what, at, f"is {metadata.type_of(key)}, but the specification says uint32")
    alignment = metadata[key]
    if alignment < 8 or alignment & (alignment - 1):
        raise cursor.error(what, at, f"is {alignment}; it must be a power of two, and at least 8")
    return alignment


@dataclass
class Part:
    """One open file. `data_offset` is where its tensor data begins, `end` the byte after its last tensor's."""

    path: str
    fd: int
    size: int
    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]
    data_offset: int
    storage: Storage | None = None

    @classmethod
    def open(cls, path: str, index: int, digest: str | None) -> Part:
        """Open and validate one file; GGUFError for anything that is wrong with it."""
        fd, size = open_regular(path)
        try:
            if digest is not None:
                check_digest(fd, path, digest)
            return cls._parse(path, index, fd, size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def _parse(cls, path: str, index: int, fd: int, size: int) -> Part:
        cursor = Cursor(fd, size, path)
        version = _read_version(cursor)
        n_tensors = cursor.u64("the tensor count")
        n_keys = cursor.u64("the key count")
        entries = read_entries(cursor, n_keys)
        metadata = Metadata(path, cursor.buffer, entries)
        alignment = _alignment(cursor, metadata)
        metadata_end = cursor.pos
        table = read_table(cursor, n_tensors)
        data_offset, tensors = place(cursor, table, alignment, index)
        metadata.freeze(metadata_end)
        return cls(path, fd, size, version, alignment, metadata, tensors, data_offset)

    def attach(self, use_mmap: bool, lock: bool) -> None:
        """Map the tensor data, or reserve the memory that it will be read into."""
        if self.data_offset >= self.size:
            return
        kind = MappedStorage if use_mmap else AnonymousStorage
        self.storage = kind(self.fd, self.path, self.data_offset, self.size)
        if lock:
            self.storage.lock(self.data_offset)

    def check_intact(self) -> None:
        """GGUFError if the file has shrunk since it was opened, or if a page of it was missing when touched."""
        size = os.fstat(self.fd).st_size
        if size < self.size:
            problem = f"was cut short from {self.size} to {size} bytes while in use"
            raise GGUFError(f"{shown_path(self.path)}: the file {problem}; load the model again")
        if self.storage is not None and self.storage.faulted():
            problem = "could not be read where it is mapped: it was cut short while in use, or the disk failed"
            raise GGUFError(f"{shown_path(self.path)}: the file {problem}; load the model again")

    def close(self) -> None:
        """Let go of the data and close the file."""
        if self.storage is not None:
            self.storage.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
