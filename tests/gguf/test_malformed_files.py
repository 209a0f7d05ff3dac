"""Every malformed file is a GGUFError that names the file, the key or tensor, and the byte offset."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys

import pytest
from builder import ARRAY, BOOL, F32, I32, STRING, U8, U32, Tensor, build

from hybridkern.errors import GGUFError
from hybridkern.gguf import GGUFFile

Q = "blk.0.q.weight"
TOKENS = "tokenizer.ggml.tokens"

# mark of the patched field, struct code, value, words that the message must hold, mark of the offset that it names
PATCHES = {
    "zero dimension": (f"tensor:{Q}:dim1", "<Q", 0, (Q, "zero", "[256, 0]"), f"tensor:{Q}:n_dims"),
    "product wraps": (f"tensor:{Q}:dim1", "<Q", 2**62 + 1, (Q, "64 bits"), f"tensor:{Q}:n_dims"),
    "product wraps to a small size": (f"tensor:{Q}:dim1", "<Q", 2**56 + 1, (Q, "64 bits"), f"tensor:{Q}:n_dims"),
    "dimension of 2^42 + 1": (f"tensor:{Q}:dim1", "<Q", 2**42 + 1, (Q, "beyond|needs"), f"tensor:{Q}:length"),
    "offset beyond the file": (f"tensor:{Q}:offset", "<Q", 1 << 20, (Q, "needs 432 bytes"), f"tensor:{Q}:length"),
    "offset that wraps": (f"tensor:{Q}:offset", "<Q", 2**64 - 32, (Q, "needs 432 bytes"), f"tensor:{Q}:length"),
    "offset just too far": (f"tensor:{Q}:offset", "<Q", 1024, (Q, "needs 432 bytes"), f"tensor:{Q}:length"),
    "misaligned offset": (f"tensor:{Q}:offset", "<Q", 225, (Q, "multiple of 32"), f"tensor:{Q}:length"),
    "overlap": (f"tensor:{Q}:offset", "<Q", 160, (Q, "token_embd.weight", "overlaps"), None),
    "unknown type 42": (f"tensor:{Q}:type", "<I", 42, (Q, "42", "newer than this program"), f"tensor:{Q}:type"),
    "unknown type 2^31": (f"tensor:{Q}:type", "<I", 2**31, (Q, str(2**31), "newer"), f"tensor:{Q}:type"),
    "withdrawn type": (f"tensor:{Q}:type", "<I", 31, (Q, "Q4_0_4_4"), f"tensor:{Q}:type"),
    "row not of whole blocks": (f"tensor:{Q}:dim0", "<Q", 288, (Q, "288", "block of 256"), f"tensor:{Q}:n_dims"),
    "five dimensions": (f"tensor:{Q}:n_dims", "<I", 5, (Q, "5 dimensions"), f"tensor:{Q}:n_dims"),
    "2^32 - 1 dimensions": (f"tensor:{Q}:n_dims", "<I", 2**32 - 1, (Q, "dimensions"), f"tensor:{Q}:n_dims"),
    "no dimensions": (f"tensor:{Q}:n_dims", "<I", 0, (Q, "0 dimensions"), f"tensor:{Q}:n_dims"),
    "tensor name near 2^64": (
        f"tensor:{Q}:length",
        "<Q",
        2**64 - 1,
        ("tensor 2", str(2**64 - 1)),
        f"tensor:{Q}:length",
    ),
    "empty tensor name": (f"tensor:{Q}:length", "<Q", 0, ("tensor 2",), f"tensor:{Q}:length"),
    "tensor name not UTF-8": (f"tensor:{Q}", "<B", 0xFF, ("tensor 2", "UTF-8"), f"tensor:{Q}:length"),
    "tensor count 2^60": ("tensor_count", "<Q", 2**60, ("tensor count", str(2**60)), "tensor_count"),
    "one tensor too many": ("tensor_count", "<Q", 5, ("tensor 4 of 5",), None),
    "key count 2^60": ("kv_count", "<Q", 2**60, ("key count", str(2**60)), "kv_count"),
    "key count 2^64 - 1": ("kv_count", "<Q", 2**64 - 1, ("key count",), "kv_count"),
    "key length near 2^64": (f"key:{TOKENS}:length", "<Q", 2**64 - 8, ("metadata key 12",), f"key:{TOKENS}:length"),
    "key that is not UTF-8": (f"key:{TOKENS}", "<B", 0xC0, ("metadata key 12", "UTF-8"), f"key:{TOKENS}:length"),
    "string near 2^64": ("key:general.architecture:value", "<Q", 2**64 - 3, ("general.architecture",), None),
    "value type 13": ("key:a.byte:type", "<I", 13, ("a.byte", "13", "newer"), "key:a.byte:type"),
    "bool of 2": ("key:a.flag:value", "<B", 2, ("a.flag", "bool"), "key:a.flag:value"),
    "array count beyond the file": (f"key:{TOKENS}:count", "<Q", 10**6, (TOKENS, "1000000"), f"key:{TOKENS}:value"),
    "array count 2^64 - 1": (f"key:{TOKENS}:count", "<Q", 2**64 - 1, (TOKENS,), f"key:{TOKENS}:value"),
    "numbers beyond the file": ("key:tokenizer.ggml.scores:count", "<Q", 2**62, ("scores", "float32"), None),
    "array of unknown type": (f"key:{TOKENS}:value", "<I", 99, (TOKENS, "99", "newer"), f"key:{TOKENS}:value"),
    "alignment 0": (
        "key:general.alignment:value",
        "<I",
        0,
        ("general.alignment", "is 0"),
        "key:general.alignment:length",
    ),
    "alignment 3": (
        "key:general.alignment:value",
        "<I",
        3,
        ("general.alignment", "is 3"),
        "key:general.alignment:length",
    ),
    "alignment 48": ("key:general.alignment:value", "<I", 48, ("general.alignment", "is 48"), None),
    "alignment 4": ("key:general.alignment:value", "<I", 4, ("general.alignment", "is 4"), None),
    "alignment 2^31": ("key:general.alignment:value", "<I", 2**31, ("blk.0|rope_freqs|token_embd",), None),
    "alignment of another type": ("key:general.alignment:type", "<I", I32, ("general.alignment", "int32"), None),
    "version 1": ("version", "<I", 1, ("version 1",), "version"),
    "version 4": ("version", "<I", 4, ("version", "4", "newer"), "version"),
    "version 0": ("version", "<I", 0, ("version", "0"), "version"),
    "big-endian": ("version", ">I", 3, ("big-endian",), "version"),
}


def error_of(path: str, **options) -> str:
    with pytest.raises(GGUFError) as e:
        GGUFFile.open(path, **options)
    assert path in str(e.value)
    return str(e.value)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("name", PATCHES)
def test_patched_field(sample, write, name, mmap):
    mark, code, value, words, where = PATCHES[name]
    message = error_of(write(sample.patch(mark, code, value)), mmap=mmap)
    for word in words:
        assert re.search(word if "|" in word else re.escape(word), message), message
    assert re.search(r"at byte \d+", message), message
    if where is not None:
        assert f"at byte {sample.marks[where]}:" in message


def test_cut_anywhere(sample, write):
    """Cut after every single byte: an error, unless only the padding behind the last tensor is gone."""
    last = sample.marks["data:blk.0.h.weight"] + 20
    for n in range(len(sample.data)):
        path = write(sample.data[:n])
        if n < last:
            assert re.search(r"at byte \d+", error_of(path))
        else:
            GGUFFile.open(path).close()


def test_cut_names_the_place(sample, write):
    assert "empty" in error_of(write(b""))
    assert "only 3 bytes" in error_of(write(b"GGU"))
    assert "key count" in error_of(write(sample.data[:24]))
    assert TOKENS in error_of(write(sample.data[: sample.marks[f"key:{TOKENS}:count"] + 30]))
    assert Q in error_of(write(sample.data[: sample.marks[f"tensor:{Q}:offset"] + 3]))
    assert Q in error_of(write(sample.data[: sample.marks[f"data:{Q}"] + 100]))


def test_duplicates(write):
    built = build([("same", U32, 1), ("other", U32, 2), ("same", U32, 3)])
    message = error_of(write(built))
    assert "'same'" in message and "twice" in message
    assert f"at byte {built.marks['key:same:length']}:" in message
    assert f"first at byte {built.marks['metadata']}" in message
    one = Tensor("w", 0, (1,), bytes(4))
    built = build((), [one, Tensor("v", 0, (1,), bytes(4)), one])
    message = error_of(write(built))
    assert "tensor 'w'" in message and "twice" in message and f"first at byte {built.marks['table']}" in message


def test_array_faults(write):
    raw = b"".join([(ARRAY).to_bytes(4, "little") + (1).to_bytes(8, "little")] * 2000)
    built = build([("deep", ARRAY, (U8, []))])
    assert "nested" in error_of(write(built.data[: built.marks["key:deep:value"]] + raw + bytes(64)))
    built = build([("flags", ARRAY, (BOOL, [True] * 5 + [False]))])
    at = built.marks["key:flags:count"] + 8 + 4
    bad = built.data[:at] + b"\x07" + built.data[at + 1 :]
    assert f"'flags' at byte {at}:" in error_of(write(bad))


@pytest.mark.parametrize(("string", "length"), [(0, 2**64 - 1), (1, 2**62), (1, 33)])
def test_length_of_a_token(write, string, length):
    """The table of strings ends the file, so that a length that is one too large has nothing behind it."""
    built = build([("tokens", ARRAY, (STRING, ["abc", "d" * 32]))])
    at = built.marks["key:tokens:count"] + 8 + string * 11
    raw = built.data[: built.marks["table"]]
    message = error_of(write(raw[:at] + length.to_bytes(8, "little") + raw[at + 8 :]))
    assert f"string {string} of key 'tokens' at byte {at}: claims {length} bytes" in message


def test_overlap_names_both(write):
    a, b = Tensor("a", 0, (16,), bytes(64)), Tensor("b", 0, (16,), bytes(64))
    message = error_of(write(build((), [a, b]).patch("tensor:b:offset", "<Q", 32)))
    assert "'a'" in message and "'b'" in message and "overlaps" in message


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"\n <html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
        (b'\x40\x00\x00\x00\x00\x00\x00\x00{"__metadata__"', "safetensors"),
        (b"PK\x03\x04abcd", "zip"),
        (b"\x80\x02}q\x00.", "pickle"),
        (b"lmgg\x00\x00\x00\x00", "GGML"),
        (b"tjgg\x03\x00\x00\x00", "GGJT"),
        (b"FUGG\x00\x00\x00\x03", "byte-swapped"),
        (b'{"error": "not found"}', "JSON"),
        (bytes(100), "zeros"),
        (b"what is this?", "77 68 61 74"),
    ],
)
def test_other_files(write, head, word):
    message = error_of(write(head))
    assert word in message and "at byte 0" in message


def test_whole_big_endian_file(write):
    assert "big-endian" in error_of(write(build([("k", U32, 1)], order=">")))


def test_not_a_regular_file(tmp_path):
    assert "directory" in error_of(str(tmp_path))
    assert "No such file" in error_of(str(tmp_path / "none.gguf"))
    fifo = str(tmp_path / "fifo.gguf")
    os.mkfifo(fifo)
    assert "pipe" in error_of(fifo)
    assert "device" in error_of("/dev/zero")
    with pytest.raises(GGUFError, match="null"):
        GGUFFile.open("a\0b")
    loop = str(tmp_path / "loop.gguf")
    os.symlink(loop, loop)
    assert "symbolic links" in error_of(loop)


def test_no_permission(sample, write):
    path = write(sample)
    os.chmod(path, stat.S_IWUSR)
    user = os.geteuid()
    if user == 0:  # root may read everything
        os.seteuid(65534)
    try:
        assert "Permission denied" in error_of(path)
    finally:
        os.seteuid(user)


def test_odd_file_names_are_printable(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff\xfe.gguf"
    with pytest.raises(GGUFError) as e:
        GGUFFile.open(os.fsdecode(path))
    str(e.value).encode("utf-8")


def test_no_descriptor_is_left(sample, write):
    bad = write(sample.patch(f"tensor:{Q}:offset", "<Q", 1 << 20), "bad.gguf")
    good = write(sample)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        error_of(bad)
        GGUFFile.open(good).close()
    assert os.listdir("/proc/self/fd") == before


# --- time and memory, in a process of its own -------------------------------------------------------------------

_PROBE = """
import sys, time
from hybridkern.errors import GGUFError
from hybridkern.gguf import GGUFFile
start = time.process_time()  # not the wall clock: the machine may be busy
try:
    GGUFFile.open(sys.argv[1], mmap=sys.argv[2] == "mmap")
    print("loaded")
