"""As much of pycuda as hybridkern uses, over the libcuda.so.1 beside it."""
