"""The settings of an engine: its model, cache, scheduler, drafter and grammars."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tailrace.config.section import MODEL_NAME, NAME_RULE, Amount, Natural, Positive, Seconds, Section, split_commas
from tailrace.errors import ConfigError

Overlap = Literal["auto", "on", "off"]


def default_cache_dir() -> str:
    """Return the user's cache folder for converted models: $XDG_CACHE_HOME or ~/.cache, then tailrace."""
    return str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace")


Weights = Literal["dequantized", "quantized"]
Quantize = Literal["none", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "mxfp4"]


class ModelConfig(Section, frozen=True):
    """The model and its arithmetic.

    - model: a Hugging Face folder, a hub id, a GGUF file, or None for the small default model.
    - name: what clients call the model; None: the model's own name.
    - aliases: other names that clients may use, separated by commas.
    - dtype: of weights and KV cache.
    - kv_cache_dtype: of the KV cache, on a CPU. "auto" is dtype. int8 and fp8 (float8 e4m3) have a float32 scale per
      token and head, as `_per_token_head` in other engines.
    - weights: of a GGUF file: as numbers of dtype, or, on a CPU, in their blocks ("quantized").
    - quantize: GGUF's type of blocks to which a float model's matrices are converted.
    - device: "auto" selects a CUDA GPU if one exists.
    - threads: 0 is one per core.
    - cuda_graphs: on a GPU, launch decode steps as CUDA graphs.
    - cpu_graphs: on a CPU, record the calls of decode steps and repeat them without the model's Python code.
    - batch_invariant: on a GPU, a token's logits have the same bits whatever else is in its batch. Without it a GPU
      reads long prompts faster, and decodes more slowly. On a CPU this always holds.
    - processors: logits processors for requests: "name=package.module:function", separated by commas.
    - lora: LoRA adapters for requests: "name=folder", separated by commas.
    - lora_folder: the folder below which adapters may be loaded at run time. None: no adapter may be.
    - max_loras: maximum number of adapters at once, if some may be loaded at run time.
    - override_generation_config: sampling fields that requests may leave out, as a JSON object. They go before those of
      the model's generation config.
    - chat_template: a file with the chat template, in place of the model's own.
    - chat_template_kwargs: variables of the chat template, as a JSON object, for requests that do not set them.
    - template_cpu_s, template_memory_mib: limits of one rendering of the chat template. Its load may take the same
      processor time in all. On macOS the memory has no limit.
    """

    model: str | None = None
    name: str | None = None
    aliases: str = ""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    weights: Weights = "dequantized"
    kv_cache_dtype: Literal["auto", "int8", "fp8", "fp8_e4m3", "int8_per_token_head", "fp8_per_token_head"] = "auto"
    quantize: Quantize = "none"
    device: str = "auto"
    threads: Natural = 0
    cuda_graphs: bool = True
    cpu_graphs: bool = True
    batch_invariant: bool = True
    cache_dir: str = msgspec.field(default_factory=default_cache_dir)
    trust_remote_code: bool = False
    processors: str = ""
    lora: str = ""
    lora_folder: str | None = None
    max_loras: Positive = 16
    override_generation_config: str = ""
    chat_template: str | None = None
    chat_template_kwargs: str = ""
    template_cpu_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 10.0
    template_memory_mib: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 512

    @property
    def other_names(self) -> list[str]:
        """The names of `aliases`.

        Raises:
            ConfigError: one can't be a name.
        """
        for name in (names := split_commas(self.aliases)):
            if not MODEL_NAME.fullmatch(name):
                raise ConfigError(f"model.aliases (--aliases): a name must be {NAME_RULE}, got {name!r:.200}")
        return names

    @property
    def adapters(self) -> dict[str, str]:
        """Name → folder, of `lora`.

        Raises:
            ConfigError: `lora` is not name=folder, name=folder, …
        """
        found: dict[str, str] = {}
        for part in filter(None, map(str.strip, self.lora.split(","))):
            name, _, folder = part.partition("=")
            if not MODEL_NAME.fullmatch(name) or not folder or name in found:
                raise ConfigError(
                    f"model.lora must be NAME=FOLDER, NAME=FOLDER, … with different names, got {self.lora!r:.200}"
                )
            found[name] = folder
        return found


class CacheConfig(Section, frozen=True):
    """The block-paged KV cache.

    - num_blocks: 0: as many as fit into `memory_gib`.
    - memory_gib: 0: a share of the free memory.
    - memory_growth_gib: memory that requests may add to the engine's process. 0: half of the memory that is available
      when the engine is ready.
    - state_snapshots: of a model with a state per sequence, the copies of states from which later prompts continue. 0:
      two per sequence of max_num_seqs, or as many as an eighth of the cache's memory holds.
    """

    block_size: Positive = 16
    num_blocks: Natural = 0
    state_snapshots: Natural = 0
    memory_gib: Amount = 0.0
    memory_growth_gib: Amount = 0.0
    prefix_reuse: bool = True


