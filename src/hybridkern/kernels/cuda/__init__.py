"""The CUDA kernel set: handwritten kernels, loaded through the driver in the context that pycuda provides.

A default build leaves its kernels out: see cmake/cuda.cmake.
"""

from .cuda_set import CudaSet

__all__ = ["CudaSet"]
