"""Command-line flags made from the settings' sections and from SamplingParams, and the functions that read them.

There is one flag per field, named after it. Without the flag the environment, the file or the default decides.

(More than 300 lines: a third is the table of help texts.)
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from tailrace import config as settings
from tailrace.base.config_sources import list_fields, load_config
from tailrace.base.nearest import suggest_name
from tailrace.base.settings_errors import name_flag
from tailrace.config import Config
from tailrace.errors import ConfigError, ParameterError
from tailrace.params import FIELDS, SamplingParams
from tailrace.request.fields import RANDOM_SEED
from tailrace.request.sampler_fields import DRY_BREAKERS

if TYPE_CHECKING:
    from tailrace.text.tokenizer import Tokenizer

HELP: dict[str, str] = {
    "model.model": "a Hugging Face folder, a hub id, a GGUF file; none: a small default model, fetched once",
    "model.name": "the name clients use for the model; none: taken from the model",
    "model.aliases": "other names that clients may use for the model, separated by commas; repeatable",
    "model.dtype": "of weights and KV cache",
    "model.weights": "of a GGUF file: dequantized to dtype, or quantized as they are in the file (CPU)",
    "model.kv_cache_dtype": "of keys and values on a CPU; auto: dtype; the others take half of bfloat16's memory",
    "model.quantize": "blocks that the matrices of a Hugging Face folder become when it is first loaded (CPU)",
    "model.device": "auto (a CUDA GPU if there is one), cpu, cuda, cuda:1 …",
    "model.threads": "for arithmetic on the CPU; 0: one per core",
    "model.cuda_graphs": "on a GPU, launch steps that only decode as CUDA graphs",
    "model.cpu_graphs": "on a CPU, record steps that only decode; repeat their calls without the model's Python code",
    "model.batch_invariant": "on a GPU, the same bits for a token whatever else is in its batch, as a CPU always has",
    "model.cache_dir": "where downloaded and converted models are kept",
    "model.trust_remote_code": "run Python code that comes with the model",
    "model.processors": "logits processors that requests may name: name=package.module:function, …",
    "model.lora": "LoRA adapters that requests may choose as their model: NAME=FOLDER (of PEFT's format), …; "
    "repeatable",
    "model.lora_folder": "folder below which /v1/load_lora_adapter may load adapters; none: it loads none",
    "model.max_loras": "adapters at once, with --lora-folder",
    "model.override_generation_config": "sampling fields that requests may leave out, as a JSON object; they go "
    "before those of the model's generation config",
    "model.chat_template": "a file with the chat template, in place of the model's own",
    "model.chat_template_kwargs": "variables of the chat template that requests may leave out, as a JSON object",
    "model.template_cpu_s": "seconds of processor time that the chat template may take for a conversation, and to load",
    "model.template_memory_mib": "MiB of memory that the chat template may take for a conversation",
    "cache.block_size": "tokens per block of the KV cache",
    "cache.num_blocks": "blocks of the KV cache; 0: as many as --memory-gib holds",
    "cache.state_snapshots": "copies of states for prefixes of models with a state per sequence; 0: two per sequence",
    "cache.memory_gib": "GiB for the KV cache; 0: a share of what is free",
    "cache.memory_growth_gib": "GiB by which requests may make the engine grow beyond its cache; 0: half of "
    "what is available",
    "cache.prefix_reuse": "keep the KV cache of finished prompts for prompts that begin alike",
    "scheduler.max_num_seqs": "sequences computed at once",
    "scheduler.max_num_batched_tokens": "tokens computed per step; longer prompts are cut in chunks",
    "scheduler.prefill_slowdown": "how many times as long as without prompts a step may take where others decode; "
    "up to four times that where more prompts wait than sequences decode; 0: no bound",
    "scheduler.max_model_len": "tokens of prompt and output together; 0: the model's own limit",
    "scheduler.max_waiting": "requests that may wait; users with an equal part of them get a 429 then",
    "scheduler.redraws_per_token": "tokens drawn in vain per token delivered, after which a sequence with "
    "banned text ends",
    "scheduler.overlap": "plan a step while the one before runs; auto: on a GPU",
    "scheduler.host_ms": "milliseconds of a step, beside the model, that one request's sequences may take; "
    "beyond they take turns",
    "scheduler.max_sampling_mask": "ids that the sampling mask of a token may have; one with more is null",
    "scheduler.stall_s": "seconds after which a step counts as stalled: /health says 503, the log where it is; "
    "0: never",
    "scheduler.sleep_after": "seconds without a request after which a model's memory is given back; the next request "
    "loads it again; 0: never",
    "speculation.drafter": "who guesses tokens ahead",
    "speculation.lookup": "copies text that was seen before, where enough of it agrees; the drafter does the rest",
    "speculation.model": "folder, hub id or GGUF file of the drafter's own weights, where it has some",
    "speculation.weights": "of a draft model that is a GGUF file or packed: as --weights of the model",
    "speculation.quantize": "type of blocks to which a draft model's floats are converted",
    "speculation.max_drafts": "tokens guessed per sequence and step at most",
    "speculation.adaptive": "guess less, or not at all, where it would lose",
    "speculation.rule": "how guesses are verified; auto: exact, or rejection where they are drawn from distributions",
    "speculation.layers": "of the model, that early_exit guesses with; 0: a quarter of them",
    "speculation.cache_gib": "GiB for a draft model's own KV cache",
    "grammar.timeout_s": "seconds of processor time after which a grammar that still compiles is refused",
    "grammar.memory_mib": "MiB beyond which a grammar that compiles is refused",
    "grammar.workers": "grammars of one user that are compiled at once; slow ones give way",
    "grammar.cached": "compiled grammars kept",
    "grammar.step_ms": "milliseconds of a step for one sequence's masks; drafts beyond them are dropped",
    "grammar.threads": "that compute which tokens grammars allow",
    "server.host": "address to listen on; 0.0.0.0 for all",
    "server.port": "port to listen on; 0: any free one",
    "server.front_ends": "processes that take requests, on the same port and for the same engine",
    "server.on_engine_death": "what the server does when its engine dies",
    "server.start_timeout_s": "seconds the engine may take to start",
    "server.drain_timeout_s": "seconds running requests may take to finish at shutdown",
    "server.max_logprobs": "most logprobs per token a request may ask for",
    "server.model_defaults": "take sampling defaults from the model's generation config",
    "server.api_keys": "keys that may call, separated by commas; none: anybody (better in "
    "TAILRACE_SERVER_API_KEYS than on a command line)",
    "server.encryption_key": "secret for thoughts that clients keep encrypted; none: random at each start (better in "
    "TAILRACE_SERVER_ENCRYPTION_KEY than on a command line)",
    "server.cors_origins": "sites whose pages may call, separated by commas; * for all",
    "server.max_request_s": "seconds after which a request ends with what it has; 0: never",
    "server.keep_alive_s": "seconds of silence after which a stream gets a comment",
    "server.max_body_mib": "MiB that a request's body may have",
    "server.max_body_items": "objects, lists and strings that a body may hold; of numbers four times as many",
    "server.max_tokenize_kib": "KiB that a body for /tokenize may have",
    "server.max_headers": "headers that a request may have",
    "server.max_header_line_bytes": "bytes that one header may have",
    "server.max_header_bytes": "bytes that all headers of a request may have",
    "server.max_url_bytes": "bytes that a request's URL may have",
    "server.header_timeout_s": "seconds that a request's headers may take to come",
    "server.body_timeout_s": "seconds that a request's body may take to come",
    "server.idle_timeout_s": "seconds that a connection may be open without a request",
    "server.max_connections": "connections that a front end may have; where all are in use, the user who holds "
    "most makes room",
    "server.max_connections_per_address": "of those, from one address; 0: all (behind a proxy all come from one)",
    "server.allowed_hosts": "names of the server that requests may use, by commas; * for any; none: on loopback "
    "its own, else any",
    "server.cache_isolation": "requests that share cached prefixes: all (none), those of the same cache_salt "
    "(salt), of the same user and cache_salt (user); auto: user with several keys, else salt",
    "server.requests_per_minute": "requests that a user (a key, else an address) may start per minute; 0: no limit",
    "server.tokens_per_minute": "tokens of prompts and outputs that a user may use per minute; 0: no limit",
    "server.max_requests_per_user": "requests of a user that may run at once; 0: no limit",
    "server.metrics_by_user": "users with samples of their own in /metrics; all others share one; 0: no metrics by "
    "user",
    "server.max_priority": "how far a request's priority counts among other users' requests; beyond it, and with 0 "
    "always, it orders the requests of its own user alone",
    "server.sleep_endpoints": "let clients put models to sleep and wake them, by POST /sleep and /wake_up",
    "server.log_requests": "a line in the log for every request that has ended",
    "server.page": "serve the page on which one sees why each token came, at /",
    "server.stream_interval": "tokens of a sequence that its stream sends together",
    "server.stream_interval_ms": "milliseconds after which a stream sends what there is; 0: the number of "
    "tokens decides",
    "server.stream_buffer_kib": "KiB of a stream that may wait for a client that reads slowly",
    "server.stored_responses_mib": "size of all stored responses, in the file or, without one, in each front end's "
    "memory; the user with the most loses first",
    "server.stored_responses_file": "file that keeps stored responses through a restart; without one they are in "
    "memory",
    "server.stored_responses_days": "days after which a stored response is dropped; 0: never",
    "server.slow_readers": "what happens where more waits: end the request with what it has, or keep all of it",
    "server.resume_s": "seconds that a resumable request runs without a reader, and its events are kept after its "
    "end; 0: no request is resumable",
    "server.resume_mib": "MiB of events of resumable requests in each front end's memory; the user with the most "
    "loses first",
    "server.reasoning_field": "what a chat's answer calls what the model thinks",
    "server.foreign_tools": "tools that cannot be served, such as those that only a vendor's server can run: drop "
    "them with a warning where other tools are left, and write earlier calls of such tools as text; or refuse the "
    "request",
    "server.foreign_content": "images, sounds, films and files, which no model reads: a line of text in their place, "
    "or refuse the request; auto: a line of text in a tool's result and in an answer of before, elsewhere refuse",
    "server.unknown_fields": "fields of a request that nobody knows: answer with a warning, or refuse the request",
    "server.unseen_tools": "tools that the chat template does not write: answer with a warning, or refuse the request",
    "server.reasoning_budget_message": "words that are written at the end of a thought that the server ends, where a "
    "request names none",
    "server.reasoning_parser": "how the model marks what it thinks: a name in docs/reasoning.md; auto: by its "
    "response_template, vocabulary and chat template",
    "server.tool_parser": "how the model marks the tools it calls: a name in docs/tools.md; auto: by its "
    "response_template, vocabulary and chat template",
}
ENGINE_SECTIONS = settings.ENGINE_SECTIONS
MODEL, NAME, ALIASES = "model.model", "model.name", "model.aliases"
REPEATABLE = {"model.lora": "NAME=FOLDER", ALIASES: "NAME"}  # flags whose values are joined by commas → a value
PATHS = ("/", ".", "~")  # what a model's path begins with, and no name
SEVERAL = "; given several times, each by a name of its own, and with settings of its own: a=FOLDER,dtype=float32"
MODEL_FLAGS: dict[str, str] = {  # flags that one of several models may have for itself, without their dashes
    name_flag(section, field).removeprefix("--"): key
    for section in ENGINE_SECTIONS
    for field in list_fields(section)
    if (key := f"{section}.{field}") not in (MODEL, NAME)
}

FLAG_LISTS = {
    tuple[str, ...]: ("TEXT", str),
    tuple[int, ...]: ("ID", int),
}  # type → what one occurrence of its flag holds


def plain_type(hint: Any) -> Any:
    """Return a field's type without None and without its range."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    return hint