class SchedulerConfig(Section, frozen=True):
    """Limits of one step and of the waiting requests.

    - prefill_slowdown: approximate maximum duration of a step that also prefills, relative to a decode-only step.
      Prompts are read in chunks of this duration, by the times of the last steps. If more prompts wait than sequences
      decode, the limit grows up to four times. Many short prompts and few decoding sequences share one step of about a
      second at most (decision 0065). 0: chunks have max_num_batched_tokens.
    - max_num_batched_tokens: of any step. With a prefill_slowdown, a step of prompts alone has at most 512, or as many
      as take about a second.
    - max_model_len: 0: the model's own.
    - overlap: plan a step while the previous one runs; auto: on a GPU.
    - stall_s: a longer step is reported as a stall (/health, log, metrics); 0: never.
    - sleep_after: seconds without a request after which the engine's process ends; the next request starts another.
      0: never.
    - redraws_per_token: maximum number of discarded draws per delivered token; then a sequence with banned strings or
      patterns ends. At its start, 16 tokens count as delivered.
    - max_sampling_mask: most ids in a token's sampling mask; a larger mask is null.
    - max_waiting: of all users. If so many wait, each user may still have an equal part of the places.
    - host_ms: processor time per step for the sequences of one request, without the model. If they need more, they take
      turns. While several users run, it also bounds all requests of one user.
    """

    max_num_seqs: Positive = 64
    max_num_batched_tokens: Positive = 2048
    prefill_slowdown: Amount = 3.0
    max_model_len: Natural = 0
    max_waiting: Natural = 10_000
    redraws_per_token: Positive = 16
    max_sampling_mask: Positive = 4096
    overlap: Overlap = "auto"
    stall_s: Amount = 10.0
    sleep_after: Amount = 0.0
    host_ms: Positive = 25


WITH_WEIGHTS = ("draft_model", "eagle", "mtp", "block")  # drafters that may have weights of their own


class SpeculationConfig(Section, frozen=True):
    """Speculative decoding. drafting/__init__.py lists the drafters.

    - drafter: "none", "ngram", "suffix", "early_exit", "draft_model", "eagle", "mtp" or "block".
    - lookup: "ngram" or "suffix": asked before the drafter, which then drafts where no earlier text agrees.
    - model: the weights of the last four: a folder, a hub id or a GGUF file. mtp needs none: the model has its own.
    - weights, quantize: of a draft model, as those of the model (ModelConfig).
    - max_drafts: most drafts per sequence and step.
    - adaptive: draft fewer tokens, or none, if drafting would lose time.
    - rule: auto is exact for guessed tokens, and rejection for tokens drawn from distributions.
    - layers: number of the target's layers for early_exit; 0: a quarter of them.
    - cache_gib: memory for the KV cache of a drafter with weights.
    """

    drafter: Literal["none", "ngram", "suffix", "early_exit", "draft_model", "eagle", "mtp", "block"] = "none"
    lookup: Literal["none", "ngram", "suffix"] = "none"
    model: str | None = None
    weights: Weights = "dequantized"
    quantize: Quantize = "none"
    max_drafts: Annotated[int, msgspec.Meta(ge=1, le=32)] = 5
    adaptive: bool = True
    rule: Literal["auto", "exact", "rejection", "block", "typical"] = "auto"
    layers: Natural = 0
    cache_gib: Amount = 1.0

    def check_lookup(self) -> None:
        """Raise ConfigError for a lookup beside no drafter, or beside another that reads tokens alone."""
        if self.lookup != "none" and self.drafter in ("none", "ngram", "suffix"):
            raise ConfigError(
                f"speculation.lookup {self.lookup} (--draft-lookup) comes before a drafter with a model; "
                f"speculation.drafter (--drafter) is {self.drafter}"
            )


class GrammarConfig(Section, frozen=True):
    """Structured output.

    - timeout_s, memory_mib: limits of one compilation, in processor time and memory; beyond them a grammar is refused.
    - workers: short grammars of one user that are compiled at once. All users together have places for as many of
      medium length, and for as many slow ones.
    - cached: number of compiled grammars in the cache.
    - threads: threads that fill masks.
    - step_ms: processor time of the masks of one sequence in a step. Drafts whose masks would take longer are dropped.
    """

    timeout_s: Seconds = 10.0
    memory_mib: Positive = 1024
    workers: Positive = 2
    cached: Positive = 256
    threads: Positive = 1
    step_ms: Positive = 50


class EngineConfig(Section, frozen=True):
    """All settings of the engine process; sent to it as one message at start."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    grammar: GrammarConfig = GrammarConfig()
