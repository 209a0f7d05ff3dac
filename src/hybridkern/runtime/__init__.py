"""The runtime: the engine with its KV cache, sessions, generation, and the public `Model`."""
