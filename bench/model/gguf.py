"""Measure the forward pass on the blocks of a GGUF file, against the same file in bfloat16 and against llama.cpp, in
turns in one run.

    python -m bench.gguf --llama .venv-llama/bin/python [--perplexity docs] [FILE.gguf]

The forward pass alone, with the same prompts and number of threads: decode at 1, 8 and 32 streams, and a prompt of 512
tokens. --llama: a Python that has llama-cpp-python, built for this machine (`CMAKE_ARGS` as its own documentation says;
the default build is native; for AMX by clang, as GCC 12 makes its tiles crash). Without it tailrace is compared with
itself. A figure is the median of the rounds; ratios are medians of the rounds' ratios, as each round asks everybody
once. --perplexity: of the .md files below a folder, in windows of 512 tokens.

The last rows are shares of limits that the same run measures. One stream is held against the bandwidth of reads, 32
streams and the prompt against the rate of multiplications (peak_rates.py): of eight bits for weights in blocks,
of bfloat16 else.

--kv-cache-dtype: the same questions about a KV cache in eight bits against one in bfloat16, both with bfloat16 weights;
with --perplexity, also how far the logits are away.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from gguf import GGUFReader

from bench.lib.harness import Worker, cores, machine, table, write_json
from bench.model.gguf_ours import READ_BYTES
from bench.model.peak_rates import peak_rates
from tailrace.config import ModelConfig
from tailrace.models import resolve
from tailrace.models.default import default_gguf_path
from tailrace.text.tokenizer import Tokenizer

STREAMS = (1, 8, 32)
PROMPT, WINDOW = 64, 512
AT_ONCE = 4  # windows of the text


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Flags."""
    parser = argparse.ArgumentParser(prog="python -m bench.gguf", description=__doc__)
    parser.add_argument("file", nargs="?", help="GGUF file; none: the default model's")
    parser.add_argument("--llama", help="a Python with llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=32, help="decode steps per round")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--perplexity", type=Path, help="a folder with the text, in .md files; nothing is timed then")
    parser.add_argument("--tokens", type=int, default=20_000, help="of the text")
    parser.add_argument("--kv-cache-dtype", help="int8 or fp8: compare KV caches in place of weights")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens of a stream before it decodes")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    resolve(ModelConfig())
    file = args.file or str(default_gguf_path(Path(ModelConfig().cache_dir)))
    window = max(WINDOW, args.prompt + args.steps)
    first = {"file": file, "threads": args.threads, "streams": max(STREAMS), "window": window}
    code = args.kv_cache_dtype
    kinds = {weights: {"weights": weights, "kv_cache_dtype": "auto"} for weights in ("quantized", "dequantized")}
    if code:
        kinds = {kind: {"weights": "dequantized", "kv_cache_dtype": kind} for kind in (code, "auto")}
    with ExitStack() as stack:
        workers = {kind: stack.enter_context(Worker("bench.model.gguf_ours", threads=args.threads)) for kind in kinds}
        about = {kind: worker.ask({**first, **kinds[kind]}) for kind, worker in workers.items()}
        if args.llama:
            workers["llama.cpp"] = stack.enter_context(Worker("bench.model.gguf_llama", python=args.llama))
            about["llama.cpp"] = workers["llama.cpp"].ask(first) | {"bytes": Path(file).stat().st_size}
        if args.perplexity:
            text = windows(args.perplexity, args.tokens, file)
            rows = perplexities(workers, text)
            found = differences(workers[code], text) if code else {}
            rows = [rows[0] | found, *(row | dict.fromkeys(found, "") for row in rows[1:])]
        else:
            peaks = peak_rates(args.threads)
            rows, rates = speeds(workers, args, about)
            kinds_of = {name: "bf16" if name in ("dequantized", "auto", code) else "int8" for name in workers}
            rows += peak_shares(rates, products_of(file), kinds_of, peaks)
    print(table(rows))
    if args.json:
        write_json(args.json, {"machine": machine(), "file": file, "threads": args.threads, "rows": rows})
    return 0


