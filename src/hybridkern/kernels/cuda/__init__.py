"""The CUDA kernel set: handwritten kernels, loaded through the driver in the context that pycuda provides.

The engine does not use it yet, and a default build leaves its kernels out: see cmake/cuda.cmake.
"""

from .cuda_set import CudaSet

__all__ = ["CudaSet"]
