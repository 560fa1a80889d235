"""The operator's settings: frozen sections. Each part of the program gets only its own section.

base/config_sources.py reads the settings once, at start. No other code reads flags, the environment or settings files.
(More than 300 lines: each setting has one place.)
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
Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]  # finite, as all numbers of JSON
MODEL_NAME = re.compile(r"[A-Za-z0-9._:@/+-]{1,128}")
NAME_RULE = "1 to 128 letters, digits or any of . _ : @ / + -"  # MODEL_NAME in words
Seconds = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
MAX_WEIGHT = 100  # of a user
PerMinute = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


def default_cache_dir() -> str:
    """Return the user's cache folder for converted models: $XDG_CACHE_HOME or ~/.cache, then tailrace."""
    return str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace")


def split_commas(words: str) -> list[str]:
    """Return the words between the commas, without empty ones."""
    return [word for part in words.split(",") if (word := part.strip())]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections."""


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
    """

    block_size: Positive = 16
    num_blocks: Natural = 0
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


WITH_WEIGHTS = ("draft_model", "eagle", "block")  # drafters with weights of their own


class SpeculationConfig(Section, frozen=True):
    """Speculative decoding. drafting/__init__.py lists the drafters.

    - drafter: "none", "ngram", "suffix", "early_exit", "draft_model", "eagle" or "block".
    - model: the weights of the last three: a folder, a hub id or a GGUF file.
    - max_drafts: most drafts per sequence and step.
    - adaptive: draft fewer tokens, or none, if drafting would lose time.
    - rule: auto is exact for guessed tokens, and rejection for tokens drawn from distributions.
    - layers: number of the target's layers for early_exit; 0: a quarter of them.
    - cache_gib: memory for a draft model's own KV cache.
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

    - timeout_s, memory_mib: limits of one compilation, in processor time and memory; beyond them a grammar is refused.
    - workers: short grammars of one user that are compiled at once. All users together have places for twice as many
      slow grammars.
    - cached: number of compiled grammars in the cache.
    - threads: threads that fill masks.
    - step_ms: processor time of one sequence's grammar in a step.
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


class UserConfig(Section, frozen=True):
    """A user with a name. The settings file alone has such users.

    - api_key: the user's key. It may call, as those of ServerConfig.api_keys.
    - requests_per_minute, tokens_per_minute, max_requests: the user's own limits; None: those of all users, 0: none.
    - max_priority: the user's own; None: that of all users.
    - weight: while users compete, how many tokens the user gets for one token of a user with weight 1.
    """

    api_key: str
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_requests: Natural | None = None
    max_priority: Natural | None = None
    weight: Annotated[int, msgspec.Meta(ge=1, le=MAX_WEIGHT)] = 1


class ServerConfig(Section, frozen=True):
    """The HTTP front ends. Times are in seconds.

    - front_ends: number of processes that listen on the port.
    - on_engine_death: exit with an error, or start a new engine.
    - model_defaults: fields missing from a request come from the model's generation config, if it has them.
    - api_keys, cors_origins: separated by commas. Empty: everybody may call, but no pages of other sites.
    - cache_isolation: which requests share cached prefixes: all ("none"), those with the same cache_salt ("salt"), or
      those of one user with the same cache_salt ("user"). auto: "user" with several keys, else "salt".
    - users: name → a user's key and limits.
    - requests_per_minute, tokens_per_minute, max_requests_per_user: what one user may start, use and run at once in all
      front ends together; 0: no limit.
    - metrics_by_user: maximum number of users with samples of their own in /metrics. All others share one; 0: no
      metrics by user.
    - max_priority: among other users' requests, a priority counts up to this number, and down to its negative. Beyond
      it, a priority counts among its own user's requests alone.
    - log_requests: write a log line for each request at its end.
    - page: serve the page that explains tokens, at /.
    - max_request_s: a longer request ends with its output so far; 0: no limit.
    - keep_alive_s: a silent stream gets a comment after this time.
    - max_body_mib: of a request, compressed or not.
    - max_headers, max_header_line_bytes, max_header_bytes, max_url_bytes: limits of a request's head.
    - header_timeout_s, body_timeout_s: maximum time until they have arrived.
    - idle_timeout_s: maximum time of a connection without a request. It exceeds common proxies' limits, so that they
      close first.
    - max_connections, max_connections_per_address: of one front end; 0: no limit per address.
    - allowed_hosts: accepted host names, separated by commas; "*": any. Empty: loopback names if the server listens on
      loopback, else any.
    - max_body_items: objects, lists and strings (names too) in a body's JSON; four times as many numbers.
    - max_tokenize_kib: of a body for /tokenize and /detokenize, which no context limits.
    - stream_interval: number of a sequence's tokens that are sent together. The first tokens never wait.
    - stream_interval_ms: send the available tokens after this time; 0: only their number decides.
    - stream_buffer_kib: unread data of a slow client.
    - slow_readers: beyond stream_buffer_kib, end the request with its output so far ("cut") or keep all data ("keep").
    - resume_s: how long a resumable request runs without a reader, and how long its events are kept after its end; 0:
      no request is resumable.
    - resume_mib: size of the events of resumable requests of all users, in the memory of one front end.
    - stored_responses_mib: size of the stored responses of all users: in the file, or in the memory of one front end.
    - stored_responses_file: a file for stored responses, so that they survive a restart. None: they are in memory.
    - stored_responses_days: age at which a stored response is dropped; 0: never.
    - encryption_key: for thoughts and compactions that clients keep. Empty: a random one, which ends with the server.
    - reasoning_parser, tool_parser: formats of reasoning and tool calls (text/reasoning.py, text/tool_parsers). auto
      reads the checkpoint's response template, or its vocabulary and chat template. none leaves everything in the
      content.
    - reasoning_budget_message: closing words of a thought that the server ends.
    - reasoning_field: what the answer of a chat calls the thoughts of the model.
    - foreign_tools: tools that only a vendor's server can run: drop them with a warning if other tools are left, or
      refuse the request.
    - foreign_content: images, sounds, films and files, which no model here reads: put a line of text in their place, or
      refuse the request. auto: in a tool's result a line of text, elsewhere refuse.
    - unknown_fields: of a request's body: answer with a warning, or refuse the request.
    - sleep_endpoints: clients may put models to sleep and wake them, by POST /sleep and /wake_up.
    - unseen_tools: if the chat template does not write a request's tools, answer with a warning, or refuse the request.
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
    cache_isolation: Literal["auto", "none", "salt", "user"] = "auto"
    cors_origins: str = ""
    users: dict[str, UserConfig] = {}
    requests_per_minute: PerMinute = 0
    tokens_per_minute: PerMinute = 0
    max_requests_per_user: Natural = 0
    metrics_by_user: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    max_priority: Natural = 0
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
    stored_responses_mib: Positive = 64
    stored_responses_file: str | None = None
    stored_responses_days: Amount = 30.0
    encryption_key: str = ""
    slow_readers: Literal["cut", "keep"] = "cut"
    resume_s: Amount = 60.0
    resume_mib: Positive = 64
    reasoning_field: Literal["both", "reasoning_content", "reasoning"] = "both"
    foreign_tools: Literal["drop", "refuse"] = "drop"
    foreign_content: Literal["auto", "placeholder", "refuse"] = "auto"
    unknown_fields: Literal["warn", "refuse"] = "warn"
    unseen_tools: Literal["warn", "refuse"] = "warn"
    sleep_endpoints: bool = False
    log_requests: bool = True
    page: bool = True
    reasoning_parser: str = "auto"
    reasoning_budget_message: str = ""
    tool_parser: str = "auto"

    @property
    def keys(self) -> list[str]:
        """The different keys of `api_keys` and `users`."""
        return [*dict.fromkeys([*split_commas(self.api_keys), *(user.api_key for user in self.users.values())])]

    @property
    def limits_users(self) -> bool:
        """True if a user has a limit."""
        own = ("requests_per_minute", "tokens_per_minute", "max_requests")
        common = self.requests_per_minute or self.tokens_per_minute or self.max_requests_per_user
        return bool(common) or any(getattr(user, field) for user in self.users.values() for field in own)

    @property
    def tracks_users(self) -> bool:
        """True if the front ends must know what each user does."""
        return self.limits_users or self.metrics_by_user > 0


class Config(Section, frozen=True):
    """Every section.

    models: name → settings of its engine, if the server has several models, or one under another name. Missing settings
    come from the sections.
    """

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    grammar: GrammarConfig = GrammarConfig()
    server: ServerConfig = ServerConfig()
    models: dict[str, EngineConfig] = {}

    def each(self) -> list[Config]:
        """Return the settings of each model, as if it were the only one."""
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
OTHER_USERS = "other"  # in metrics, the users without samples of their own
TABLES = ("server.users",)  # fields that only the settings file can set
MODELS = "models"
