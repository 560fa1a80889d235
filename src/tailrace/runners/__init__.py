"""Token ids → logits. `load_runner` makes the runner that a model's name or folder asks for."""

from __future__ import annotations

from pathlib import Path

from tailrace.config import ModelConfig
from tailrace.runners.base import Batch, ModelRunner

__all__ = ["Batch", "ModelRunner", "load_runner"]


def load_runner(
    config: ModelConfig,
    folder: Path | None,
    *,
    block_size: int,
    vocab_size: int = 0,
    max_num_seqs: int = 0,
    max_model_len: int = 0,
) -> ModelRunner:
    """The runner for config.model: `scripted:…` needs `vocab_size`, any other model its folder. max_num_seqs: the most
    sequences that decode at once, for CUDA graphs; 0: no graphs. max_model_len: the longest sequence that is served;
    0: as long as the model can.

    Raises:
        ModelLoadError, ConfigError: see the runners.
    """
    if folder is None:
        from tailrace.runners.scripted import named

        return named(config.model or "", vocab_size, block_size)
    from tailrace.runners.transformers import TransformersRunner

    return TransformersRunner.load(
        config, folder, block_size=block_size, max_num_seqs=max_num_seqs, max_model_len=max_model_len
    )
