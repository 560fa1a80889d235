"""Token ids → logits. `load_runner` makes the runner that a model's name or folder asks for."""

from __future__ import annotations

from pathlib import Path

from tailrace.config import ModelConfig
from tailrace.errors import ConfigError
from tailrace.runners.base import Batch, ModelRunner

__all__ = ["Batch", "ModelRunner", "check_adapters", "load_runner"]


def load_runner(
    config: ModelConfig,
    folder: Path | None,
    *,
    block_size: int,
    vocab_size: int = 0,
    max_num_seqs: int = 0,
    max_model_len: int = 0,
) -> ModelRunner:
    """Return the runner for config.model: `scripted:…` needs `vocab_size`, any other model its folder.

    - max_num_seqs: the most sequences that decode at once, for CUDA graphs and the steps that are recorded at load; 0:
      no graphs.
    - max_model_len: the longest sequence that is served; 0: the model's own limit.

    Raises:
        ModelLoadError, ConfigError: see the runners.
    """
    if folder is None:
        from tailrace.runners.scripted import make_scripted

        runner: ModelRunner = make_scripted(config.model or "", vocab_size, block_size)
    else:
        from tailrace.runners.load_transformers import load_transformers

        runner = load_transformers(
            config, folder, block_size=block_size, max_num_seqs=max_num_seqs, max_model_len=max_model_len
        )
    check_adapters(config, runner)
    return runner


def check_adapters(config: ModelConfig, runner: ModelRunner) -> None:
    """Raise ConfigError if the runner does not apply the adapters that the settings name."""
    if tuple(config.adapters) != runner.adapters:
        raise ConfigError(f"model.lora (--lora): {type(runner).__name__} applies no adapters; leave it out")
    if config.lora_folder is not None and not runner.takes_adapters:
        name = type(runner).__name__
        raise ConfigError(f"model.lora_folder (--lora-folder): {name} applies no adapters; leave it out")