def add_flag(group: Any, flag: str, dest: str, hint: Any, help_text: str) -> None:
    """Add one flag. Its default is None, which means not given."""
    hint = plain_type(hint)
    common = {"dest": dest, "default": None, "help": help_text}
    if hint is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
    elif get_origin(hint) is Literal:
        group.add_argument(flag, choices=get_args(hint), **common)
    else:
        group.add_argument(flag, type=hint, metavar={int: "N", float: "X"}.get(hint, "TEXT"), **common)


def add_config_flags(parser: argparse.ArgumentParser, sections: Iterable[str], several: bool = False) -> None:
    """Add a flag for every field of the sections, and --config for a file of them. several: --model may be repeated."""
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="TOML file, one table per section")
    defaults = load_config(env={})
    for section in sections:
        group = parser.add_argument_group(f"{section} (or TAILRACE_{section.upper()}_…)")
        hints = get_type_hints(type(getattr(defaults, section)))
        for field in list_fields(section):
            key, hint = f"{section}.{field}", hints[field]
            value = getattr(getattr(defaults, section), field)
            shown = f"{HELP[key]} (default: {str(value).replace('%', '%%')})"
            if several and key == MODEL:
                group.add_argument(
                    "--model", dest=key, action="append", metavar="[NAME=]MODEL[,FLAG=VALUE …]", help=shown + SEVERAL
                )
                continue
            if key in REPEATABLE:
                group.add_argument("--" + field, dest=key, action="append", metavar=REPEATABLE[key], help=shown)
                continue
            if several and key == NAME:
                help_text = f"{shown}; further names are aliases"
                group.add_argument(name_flag(section, field), dest=key, nargs="+", metavar="NAME", help=help_text)
                continue
            add_flag(group, name_flag(section, field), key, hint, shown)
    parser.formatter_class = argparse.HelpFormatter  # the defaults are in the texts: argparse sees only None


