"""hybridkern runs GGUF language models on the CPU, on the GPU, or across both."""
