"""Flags made from the configuration's sections and from SamplingParams, so that there is one list of each."""

from __future__ import annotations

import argparse
from typing import Any

from tailrace.config import Config, fields, load
from tailrace.params import SamplingParams

# section → field → help; the flag is the field's name
HELP: dict[str, dict[str, str]] = {
    "model": {
        "model": "Hugging Face folder, hub id, or GGUF file; left out: SmolLM2-135M-Instruct",
        "name": "the name clients use; left out: taken from the model",
        "dtype": "bfloat16 (default), float16 or float32",
        "device": "auto (default), cpu or cuda",
        "threads": "CPU threads of the engine; 0 is one per core",
        "cache_dir": "where converted models are kept",
        "trust_remote_code": "run code that the model's folder brings",
    },
    "cache": {
        "block_size": "positions per KV cache block, a multiple of 16",
        "num_blocks": "blocks of the KV cache; 0 sizes it by memory",
        "memory_gib": "memory of the KV cache; 0 takes 30 %% of what is free",
        "prefix_reuse": "true (default) or false: reuse the KV cache of equal prompt beginnings",
    },
    "scheduler": {
        "max_num_seqs": "sequences that run at once",
        "max_num_batched_tokens": "tokens computed per step",
        "max_model_len": "context length; 0 is the model's own",
        "max_waiting": "requests that may wait before new ones get 503",
    },
    "server": {
        "host": "address to listen on",
        "port": "port to listen on",
        "on_engine_death": "exit (default) or restart",
        "start_timeout_s": "how long the engine may take to start",
        "drain_timeout_s": "how long running requests may take once told to stop",
    },
}

SAMPLING = {
    "temperature": float, "top_p": float, "top_k": int, "min_p": float, "repetition_penalty": float,
    "presence_penalty": float, "frequency_penalty": float, "max_tokens": int, "min_tokens": int, "seed": int, "n": int,
}  # fmt: skip


def add_config(parser: argparse.ArgumentParser, *sections: str) -> None:
    """Flags of the named sections, and --config for a file."""
    parser.add_argument("--config", metavar="FILE", help="TOML file with tables [model], [cache], [scheduler], [server]")
    for section in sections:
        group = parser.add_argument_group(section)
        for name, text in HELP[section].items():
            flag = f"--{name.replace('_', '-')}"
            group.add_argument(flag, dest=f"{section}.{name}", metavar=name.upper(), help=text)


def read_config(arguments: argparse.Namespace) -> Config:
    """Flag over environment over file over default.

    Raises:
        ConfigError: naming the field.
    """
    given: dict[str, dict[str, Any]] = {}
    for key, value in vars(arguments).items():
        section, _, name = key.partition(".")
        if name and section in HELP and name in fields(section):
            given.setdefault(section, {})[name] = value
    return load(given, file=arguments.config)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Flags of the sampling parameters."""
    group = parser.add_argument_group("sampling")
    for name, kind in SAMPLING.items():
        group.add_argument(f"--{name.replace('_', '-')}", dest=f"sampling.{name}", type=kind, metavar=name.upper())
    group.add_argument("--stop", dest="sampling.stop", action="append", metavar="STRING", help="may be repeated")


def read_sampling(arguments: argparse.Namespace, defaults: dict[str, Any]) -> SamplingParams:
    """What the flags say, over the defaults.

    Raises:
        ParameterError: naming the field and its range.
    """
    said = {key.partition(".")[2]: value for key, value in vars(arguments).items() if key.startswith("sampling.")}
    chosen = defaults | {name: value for name, value in said.items() if value is not None}
    if "stop" in chosen:
        chosen["stop"] = tuple(chosen["stop"])
    return SamplingParams(**chosen)