except GGUFError as e:
    print("error")
print(time.process_time() - start)
# Not getrusage: its peak includes the parent's size at the fork.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def probe(path: str, mode: str) -> tuple[str, float, float]:
    """What opening gives, the seconds it takes, and the peak resident size of the process in MB."""
    run = subprocess.run([sys.executable, "-c", _PROBE, path, mode], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    outcome, seconds, kib = run.stdout.split()
    return outcome, float(seconds), int(kib) / 1024


def sparse(path: str, head: bytes, size: int) -> str:
    """A file of `size` bytes that begins with `head`; the rest is a hole of zeros that takes no disk space."""
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(size)
    return path


def many_names(kind: str) -> bytes:
    """A file whose last key or tensor repeats the first, after as many as are allowed."""
    if kind == "keys":
        return build([*((f"key.{i}", U8, 0) for i in range(65535)), ("key.0", U8, 0)]).data
    n = 32767
    tensors = [Tensor(f"tensor.{i}", 24, (1,), b"", offset=32 * i) for i in range(n)]
    return build((), [*tensors, tensors[0]]).data + bytes(32 * n)


NASTY = {
    "strings in a hole": (build([("s", ARRAY, (STRING, []))]), "key:s:count", 2**30),
    "strings up to the limit": (build([("s", ARRAY, (STRING, []))]), "key:s:count", 2**21),
    "arrays in a hole": (build([("s", ARRAY, (ARRAY, []))]), "key:s:count", 2**16),
    "numbers in a hole": (build([("s", ARRAY, (F32, []))]), "key:s:count", 2**31),
    "one string in a hole": (build([("s", STRING, "")]), "key:s:value", 2**33),
    "keys in a hole": (build([("s", U8, 0)]), "kv_count", 2**29),
    "tensors in a hole": (build([("s", U8, 0)]), "tensor_count", 2**28),
}


@pytest.mark.parametrize("mode", ["mmap", "read"])
@pytest.mark.parametrize("name", NASTY)
def test_claims_in_a_large_hole(tmp_path, name, mode):
    """The claim fits the file, which is 16 GiB of zeros: nothing may walk or read it all."""
    built, mark, count = NASTY[name]
    head = built.patch(mark, "<Q", count)
    if mark.startswith("key:"):  # a second key follows the array, and is an empty name in the hole
        at = built.marks["kv_count"]
        head = head[:at] + (2).to_bytes(8, "little") + head[at + 8 : built.marks["table"]]
    outcome, seconds, megabytes = probe(sparse(str(tmp_path / "hole.gguf"), head, 16 << 30), mode)
    assert outcome == "error" and seconds < 1 and megabytes < 200


@pytest.mark.parametrize("kind", ["keys", "tensors"])
def test_many_names(write, kind):
    outcome, seconds, megabytes = probe(write(many_names(kind)), "mmap")
    assert outcome == "error" and seconds < 1 and megabytes < 200


@pytest.mark.parametrize("name", ["key count 2^60", "string near 2^64", "product wraps", "array count 2^64 - 1"])
def test_small_malformed_files_cost_little(sample, write, name):
    mark, code, value, *_ = PATCHES[name]
    outcome, seconds, megabytes = probe(write(sample.patch(mark, code, value)), "mmap")
    assert outcome == "error" and seconds < 1 and megabytes < 200
