"""The operator's settings: frozen sections, one per room, each handed to its room alone.

`load` reads them once, at the edge: flag over environment (TAILRACE_<SECTION>_<FIELD>) over file (TOML, one table per
section) over default. Nothing below this file reads a flag, the environment or a file of settings.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from tailrace.errors import ConfigError

Overlap = Literal["auto", "on", "off"]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
NAME = re.compile(r"[A-Za-z0-9._:@/+-]{1,128}")  # of a model
Seconds = Annotated[float, msgspec.Meta(gt=0)]


def default_cache_dir() -> str:
    """The user's cache folder for converted models: $XDG_CACHE_HOME or ~/.cache, then tailrace."""
    return str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections."""


class ModelConfig(Section, frozen=True):
    """Which model, and in which arithmetic.

    model: a Hugging Face folder, a hub id, a GGUF file, or None for the small default model.
    name: the name clients use (and the only one they may); None takes it from the model.
    processors: logits processors that requests may name: "name=package.module:function", separated by commas.
    lora: adapters by the names that requests choose them by: "name=folder", separated by commas.
    dtype: of weights and KV cache. device: "auto" takes a CUDA GPU if there is one. threads: 0 is one per core.
    cuda_graphs: on a GPU, whether steps that only decode are launched as CUDA graphs.
    """

    model: str | None = None
    name: str | None = None
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    device: str = "auto"
    threads: Natural = 0
    cuda_graphs: bool = True
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
            if not NAME.fullmatch(name) or not folder or name in found:
                raise ConfigError(
                    f"model.lora must be NAME=FOLDER, NAME=FOLDER, … with different names, got {self.lora!r:.200}"
                )
            found[name] = folder
        return found


class CacheConfig(Section, frozen=True):
    """The block-paged KV cache. num_blocks 0 takes as many as fit `memory_gib` (0: a share of what is free). memory_growth_gib: what
    requests may make the engine's process hold beyond it; 0: half of what is available when it is ready."""

    block_size: Positive = 16
    num_blocks: Natural = 0
    memory_gib: Amount = 0.0
    memory_growth_gib: Amount = 0.0
    prefix_reuse: bool = True


class SchedulerConfig(Section, frozen=True):
    """Limits of one step and of the waiting line. max_model_len 0 takes the model's own. overlap: whether a step is planned while the one
    before runs; auto: on a GPU. stall_s: a step that takes longer is told as a stall (/health, log, metrics); 0: none is.
    redraws_per_token: how many tokens a sequence with banned strings or patterns may draw in vain for each that it delivers (16 more count
    as delivered at its beginning) before it ends. host_ms: of processor time that the sequences of one call may take in a step beside
    the model; where they take more they take turns."""

    max_num_seqs: Positive = 64
    max_num_batched_tokens: Positive = 512
    max_model_len: Natural = 0
    max_waiting: Natural = 10_000
    redraws_per_token: Positive = 16
    overlap: Overlap = "auto"
    stall_s: Amount = 10.0
    host_ms: Positive = 25


WITH_WEIGHTS = ("draft_model", "eagle", "block")  # drafters that have weights of their own


class SpeculationConfig(Section, frozen=True):
    """Guessing ahead: who guesses (drafting/__init__.py lists them), with which weights, how far, how it is verified.

    drafter: "none", "ngram", "suffix", "early_exit", "draft_model", "eagle" or "block". model: the folder (or hub id, or GGUF file) of the
    last three. max_drafts: tokens per step at most. adaptive: fewer, or none, where guessing would lose. rule: auto is exact for guessed
    tokens and rejection for those drawn from distributions. layers: of the target, that early_exit runs; 0: a quarter of them.
    cache_gib: memory for a draft model's own KV cache.
    """

    drafter: Literal["none", "ngram", "suffix", "early_exit", "draft_model", "eagle", "block"] = "none"
    model: str | None = None
    max_drafts: Annotated[int, msgspec.Meta(ge=1, le=32)] = 5
    adaptive: bool = True
    rule: Literal["auto", "exact", "rejection", "block", "typical"] = "auto"
    layers: Natural = 0
    cache_gib: Amount = 1.0


class GrammarConfig(Section, frozen=True):
    """Structured output. timeout_s, memory_mib: a grammar that takes more to compile is refused. workers: one grammar that takes long does
    not keep the others waiting; a second process starts when it is first needed. cached: compiled grammars kept.
    threads: that fill masks. step_ms: of processor time that one sequence's grammar may take in a step."""

    timeout_s: Seconds = 10.0
    memory_mib: Positive = 1024
    workers: Positive = 2
    cached: Positive = 256
    threads: Positive = 1
    step_ms: Positive = 50


