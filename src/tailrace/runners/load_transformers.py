"""A folder in Hugging Face's layout → a finished TransformersRunner.

On the CPU, and where the model must be batch-invariant, runners/fuse.py replaces modules. Models that can't be served
correctly are refused: a trial run compares our logits with those of the model's own eager attention.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tailrace import kernels
from tailrace.base.adapter_files import ADAPTER_CONFIG
from tailrace.base.extras import require_extra
from tailrace.config import ModelConfig
from tailrace.errors import ConfigError, ModelLoadError, TailraceError
from tailrace.models.auto_class import find_auto_class, load_auto_config
from tailrace.runners import probe
from tailrace.runners.attention import NAME, forward_attention
from tailrace.runners.decode_steps import record_calls, record_graphs
from tailrace.runners.fuse import fuse_modules
from tailrace.runners.fuse_hybrids import find_builders
from tailrace.runners.invariant import PlaceIndependent, select_mode
from tailrace.runners.invariant_gpu import RowsIndependent
from tailrace.runners.load_checks import (
    admit_blocks,
    dequantize_at_load,
    explain_errors,
    forget_quantization,
    pick_device,
    pick_kv_code,
    refuse_encoder_decoder,
    report_nonfinite,
    settle_dtypes,
    usable_cores,
    use_causal_masks,
)
from tailrace.runners.load_errors import make_load_error
from tailrace.runners.lora import Adapters
from tailrace.runners.masks import made_mask
from tailrace.runners.paged_model import PagedModel, attach_memory
from tailrace.runners.reproduction import WITHOUT_INTERFACE, check_reproduced
from tailrace.runners.rope import settle_long_rope
from tailrace.runners.transformers import DecodeSteps, TransformersRunner
from tailrace.runners.trials import TRIAL_TOKENS

log = logging.getLogger(__name__)

# How the weights of a folder are loaded. Where `peft` is installed, transformers looks for an adapter in the folder and
# adds the adapter to the model, unchecked. This subfolder holds none.
LOAD_FLAGS: dict[str, Any] = {"output_loading_info": True, "adapter_kwargs": {"subfolder": os.devnull}}


def load_transformers(
    config: ModelConfig, folder: Path, *, block_size: int, max_num_seqs: int = 0, max_model_len: int = 0
) -> TransformersRunner:
    """Load the model in `folder`. max_num_seqs, max_model_len: see load_runner.

    Raises:
        ModelLoadError: the folder has no such model, or the model needs what the paged cache can't do.
        ConfigError: the device or dtype is not available.
    """
    device = pick_device(config.device)
    code = pick_kv_code(config.kv_cache_dtype, device)
    if device.type == "cpu":
        take_threads(config)
    if (folder / ADAPTER_CONFIG).is_file():
        log.warning("the adapter in %s is not part of the model; --lora NAME=%s serves it too", folder, folder)
    model = load_model(folder, getattr(torch, config.dtype), device, config.trust_remote_code)
    with report_nonfinite(folder, model), explain_errors(type(model).__name__):
        paged = attach_memory(model, block_size, config.batch_invariant)
        settle_long_rope(model, min(max_model_len or paged.max_model_len, paged.max_model_len))
        check_reproduced(paged)
    folders = {name: Path(path).expanduser() for name, path in config.adapters.items()}
    adapters = Adapters(folders, model, more=config.lora_folder is not None)
    paged = swap_modules(paged, adapters)
    if code is not None and not paged.attention:
        raise ConfigError(
            f"model.kv_cache_dtype {config.kv_cache_dtype} (--kv-cache-dtype): {type(model).__name__} has no KV cache; "
            "use auto"
        )
    if device.type == "cpu" and not paged.recurrent:
        # Additions are left to torch. Its threads would spin for the next one on the cores that our kernels need.
        torch.set_num_threads(1)
    return TransformersRunner(paged, code, choose_steps(config, paged, max_num_seqs))


def swap_modules(paged: PagedModel, adapters: Adapters) -> PagedModel:
    """Swap in modules of our kernels on the CPU, and where the model must be batch-invariant; then hook the adapters.
    Return the model with the context that its other modules need, and with the adapters."""
    model, on_cpu = paged.model, paged.device.type == "cpu"
    with paged.trial_memory():
        if on_cpu or paged.layers.batch_invariant:
            with explain_errors(type(model).__name__):
                fused = fuse_modules(model, paged.run_trial, adapters.owners(model), find_builders(model))
                log.info("fused %s", ", ".join(fused) or "nothing")
                paged = replace(
                    paged, context=select_mode(PlaceIndependent if on_cpu else RowsIndependent, paged.run_trial)
                )
        if adapters.names or adapters.more:
            paged = replace(paged, lora=adapters)
            adapters.attach(paged.run_trial, TRIAL_TOKENS)
    return paged


def choose_steps(
    config: ModelConfig, paged: PagedModel, max_num_seqs: int
) -> Callable[[int], DecodeSteps | None] | None:
    """Return how decode steps are recorded, see TransformersRunner. Models with indexers record no steps, because the
    host goes through the sequences."""
    if paged.indexers:
        return None
    if paged.device.type == "cpu":
        return partial(record_calls, paged, max_num_seqs) if config.cpu_graphs else None
    graphs = config.cuda_graphs and max_num_seqs
    return partial(record_graphs, paged, max_num_seqs) if graphs else None


def refuse_missing(folder: Path, names: list[str]) -> None:
    """Raise ModelLoadError if there are such weights: transformers would make them up at random."""
    if names:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise ModelLoadError(f"{folder}: the model's weights are not all there: {names[0]}{others} missing")


def check_names(folder: Path, report: dict[str, Any]) -> None:
    """Log how many tensors of the files have no place in the model. Raise ModelLoadError if weights are missing."""
    if names := sorted(report["unexpected_keys"]):
        log.info("%s: %d tensors of its files have no place in the model, such as %.80r", folder, len(names), names[0])
    refuse_missing(folder, sorted(report["missing_keys"]))


@contextmanager
def hide_reports() -> Iterator[None]:
    """Hide what transformers logs of a load, except errors. Its report has a line for every tensor that is missing or
    unused. The log level `debug` shows it."""
    with require_extra("serve"):
        from transformers.utils import logging as hf_logging

    before = hf_logging.get_verbosity()
    if not log.isEnabledFor(logging.DEBUG):
        hf_logging.set_verbosity(max(before, logging.ERROR))
    try:
        yield
    finally:
        hf_logging.set_verbosity(before)


def take_threads(config: ModelConfig) -> None:
    """The threads of torch and of our kernels on a CPU.

    Raises:
        ConfigError: there are no kernels for the dtype.
    """
    if config.dtype == "float16":
        raise ConfigError("dtype float16 has no kernels on the CPU; use bfloat16 or float32")
    threads = config.threads or usable_cores()
    torch.set_num_threads(threads)
    kernels.set_num_threads(threads)


@hide_reports()
def load_model(folder: Path, dtype: torch.dtype, device: torch.device, trust_remote_code: bool) -> Any:
    """The folder's causal language model, in evaluation mode, with our attention function."""
    with require_extra("serve"):
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    AttentionInterface.register(NAME, forward_attention)
    AttentionInterface.register(probe.NAME, probe.probe_attention)
    AttentionMaskInterface.register(probe.NAME, made_mask)
    config: Any = None
    try:
        config = load_auto_config(folder, trust_remote_code)
        refuse_encoder_decoder(config)
        forget_quantization(folder, config)
        dequantize_at_load(config)
        use_causal_masks(config)
        admit_blocks(config, device)
        quantized = getattr(config, "quantization_config", None) is not None  # transformers may delete it
        loaded: Any = find_auto_class(config).from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=NAME,
            trust_remote_code=trust_remote_code,
            **LOAD_FLAGS,
        )
        model, report = loaded
        check_names(folder, report)
    except TailraceError:
        raise
    except KeyError as error:
        if error.args == (NAME,):  # it looks for one of its own attention classes
            raise ModelLoadError(f"{folder}: {config.model_type} {WITHOUT_INTERFACE}") from error
        raise make_load_error(folder, config, error, trust_remote_code) from error
    except Exception as error:  # whatever transformers' checks and a model's code raise
        raise make_load_error(folder, config, error, trust_remote_code) from error
    torch.nn.Module.to(model, device)
    if quantized:
        settle_dtypes(model, dtype)
    return model.eval()
