"""Measure how readable a model's answers are under several sampling settings: the perplexity of each answer under the
model's own distribution (temperature 1, nothing cut), for 50 prompts and several seeds.

The perplexity of a text that the model writes and people read easily is about 2 to 10. A much larger number means
noise. A number near 1 means repetition, so the share of repeated 4-grams stands beside it. The first setting is the
baseline. --show prints answers, because numbers do not replace reading.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.lib.harness import machine, percentile, table, write_json
from bench.lib.server import HOST, add_server_flags, serving
from tailrace.config import ModelConfig
from tailrace.models import resolve

AT_ONCE = 16
TIMEOUT_S = 600.0
NOISE = 30.0  # perplexity of an answer that is not readable
GRAM = 4
SETTINGS: tuple[dict[str, float], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 0.7, "min_p": 0.1},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 0.2, "top_p": 0.9},
    {"temperature": 0.0},
)
PROMPTS = Path(__file__).with_name("readability_prompts.txt").read_text().splitlines()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.readability", description=__doc__)
    add_server_flags(parser)
    parser.add_argument("--seeds", type=int, default=5, help="answers to each prompt")
    parser.add_argument("--tokens", type=int, default=100, help="of an answer, at most")
    parser.add_argument("--settings", type=json.loads, help="a JSON list of settings in place of the built-in ones")
    parser.add_argument("--show", type=int, default=0, help="answers of each setting to print")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    local = resolve(ModelConfig(model=args.model) if args.model else ModelConfig())
    with serving(args, local) as server:
        rows = [measure(args, server["port"], setting) for setting in args.settings or SETTINGS]
    for line in rows:
        line["× baseline"] = line["perplexity"] / rows[0]["perplexity"]
    print(f"{local.name}, {len(PROMPTS)} prompts, {args.seeds} seeds, at most {args.tokens} tokens\n")
    print(table(rows))
    if args.json:
        write_json(args.json, {"machine": machine(), "model": local.name, "rows": rows})
    return 0


def measure(args: argparse.Namespace, port: int, setting: dict[str, float]) -> dict[str, Any]:
    """Return the table's row of a setting."""
    asked = [(prompt, seed) for prompt in PROMPTS for seed in range(args.seeds)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda one: answer(port, setting, one[0], one[1], args.tokens), asked))
    for text, logprobs in answers[:: max(1, len(answers) // max(1, args.show))][: args.show]:
        print(f"{json.dumps(setting)} perplexity {perplexity(logprobs):.1f}: {text!r}\n")
    found = sorted(perplexity(logprobs) for _, logprobs in answers if logprobs)
    repeated = [count_repeats(text) for text, _ in answers]
    return {
        "setting": json.dumps(setting),
        "answers": len(found),
        "perplexity": percentile(found, 50),
        "p90": percentile(found, 90),
        f"above {NOISE:g}": f"{100 * sum(one > NOISE for one in found) / len(found):.0f} %",
        "repeated": f"{100 * sum(repeated) / len(repeated):.0f} %",
    }


def answer(port: int, setting: dict[str, float], prompt: str, seed: int, tokens: int) -> tuple[str, list[float]]:
    """Return an answer's text, and the log-probability of each token under the model's own distribution."""
    body = {"messages": [{"role": "user", "content": prompt}], "seed": seed, "max_tokens": tokens, "logprobs": True}
    data = json.dumps(body | {"logprobs_mode": "raw"} | setting).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://{HOST}:{port}/v1/chat/completions", data, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        [choice] = json.load(response)["choices"]
    return choice["message"]["content"] or "", [one["logprob"] for one in choice["logprobs"]["content"]]


def perplexity(logprobs: list[float]) -> float:
    """Return exp of the mean surprise."""
    return math.exp(-sum(logprobs) / len(logprobs))


def count_repeats(text: str) -> float:
    """Return the share of the text's 4-grams of words that stand in it before."""
    words = text.split()
    grams = [tuple(words[at : at + GRAM]) for at in range(len(words) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


if __name__ == "__main__":
    sys.exit(main())