def speeds(
    workers: dict[str, Worker], args: argparse.Namespace, about: dict[str, dict[str, int]]
) -> tuple[list[dict[str, Any]], dict[str, dict[str, list[float]]]]:
    """A row per question: tokens per second of each, and the ratios of the first to the others; last, the share of the
    measured read bandwidth at which one stream reads the weights. Then the rates of all rounds, by question and worker.
    about: a worker's vocabulary, and the bytes that a step reads."""
    chance, vocab = random.Random(0), min(one["vocab"] for one in about.values())
    questions: dict[str, tuple[dict[str, Any], int]] = {
        f"decode, {n} streams": (
            {"do": "decode", "prompts": prompts(chance, n, args.prompt, vocab), "steps": args.steps},
            n * args.steps,
        )
        for n in STREAMS
    }
    questions[f"prefill {WINDOW}"] = {"do": "prefill", "ids": prompts(chance, 1, WINDOW, vocab)[0]}, WINDOW
    reader, bandwidths = next(iter(workers.values())), []
    rates: dict[str, dict[str, list[float]]] = {what: {name: [] for name in workers} for what in questions}
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        bandwidths.append(READ_BYTES / reader.ask({"do": "read"}))
        for what, (question, tokens) in questions.items():
            for name, worker in workers.items():
                rates[what][name].append(tokens / worker.ask(question))
    print(f"read bandwidth of {args.threads} threads: {median(bandwidths) / 1e9:.1f} GB/s", file=sys.stderr)
    one = rates[f"decode, {STREAMS[0]} streams"]
    shares = {
        name: median(rate * about[name]["bytes"] / most for rate, most in zip(one[name], bandwidths, strict=True))
        for name in workers
    }
    rows = [row(what, found) for what, found in rates.items()]
    return [*rows, dict.fromkeys(rows[0], "") | {"tokens/s": "share of the bandwidth, 1 stream", **shares}], rates


def products_of(file: str) -> tuple[int, int]:
    """Weights that are multiplied for each token: those of the layers, and those of the output projection."""
    sizes = {tensor.name: int(tensor.n_elements) for tensor in GGUFReader(file).tensors if len(tensor.shape) == 2}
    layers = sum(size for name, size in sizes.items() if name.startswith("blk."))
    return layers, sizes.get("output.weight", sizes["token_embd.weight"])


def peak_shares(
    rates: dict[str, dict[str, list[float]]], products: tuple[int, int], kinds: dict[str, str], peaks: dict[str, float]
) -> list[dict[str, Any]]:
    """Shares of the peak rate of multiplications; none where there is no loop that measures it. kinds: a worker's."""
    layers, head = products
    each = {f"decode, {STREAMS[-1]} streams": layers + head, f"prefill {WINDOW}": layers + head / WINDOW}
    ratios = dict.fromkeys((f"× {name}" for name in list(kinds)[1:]), "")
    return [
        {
            "tokens/s": f"share of the multiplications, {what}",
            **{name: median(rates[what][name]) * count / peaks[kind] for name, kind in kinds.items()},
            **ratios,
        }
        for what, count in each.items()
        if all(peaks[kind] for kind in kinds.values())
    ]


def row(what: str, found: dict[str, list[float]]) -> dict[str, Any]:
    """Tokens per second, then ratios."""
    ours, *rest = found
    ratios = {f"× {name}": median(a / b for a, b in zip(found[ours], found[name], strict=True)) for name in rest}
    return {"tokens/s": what, **{name: median(rates) for name, rates in found.items()}, **ratios}


def prompts(chance: random.Random, count: int, length: int, vocab: int) -> list[list[int]]:
    """Random ids."""
    return [[chance.randrange(100, vocab) for _ in range(length)] for _ in range(count)]


def windows(folder: Path, tokens: int, file: str) -> list[list[int]]:
    """The text's first tokens in windows."""
    text = "\n\n".join(path.read_text() for path in sorted(folder.rglob("*.md")))
    tokenizer = Tokenizer.load(resolve(ModelConfig(model=file), progress=False).folder)
    ids = tokenizer.encode(text[: tokens * 8])[:tokens]
    return [ids[start : start + WINDOW] for start in range(0, len(ids) - 1, WINDOW)]


def differences(worker: Worker, text: list[list[int]]) -> dict[str, Any]:
    """What the cache's codes do to the logits of the text."""
    parts = [worker.ask({"do": "away", "windows": text[at : at + AT_ONCE]}) for at in range(0, len(text), AT_ONCE)]
    total, logits, others, tokens = (sum(part[i] for part in parts) for i in range(1, 5))
    return {
        "largest difference": f"{max(part[0] for part in parts):.3f}",
        "mean": f"{total / logits:.4f}",
        "another likeliest, %": f"{100 * others / tokens:.2f}",
    }


def perplexities(workers: dict[str, Worker], text: list[list[int]]) -> list[dict[str, Any]]:
    """One row per worker: e to the mean loss, and how far it is from the second's. A few windows at a time."""
    losses, count = dict.fromkeys(workers, 0.0), 0
    for start in range(0, len(text), AT_ONCE):
        part = text[start : start + AT_ONCE]
        for name, worker in workers.items():
            losses[name] += worker.ask({"do": "losses", "windows": part})
        count += sum(len(ids) - 1 for ids in part)
        sofar = ", ".join(f"{name} {math.exp(loss / count):.4f}" for name, loss in losses.items())
        print(f"after {count} tokens: {sofar}", file=sys.stderr, flush=True)
    means = {name: loss / count for name, loss in losses.items()}
    base = list(means.values())[1]
    return [
        {
            "kind": name,
            "tokens": count,
            "perplexity": f"{math.exp(mean):.4f}",
            "against bfloat16, %": f"{100 * (math.exp(mean - base) - 1):+.3f}",
        }
        for name, mean in means.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