def read_config(args: argparse.Namespace) -> Config:
    """Return the settings that flags, environment and file give together.

    Raises:
        ConfigError: naming the field.
    """
    flags: dict[str, dict[str, Any]] = {}
    given = dict(vars(args))
    if isinstance(names := given.get(NAME), list):
        given[NAME] = names[0]
        given[ALIASES] = [*names[1:], *(given.get(ALIASES) or ())] or None
    for key, value in given.items():
        section, _, field = key.partition(".")
        if key == MODEL and isinstance(value, list):
            if len(value) > 1 or is_named(value[0]):
                flags[settings.MODELS] = dict(map(read_model, unique(value)))
                continue
            [value] = value
        if key in REPEATABLE and value is not None:
            value = ",".join(value)
        if section in settings.SECTIONS and field:
            flags.setdefault(section, {})[field] = value
    return load_config(flags, file=getattr(args, "config", None))


def is_named(value: str) -> bool:
    """Return whether --model's value begins with a name. It does not if a file or folder has the whole value as its
    name."""
    name, equals, _ = value.partition("=")
    return (
        bool(equals)
        and not value.startswith(PATHS)
        and settings.MODEL_NAME.fullmatch(name) is not None
        and not Path(value).expanduser().exists()
    )


def unique(values: list[str]) -> list[str]:
    """Check that the models have names of their own, and return them.

    Raises:
        ConfigError: of several models one has no name, or two have the same.
    """
    names = [value.partition("=")[0] for value in values]
    for value, name in zip(values, names, strict=True):
        if not is_named(value):
            raise ConfigError(f"--model {value}: of several models each needs a name: --model NAME=MODEL")
        if names.count(name) > 1:
            raise ConfigError(f"--model {value}: there is another model of the name {name!r}")
    return values


