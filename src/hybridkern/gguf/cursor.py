"""A bounds-checked walk over the header of a GGUF file: everything before the tensor data.

The header is read with plain reads, never through the mapping, so that a file cut short by someone else cannot
fault here, and only as far as the walk has got: a size that the file claims is compared with what the file has
left before anything is allocated or read for it.
"""

from __future__ import annotations

import os
import struct

from hybridkern.errors import GGUFError

# Vocabularies of 262,144 tokens with as many merges make headers of about 16 MiB.
MAX_HEADER_BYTES = 64 << 20
_FIRST_READ, _LARGEST_READ = 64 << 10, 4 << 20

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def shown(name: str, limit: int = 96) -> str:
    """`name` quoted for a message: control characters escaped, very long names shortened."""
    return repr(name if len(name) <= limit else name[:limit] + "...")


def shown_path(path: str) -> str:
    """`path` for a message, printable even where its bytes are not UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()


class Cursor:
    """Reads forward through the header of the open file `fd` of `size` bytes.

    `buffer` holds the bytes of the file from 0 up to what was read so far, `pos` is the next byte. Every method
    takes `what`, the thing being read, for the message of the GGUFError that it raises where the file is too short.
    """

    def __init__(self, fd: int, size: int, path: str) -> None:
        self.fd = fd
        self.size = size
        self.path = path
        self.buffer = bytearray()
        self.pos = 0

    def error(self, what: str, offset: int, problem: str) -> GGUFError:
        """A GGUFError that names the file, the thing and the byte offset."""
        return GGUFError(f"{shown_path(self.path)}: {what} at byte {offset}: {problem}")

    @property
    def left(self) -> int:
        """Bytes of the file after the cursor."""
        return self.size - self.pos

    def need(self, n: int, what: str) -> int:
        """Make the next `n` bytes present in `buffer`, move past them and return their offset."""
        at = self.pos
        if n > self.size - at:
            raise self.error(what, at, f"needs {n} bytes, but the file ends after {self.size - at} (is it cut short?)")
        if at + n > len(self.buffer):
            self.fill(at + n, what)
        self.pos = at + n
        return at

    def fill(self, end: int, what: str) -> int:
        """Read on until `buffer` holds at least `end` bytes; returns how many it holds."""
        if end > MAX_HEADER_BYTES:
            raise self.error(what, self.pos, f"the metadata would pass {MAX_HEADER_BYTES} bytes, the largest accepted")
        # Headers without a vocabulary are small, others take a few megabytes: read twice as far each time.
        step = min(max(len(self.buffer), _FIRST_READ), _LARGEST_READ)
        goal = min(self.size, max(end, len(self.buffer) + step), MAX_HEADER_BYTES)
        while (have := len(self.buffer)) < goal:
            try:
                piece = os.pread(self.fd, min(goal - have, _LARGEST_READ), have)
            except OSError as e:
                raise self.error(what, have, f"cannot be read: {e.strerror}") from e
            if not piece:
                if have >= end:
                    break
                raise self.error(what, have, f"the file was cut short from {self.size} bytes while it was being read")
            self.buffer += piece
        return len(self.buffer)

    def u32(self, what: str) -> int:
        """The next unsigned 32-bit number."""
        return _U32.unpack_from(self.buffer, self.need(4, what))[0]

    def u64(self, what: str) -> int:
        """The next unsigned 64-bit number."""
        return _U64.unpack_from(self.buffer, self.need(8, what))[0]

    def numbers(self, n: int, what: str) -> tuple[int, ...]:
        """The next `n` unsigned 64-bit numbers; `n` must be small."""
        return struct.unpack_from(f"<{n}Q", self.buffer, self.need(8 * n, what))

    def string(self, what: str) -> tuple[int, int]:
        """Move past a string; returns the offset and the length of its bytes."""
        at = self.pos
        n = self.u64(f"the length of {what}")
        if n > self.left:
            raise self.error(what, at, f"claims {n} bytes, but the file has only {self.left} left")
        return self.need(n, what), n

    def name(self, what: str, limit: int) -> str:
        """A string that names something: 1 to `limit` bytes of UTF-8."""
        at = self.pos
        start, n = self.string(what)
        if not 0 < n <= limit:
            raise self.error(what, at, f"has {n} bytes; 1 to {limit} are allowed")
        try:
            return self.buffer[start : start + n].decode("utf-8")
        except UnicodeDecodeError as e:
            raise self.error(what, at, "is not valid UTF-8") from e

    def skip_strings(self, count: int, what: str) -> None:
        """Move past `count` strings, checking each length against the file's."""
        # One tight loop with local names: vocabularies bring half a million strings.
        pos, size, buffer, unpack = self.pos, self.size, self.buffer, _U64.unpack_from
        have = len(buffer)
        for i in range(count):
            if have - pos < 8:
                self.pos = pos
                self.need(8, f"the length of string {i} of {what}")
                have = len(buffer)
            end = pos + 8 + unpack(buffer, pos)[0]
            if end > size:
                problem = f"claims {end - pos - 8} bytes, but the file has only {size - pos - 8} left"
                raise self.error(f"string {i} of {what}", pos, problem)
            pos = end
        self.pos = pos
        if pos > have:
            self.fill(pos, what)
