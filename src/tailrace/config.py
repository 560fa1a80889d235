"""The operator's settings: frozen sections, one per room. Each room gets its own section only.

base/config_sources.py reads them once, at the edge. Nothing else reads a flag, the environment or a file of settings.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tailrace.errors import ConfigError

Overlap = Literal["auto", "on", "off"]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]  # finite: JSON has no other
MODEL_NAME = re.compile(r"[A-Za-z0-9._:@/+-]{1,128}")
Seconds = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]


def default_cache_dir() -> str:
    """The user's cache folder for converted models: $XDG_CACHE_HOME or ~/.cache, then tailrace."""
    return str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections."""


class ModelConfig(Section, frozen=True):
    """Which model, and in which arithmetic.

    model: a Hugging Face folder, a hub id, a GGUF file, or None for the small default model.
    name: the only name that clients may use; None: the model's own.
    processors: logits processors that requests may name: "name=package.module:function", separated by commas.
    lora: LoRA adapters by the names that requests use: "name=folder", separated by commas.
    dtype: of weights and KV cache. kv_cache_dtype: of the KV cache, on a CPU: "auto" is dtype; int8 and fp8, which is
    float8 e4m3, have a float32 scale per token and head, as the _per_token_head of other engines.
    weights: what becomes of a GGUF file's matrices: dtype's numbers, or, on a CPU, they stay in their blocks
    ("quantized"). quantize: blocks of GGUF's that the matrices of a folder of floats become.
    device: "auto" takes a CUDA GPU if there is one. threads: 0 is one per core.
    cuda_graphs: on a GPU, launch decode steps as CUDA graphs. cpu_graphs: on a CPU, record the calls of decode
    steps, and make them again without the model's Python code.
    batch_invariant: on a GPU, compute a token's logits to the same bits whatever else is in its batch; on a CPU they
    are, always. Without it a GPU reads long prompts faster, and decodes more slowly.
    """

    model: str | None = None
    name: str | None = None
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    weights: Literal["dequantized", "quantized"] = "dequantized"
    kv_cache_dtype: Literal["auto", "int8", "fp8", "fp8_e4m3", "int8_per_token_head", "fp8_per_token_head"] = "auto"
    quantize: Literal["none", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "mxfp4"] = "none"
    device: str = "auto"
    threads: Natural = 0
    cuda_graphs: bool = True
    cpu_graphs: bool = True
    batch_invariant: bool = True
    cache_dir: str = msgspec.field(default_factory=default_cache_dir)
    trust_remote_code: bool = False
    processors: str = ""
    lora: str = ""

    @property
    def adapters(self) -> dict[str, str]:
        """Name → folder, of `lora`.

        Raises:
            ConfigError: it is not name=folder, name=folder, …
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

    num_blocks: 0: as many as fit into `memory_gib`, whose 0 stands for a share of the free memory.
    memory_growth_gib: memory that requests may add to the engine's process; 0: half of what is available when it is
    ready.
    """

    block_size: Positive = 16
    num_blocks: Natural = 0
    memory_gib: Amount = 0.0
    memory_growth_gib: Amount = 0.0
    prefix_reuse: bool = True


class SchedulerConfig(Section, frozen=True):
    """Limits of one step and of the waiting line.

    prefill_slowdown: how many times as long as without prompts a step may take, about, where others decode (up to four
    times that where more prompts wait than sequences decode): prompts are read in chunks that fit, by what the last
    steps took; 0: in chunks of max_num_batched_tokens. Many short prompts that wait beside few sequences that decode
    are read in one step, of about a second at most (decision 0065).
    max_num_batched_tokens: of any step. With a prefill_slowdown, one of prompts alone has at most 512, or as many as
    take about a second.
    max_model_len: 0: the model's own.
    overlap: plan a step while the one before runs; auto: on a GPU.
    stall_s: a step that takes longer is reported as a stall (/health, log, metrics); 0: never.
    redraws_per_token: tokens that a sequence with banned strings or patterns may discard per delivered token before it
    ends; 16 count as delivered at its start.
    max_sampling_mask: ids that a token's sampling mask may have; one with more is null.
    host_ms: processor time per step that the sequences of one request may take besides the model; beyond it they take
    turns.
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
    host_ms: Positive = 25


WITH_WEIGHTS = ("draft_model", "eagle", "block")  # drafters with weights of their own


class SpeculationConfig(Section, frozen=True):
    """Speculative decoding: the drafter (drafting/__init__.py lists them), its weights, its length, the rule of
    verification.

    drafter: "none", "ngram", "suffix", "early_exit", "draft_model", "eagle" or "block". model: the folder (or hub id,
    or GGUF file) of the last three.
    max_drafts: tokens per step at most. adaptive: draft fewer tokens, or none, where drafting would lose time.
    rule: auto is exact for guessed tokens, and rejection for tokens drawn from distributions.
    layers: of the target, for early_exit; 0: a quarter of them. cache_gib: memory for a draft model's own KV cache.
    """

    drafter: Literal["none", "ngram", "suffix", "early_exit", "draft_model", "eagle", "block"] = "none"
    model: str | None = None
    max_drafts: Annotated[int, msgspec.Meta(ge=1, le=32)] = 5
    adaptive: bool = True
    rule: Literal["auto", "exact", "rejection", "block", "typical"] = "auto"
    layers: Natural = 0
    cache_gib: Amount = 1.0


