"""The kernels for NumPy users."""

from __future__ import annotations

import os
import subprocess
import sys

import gguf
import numpy as np
import pytest
from gguf.quants import quantize

from hybridkern import kernels
from hybridkern.errors import ArgumentError, KernelError
from hybridkern.quants import dequantize

RNG = np.random.default_rng(4)


def test_both_are_there_with_the_package():
    code = "import hybridkern as hk; print(hk.kernels.active(), hk.quants.dequantize.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [kernels.active(), "dequantize"]


@pytest.mark.parametrize("shape", [64, (), (2, -32), (2, 32.0), None])
def test_what_is_no_shape(shape):
    with pytest.raises(KernelError, match="shape"):
        dequantize(bytes(36), "Q4_0", shape)


@pytest.mark.parametrize(("kind", "cols"), [("F32", 70), ("F16", 64), ("Q8_0", 96), ("Q4_0", 576), ("Q5_1", 32)])
def test_products(kind, cols):
    raw = quantize(RNG.standard_normal((37, cols)).astype(np.float32), gguf.GGMLQuantizationType[kind])
    values = dequantize(raw, kind, (37, cols))
    assert np.array_equal(values, gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]))
    assert dequantize(raw.tobytes(), kind, (37, cols)).tobytes() == values.tobytes()
    W = kernels.pack(raw, kind, (37, cols))
    X = RNG.standard_normal((5, cols)).astype(np.float32)
    inputs = X
    if kind[0] == "Q":
        q = kernels.quantize_activations(X, "Q8_32")
        inputs = q.codes * np.repeat(q.scales, 32, axis=1)
        assert np.array_equal(q.sums, q.codes.reshape(5, -1, 16).sum(2))
    for threads in (1, 3):
        Y = kernels.matmul(W, X, threads=threads)
        assert np.allclose(Y, inputs.astype(np.float64) @ values.T.astype(np.float64), rtol=1e-5, atol=1e-5)
        assert kernels.matvec(W, X[3], threads=threads).tobytes() == Y[3].tobytes()
    assert kernels.matmul(W, X[:0]).shape == (0, 37)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda W: kernels.pack(b"", "Q9_Z", (1, 32)), "'Q9_Z'"),
        (lambda W: kernels.pack(bytes(34), "Q8_0", (1, 33)), "blocks of 32"),
        (lambda W: kernels.pack(bytes(33), "Q8_0", (1, 32)), "takes 34 bytes, but there are 33"),
        (lambda W: kernels.pack(bytes(34), "Q8_0", (0, 32)), "not empty"),
        (lambda W: kernels.pack(bytes(34), "Q8_0", (32,)), "rows, cols"),
        (lambda W: kernels.matvec(W, [1.0] * 31), r"\(n, 32\)"),
        (lambda W: kernels.matmul(W, [1.0] * 32), r"\(n, 32\)"),
        (lambda W: kernels.quantize_activations([[1.0] * 33], "Q8_32"), "multiple of 32"),
        (lambda W: kernels.quantize_activations([[1.0] * 32], "Q8"), "quantised as Q8_32, not"),
        (lambda W: dequantize(bytes(3), "Q8_0", (1, 32)), "takes 34 bytes"),
        (lambda W: dequantize(bytes(34), "Q8_0", (-1, 32)), "shape"),
        (lambda W: dequantize(b"", "Q8_0", (0, 32)), "no elements"),
    ],
)
def test_bad_shapes_and_types(call, message):
    W = kernels.pack(bytes(34), "Q8_0", (1, 32))
    with pytest.raises(KernelError, match=message):
        call(W)


def test_bad_threads():
    W = kernels.pack(bytes(34), "Q8_0", (1, 32))
    for threads in (0, -1, 1.5, 100000):
        with pytest.raises(ArgumentError):
            kernels.matvec(W, [1.0] * 32, threads=threads)


@pytest.mark.parametrize("name", ["scalar", "nonsense", "amx", "amxbf16"])
def test_the_set_can_be_forced(name):
    program = "from hybridkern import kernels; print(kernels.active())"
    env = os.environ | {"HYBRIDKERN_CPU": name}
    made = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    if name in kernels.available():
        assert made.stdout.strip() == name
    else:
        assert "KernelError" in made.stderr
        assert name in made.stderr
        assert "scalar" in made.stderr


def test_the_best_exact_set_is_the_default():
    program = "from hybridkern import kernels; print(kernels.active())"
    env = {k: v for k, v in os.environ.items() if k != "HYBRIDKERN_CPU"}
    made = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    order = ["scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "amx"]
    assert made.stdout.strip() == max(set(kernels.available()) - {"amxbf16"}, key=order.index)
