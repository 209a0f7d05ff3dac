"""Random damage to a valid file: an error of ours or success, nothing else, in bounded time."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridkern.errors import GGUFError
from hybridkern.gguf import GGUFFile, validate_quants

INTERESTING = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 12, 13, 31, 32, 255, 2**16, 2**31, 2**32 - 1, 2**42 + 1, 2**60])
WORD = st.one_of(INTERESTING, INTERESTING.map(lambda n: 2**64 - 1 - n), st.integers(0, 2**64 - 1))


def read_everything(path: str, mmap: bool) -> bool:
    try:
        with GGUFFile.open(path, mmap=mmap) as file:
            values = dict(file.metadata)
            assert len(values) == len(file.metadata)
            for name, info in file.tensors.items():
                data = file.data(name)
                assert data.nbytes == info.nbytes > 0
                data.sum()
            validate_quants(file)
            file.check_intact()
    except GGUFError as e:
        assert path in str(e)
        return False
    return True


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), mmap=st.booleans())
def test_damaged_files(sample, write, data, mmap):
    raw = bytearray(sample.data)
    header = sample.marks["data"]
    for _ in range(data.draw(st.integers(1, 3), "changes")):
        kind = data.draw(st.sampled_from(["field", "byte", "word", "cut", "insert"]), "kind")
        if not raw:
            break
        # Mostly in the header: damage to the data is only damage to numbers.
        at = data.draw(st.integers(0, min(header, len(raw)) - 1), "at")
        if kind == "field":
            at = min(data.draw(st.sampled_from(sorted(sample.marks.values())), "mark"), len(raw))
        if kind == "byte":
            raw[at] = data.draw(st.integers(0, 255), "byte")
        elif kind == "cut":
            del raw[data.draw(st.integers(0, len(raw)), "length") :]
        elif kind == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=16), "bytes")
        else:
            size = data.draw(st.sampled_from([4, 8]), "size")
            raw[at : at + size] = (data.draw(WORD, "word") % 256**size).to_bytes(size, "little")
    path = write(bytes(raw))
    start = time.process_time()
    read_everything(path, mmap)
    assert time.process_time() - start < 1


def test_undamaged_file_is_read(sample, write):
    assert read_everything(write(sample), True) and read_everything(write(sample), False)