class GrammarConfig(Section, frozen=True):
    """Structured output.

    timeout_s, memory_mib: a grammar that takes more to compile is refused.
    workers: compiling processes, so that a slow grammar does not delay others; each starts when it is first needed.
    cached: compiled grammars kept. threads: threads that fill masks.
    step_ms: processor time that one sequence's grammar may take in a step.
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


class ServerConfig(Section, frozen=True):
    """The HTTP front ends. Times are in seconds.

    front_ends: processes that listen on the one port. on_engine_death: exit with an error, or start a new engine.
    model_defaults: fields that a request leaves out come from the model's generation config, if it has them.
    api_keys, cors_origins: separated by commas; none: everybody may call, but pages of other sites may not.
    log_requests: a log line for each request that has ended.
    page: serve the page on which one sees why each token came, at /.
    max_request_s: a longer request ends with what it has; 0: no limit. keep_alive_s: a silent stream gets a comment
    after this time.
    max_body_mib: of a request, compressed or not. max_headers, max_header_line_bytes, max_header_bytes, max_url_bytes:
    limits of a request's head.
    header_timeout_s, body_timeout_s: time for them to arrive. idle_timeout_s: time that a connection may stay without a
    request; longer than that of common proxies, so that they close first.
    max_connections, max_connections_per_address: of one front end; 0: no limit per address.
    allowed_hosts: accepted host names, separated by commas; "*": any; none: loopback names if it listens on loopback,
    else any.
    max_body_items: objects, lists and strings (names too) in a body's JSON; four times as many numbers.
    max_tokenize_kib: of a body for /tokenize and /detokenize, which no context bounds.
    stream_interval: tokens of a sequence sent together; stream_interval_ms: send what there is after this time; 0: the
    number alone decides. The first tokens never wait.
    stream_buffer_kib: unread data of a slow client. slow_readers: beyond it, end the request with what it has ("cut")
    or keep all of it ("keep").
    reasoning_parser, tool_parser: how the model marks its reasoning and its tool calls (text/reasoning.py,
    text/tool_parsers); auto reads its vocabulary and chat template; none leaves everything in the content.
    unseen_tools: the chat template does not write the tools of a request: answer with a warning, or refuse it.
    """

    host: str = "127.0.0.1"
    port: Port = 8000
    front_ends: Positive = 1
    on_engine_death: Literal["exit", "restart"] = "exit"
    start_timeout_s: Seconds = 600.0
    drain_timeout_s: Seconds = 30.0
    max_logprobs: Natural = 20
    model_defaults: bool = True
    api_keys: str = ""
    cors_origins: str = ""
    max_request_s: Amount = 0.0
    keep_alive_s: Seconds = 15.0
    max_body_mib: Positive = 8
    max_headers: Positive = 100
    max_header_line_bytes: Positive = 16_384
    max_header_bytes: Positive = 65_536
    max_url_bytes: Positive = 8192
    header_timeout_s: Seconds = 30.0
    body_timeout_s: Seconds = 120.0
    idle_timeout_s: Seconds = 75.0
    max_connections: Positive = 16_384
    max_connections_per_address: Natural = 0
    allowed_hosts: str = ""
    max_body_items: Positive = 81_920
    max_tokenize_kib: Positive = 1024
    stream_interval: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    stream_interval_ms: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 0.0
    stream_buffer_kib: Positive = 1024
    slow_readers: Literal["cut", "keep"] = "cut"
    unseen_tools: Literal["warn", "refuse"] = "warn"
    log_requests: bool = True
    page: bool = True
    reasoning_parser: str = "auto"
    tool_parser: str = "auto"


class Config(Section, frozen=True):
    """Every section. models: if several are served, or one under a name of its own: name → settings of its engine. What
    they don't set comes from the sections."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    grammar: GrammarConfig = GrammarConfig()
    server: ServerConfig = ServerConfig()
    models: dict[str, EngineConfig] = {}

    def each(self) -> list[Config]:
        """The settings of each model, as if it were the only one."""
        alone = [{name: getattr(engine, name) for name in ENGINE_SECTIONS} for engine in self.models.values()]
        return [msgspec.structs.replace(self, models={}, **sections) for sections in alone] or [self]

    @property
    def engine(self) -> EngineConfig:
        """The sections of the engine process."""
        return EngineConfig(
            model=self.model,
            cache=self.cache,
            scheduler=self.scheduler,
            speculation=self.speculation,
            grammar=self.grammar,
        )


ENGINE_SECTIONS = ("model", "cache", "scheduler", "speculation", "grammar")
SECTIONS = (*ENGINE_SECTIONS, "server")
MODELS = "models"
