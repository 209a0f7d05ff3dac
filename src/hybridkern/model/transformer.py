"""A whole model: embedding, blocks, norm, head."""

from __future__ import annotations

from dataclasses import dataclass

from hybridkern.kernels.interface import Angles, Buffer, KVSpec, Recorder

from .block import Scratch, record_block
from .config import ModelConfig
from .rope import global_angles, local_angles
from .weights import FileLike, ModelWeights, bind_weights


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model whose weights are bound to a file that must stay open.

    angles: of all blocks but those with a sliding window, which use `local_angles` where that is not None.
    kv_specs: the cache of every block.
    """

    config: ModelConfig
    weights: ModelWeights
    kv_specs: tuple[KVSpec, ...]
    angles: Angles
    local_angles: Angles | None

    @classmethod
    def from_gguf(cls, file: FileLike) -> LoadedModel:
        """Bind the model of an open GGUF file. Raises ModelError where it is not one that can be run."""
        config = ModelConfig.from_metadata(file.metadata)
        weights = bind_weights(file, config)
        specs = tuple(KVSpec(i, b.n_head_kv, config.head_dim_k, config.head_dim_v) for i, b in enumerate(config.blocks))
        angles = global_angles(config, weights.rope_freqs, weights.rope_short, weights.rope_long)
        return cls(config, weights, specs, angles, local_angles(config))

    @property
    def long_after(self) -> int | None:
        """The longest sequence that uses `Batch.variants` 0; all tokens of a longer one use 1. None: there is no 1."""
        return self.config.rope.original_context if self.angles.inv_freq_long is not None else None

    def record(self, r: Recorder) -> Buffer:
        """Record one step of the model; returns the buffer of logits, [outputs][n_vocab]."""
        config, w = self.config, self.weights
        scratch = Scratch(r)

        r.angles(self.angles)
        if self.local_angles is not None:
            r.angles(self.local_angles)
        x = r.buffer("x", config.n_embd)  # [tokens][d], the residual stream
        r.embed(x, w.embedding, config.embedding_scale)
        for block, weights, kv in zip(config.blocks, w.blocks, self.kv_specs, strict=True):
            local = self.local_angles if block.window else None
            at_end = kv.block == len(config.blocks) - 1
            record_block(r, scratch, x, weights, config, block, kv, local or self.angles, at_end)

        last = r.buffer("last", config.n_embd, "outputs")  # [outputs][d]
        normed = r.buffer("normed", config.n_embd, "outputs")  # [outputs][d]
        logits = r.buffer("logits", config.n_vocab, "outputs")  # [outputs][n_vocab]
        r.select(last, x)
        r.rmsnorm(normed, last, w.output_norm, config.eps)
        r.matmul(logits, normed, w.output, w.output_bias, precise=True)
        if config.final_softcap > 0:
            r.softcap(logits, logits, config.final_softcap)
        return logits
