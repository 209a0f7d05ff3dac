"""The CUDA kernel set: handwritten kernels, loaded through the driver in the context that pycuda provides."""

from .cuda_set import CudaSet

__all__ = ["CudaSet"]