class EngineConfig(Section, frozen=True):
    """All that the engine process needs; crosses to it as one message at start."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    grammar: GrammarConfig = GrammarConfig()


class ServerConfig(Section, frozen=True):
    """The HTTP front ends, so many processes on one port. `on_engine_death`: exit with an error, or start a new engine. Times are in
    seconds.

    model_defaults: sampling fields that a request leaves out come from the model's generation config, where it has some.
    api_keys, cors_origins: separated by commas; none: anybody may call, no other site's pages may.
    log_requests: one line in the log per request that has ended.
    max_request_s: a request that takes longer ends with what it has; 0: none does. keep_alive_s: a stream that was silent for so long
    gets a comment. max_body_mib: of a request, also once it is unpacked.
    max_headers, max_header_line_bytes, max_header_bytes, max_url_bytes: of a request's head. header_timeout_s, body_timeout_s: that they
    may take to come. idle_timeout_s: that a connection may be without a request; longer than common proxies', so that they close first.
    max_connections, max_connections_per_address: of one front end; 0: as many from one address as there may be in all.
    allowed_hosts: names by which the server may be called, separated by commas; "*": any; none: where it listens on loopback, loopback's
    own, elsewhere any.
    max_body_items: objects, lists and strings (names too) in its JSON; of numbers four times as many. max_tokenize_kib: of a
    body for /tokenize and /detokenize, where no context bounds it.
    stream_interval: tokens of a sequence that its stream sends together; stream_interval_ms: after which it sends what there is, and 0: the
    number alone decides. The first tokens never wait.
    stream_buffer_kib: what may wait for a client that reads slowly. slow_readers: whether one for whom more waits is ended with what it
    has ("cut"), or all of it kept, as far as the context goes ("keep").
    reasoning_parser, tool_parser: how the model marks what it thinks and the tools it calls (text/channels.py, text/tools); auto looks
    at its vocabulary and chat template, none leaves all of it in the content.
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
    log_requests: bool = True
    reasoning_parser: Literal["auto", "none", "think", "mistral", "seed"] = "auto"
    tool_parser: Literal[
        "auto",
        "none",
        "deepseek_v3",
        "glm4",
        "granite",
        "hermes",
        "kimi_k2",
        "llama3_json",
        "mistral",
        "pythonic",
        "qwen3_coder",
    ] = "auto"


class Config(Section, frozen=True):
    """Every section. models: where several are served, or one by a name of its own: name → its engine's settings, which are those of the
    sections but for what it says itself."""

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


def load(
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    env: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Config:
    """Settings from flags ({section: {field: value}}, None values skipped), environment and file, in that precedence. What is said of one
    model ({"models": {name: {section: {field: value}}}} in flags and file) goes before what is said of all.

    Raises:
        ConfigError: naming the field, for an unknown table or field, a wrong type, or a file that can't be read.
    """
    merged: dict[str, dict[str, Any]] = {name: {} for name in (*SECTIONS, MODELS)}
    if file is not None:
        try:
            tables = tomllib.loads(Path(file).read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{file}: {error}") from error
        for name, table in tables.items():
            if name not in merged or not isinstance(table, dict):
                raise ConfigError(f"{file}: unknown table [{name}]; there are {', '.join((*SECTIONS, MODELS))}")
            (merge_models if name == MODELS else dict.update)(merged[name], table)
    env = os.environ if env is None else env
    for name in SECTIONS:
        for field in fields(name):
            value = env.get(f"TAILRACE_{name}_{field}".upper())
            if value is not None:
                merged[name][field] = value
    for name, given in (flags or {}).items():
        if name == MODELS:
            merge_models(merged[MODELS], given)
            continue
        merged[name].update({field: value for field, value in given.items() if value is not None})
    merged[MODELS] = {name: of_model(name, own, merged) for name, own in merged[MODELS].items()}
    try:
        return msgspec.convert(merged, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error


def merge_models(models: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Add what is said of single models: {name: {section: {field: value}}}."""
    for name, own in given.items():
        if not isinstance(own, Mapping) or not all(isinstance(table, Mapping) for table in own.values()):
            raise ConfigError(f"models.{name} must hold tables, one per section: {', '.join(ENGINE_SECTIONS)}")
        for section, table in own.items():
            models.setdefault(name, {}).setdefault(section, {}).update(table)
        models.setdefault(name, {})


def of_model(name: str, own: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of one model: its own fields over those of all, its name among them."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"a model's name must be 1 to 128 letters, digits or any of . _ : @ / + -, got {name!r:.200}")
    if "name" in own.get("model", {}) or common["model"].get("name") is not None:
        raise ConfigError(
            f"the model {name!r} has its name already; it takes no other (--served-model-name, model.name)"
        )
    sections = {section: {**common[section], **own.get(section, {})} for section in ENGINE_SECTIONS}
    sections["model"]["name"] = name
    return {**own, **sections}


def fields(section: str) -> tuple[str, ...]:
    """The field names of a section."""
    return {
        "model": ModelConfig,
        "cache": CacheConfig,
        "scheduler": SchedulerConfig,
        "speculation": SpeculationConfig,
        "grammar": GrammarConfig,
        "server": ServerConfig,
    }[section].__struct_fields__
