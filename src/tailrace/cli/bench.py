"""`tailrace bench NAME`: runs a benchmark of the repository's bench/ folder, which no installed package holds."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

import tailrace
from tailrace.errors import ConfigError

BENCHES: dict[str, str] = {
    "serve": "a server's throughput and latencies against a plain transformers loop; with --device, overlapped steps",
    "sampler": "every case of sampling in µs per row, against one read of the row and others; --device cuda: on a GPU",
    "egress": "from token ids to the bytes of events, per token, against what servers usually do",
    "knobs": "a server's throughput with sampling knobs on, against greedy",
    "explain": "records of why a token came, in ms, against the walk that they are made of",
    "spec": "a server that guesses ahead against one that does not, on text that repeats itself and on free text",
    "structured": "what grammars and guidance cost the streams that have them, and those beside them",
    "verify": "verification of drafts, against one read of the logits and against the same in vectorised torch",
    "grammar": "grammars compiled and masks filled, on real-world schemas",
    "lanes": "where the time of a step goes, as lanes of the engine and of the device",
    "abuse": "what the worst known requests cost other streams, in ms of the engine's step and of the event loop",
    "gguf": "the forward pass on a GGUF file's own weights, against bfloat16 and against llama.cpp",
    "vllm": "vLLM's own server with tailrace as its sampler and without: tokens/s by what is asked for, against greedy",
    "peers": "the server against vLLM's, in turns: tokens/s, first tokens and gaps, also while prompts arrive",
    "kernels": "each kernel against torch doing the same work",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The name; the rest belongs to the benchmark, which has its own --help."""
    names = "; ".join(f"{name}: {text}" for name, text in BENCHES.items())
    parser.add_argument("name", choices=sorted(BENCHES), help=names)
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="--json FILE and the benchmark's own flags")


def run(args: argparse.Namespace) -> int:
    """Import bench/NAME.py from the project and call its main(argv)."""
    sys.path.insert(0, str(project_root(args.name)))
    return import_module(f"bench.{args.name}").main(args.rest)


def project_root(name: str) -> Path:
    """The checkout that holds bench/NAME.py: where this package's sources lie, or the current folder.

    Raises:
        ConfigError: neither is a checkout.
    """
    candidates = (Path(tailrace.__file__ or "").resolve().parents[2], Path.cwd())
    for root in candidates:
        if (root / "bench" / f"{name}.py").is_file():
            return root
    raise ConfigError(f"bench/{name}.py is in neither {candidates[0]} nor {candidates[1]}: benchmarks need a checkout")