def read_model(value: str) -> tuple[str, dict[str, dict[str, str]]]:
    """Split NAME=MODEL,FLAG=VALUE … into the name and the fields of its sections.

    FLAG is any flag of the engine without its dashes.

    Raises:
        ConfigError: there is no such flag.
    """
    name, _, rest = value.partition("=")
    model, *own = rest.split(",")
    sections: dict[str, dict[str, str]] = {"model": {"model": model}} if model else {"model": {}}
    for setting in own:
        flag, equals, given = setting.partition("=")
        key = MODEL_FLAGS.get(flag)
        if key is None or not equals:
            hint = suggest_name(flag, MODEL_FLAGS) if key is None else ""
            raise ConfigError(
                f"--model {value}: {setting!r} is no setting{hint}; they are FLAG=VALUE, with {', '.join(MODEL_FLAGS)}"
            )
        section, _, field = key.partition(".")
        fields = sections.setdefault(section, {})
        if field in fields and key not in REPEATABLE:
            raise ConfigError(f"--model {value}: {flag} is set twice")
        fields[field] = f"{fields[field]},{given}" if field in fields else given
    return name, sections


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every field of SamplingParams that can be written on a command line. Lists repeat the flag."""
    group = parser.add_argument_group("sampling")
    for name, field in FIELDS.items():
        if field.flag == "":
            continue
        kind = plain_type(field.type)
        flag, dest = "--" + name.replace("_", "-"), f"sampling.{name}"
        limits = "" if field.range is None else f"; {field.range}"
        text = f"{field.doc}{limits}".replace("%", "%%")
        if kind in (bool, int, float) or get_origin(kind) is Literal:
            add_flag(group, flag, dest, kind, text)
        elif field.flag is not None or kind in FLAG_LISTS:
            metavar, of = FLAG_LISTS.get(kind, (field.flag, str))
            text += " (repeatable)"
            group.add_argument(flag, dest=dest, action="append", default=None, metavar=metavar, type=of, help=text)


def given_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields whose flags were given, with the flags' values."""
    pairs = ((key.partition(".")[2], value) for key, value in vars(args).items() if key.startswith("sampling."))
    return {field: value for field, value in pairs if value is not None}


def read_sampling(args: argparse.Namespace, defaults: dict[str, Any], tokenizer: Tokenizer | None) -> SamplingParams:
    """Return the parameters that the flags give, over `defaults`. `tokenizer` turns --bad-words into ids.

    Raises:
        ParameterError: naming the field and its range. ConfigError: bad words without a tokenizer.
    """
    fields = {**defaults, **given_sampling(args)}
    if "bad_words" in fields:
        if tokenizer is None:
            raise ConfigError("--bad-words needs the model's tokenizer, so it can't be used with --url")
        fields["bad_words"] = tuple(ids for word in fields["bad_words"] for ids in tokenizer.bad_word_ids(word))
    if "logit_bias" in fields:
        fields["logit_bias"] = dict(map(read_bias, fields["logit_bias"]))
    if fields.get("dry_multiplier") and tokenizer is not None:
        fields.setdefault("dry_sequence_breakers", tokenizer.ids_with(DRY_BREAKERS))  # as over HTTP
    if fields.get("seed") == RANDOM_SEED:
        del fields["seed"]
    try:
        return msgspec.structs.replace(SamplingParams(), **fields)
    except ParameterError:
        raise
    except TypeError as error:
        raise ParameterError(str(error)) from error


def read_bias(text: str) -> tuple[int, float]:
    """Return ID=BIAS as a pair."""
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise ParameterError(f"logit_bias must look like 123=-1.5, got {text!r}", "logit_bias") from None
