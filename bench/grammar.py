"""Grammars: which of the two libraries takes how many real schemas, and what each costs, with the default model's tokenizer.

Both in this process, one thread, the same schemas (tests/grammar/schemas.jsonl) and the same random walks. A text counts as correct if
jsonschema accepts it. Ratios are xgrammar over llguidance, on the schemas that both take.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import torch
from bench.harness import ROOT, machine, percentile, table, write_json

from tailrace.config import ModelConfig
from tailrace.errors import ParameterError
from tailrace.grammar.backends import Backend, make
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.closing import closing
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.models import resolve
from tailrace.options import Grammar
from tailrace.text.tokenizer import Tokenizer

BACKENDS = ("llguidance", "xgrammar")
TIMES = ("compile_ms", "load_ms", "fill_us", "accept_us", "closing_ms")


def vocabulary() -> Vocabulary:
    folder = resolve(ModelConfig(), progress=False).folder
    tokenizer = Tokenizer.load(folder)
    config = json.loads((folder / "config.json").read_text())
    size = config["vocab_size"]
    spelled = [tokenizer.bytes_of(i) for i in range(size)]
    return Vocabulary.of(folder, spelled, frozenset(tokenizer.special_ids), [config["eos_token_id"]], size)


def timed(times: list[float], scale: float, work: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = work()
    times.append((time.perf_counter() - start) * scale)
    return result


def one(backend: Backend, schema: dict[str, Any], seed: int, steps: int) -> tuple[dict[str, list[float]], str]:
    """Times of one schema, and "refused", "correct", "unclosed" or "wrong"."""
    times: dict[str, list[float]] = {name: [] for name in TIMES}
    grammar = Grammar(kind="json_schema", source=json.dumps(schema))
    try:
        text = timed(times["compile_ms"], 1e3, lambda: backend.compile(grammar))
    except (UnsupportedError, ParameterError):
        return times, "refused"
    matcher = timed(times["load_ms"], 1e3, lambda: backend.load(text)).matcher()
    words, rng, path = matcher.vocabulary, numpy.random.default_rng(seed), []
    mask = torch.zeros(words.words, dtype=torch.int32)
    for _ in range(steps):
        timed(times["fill_us"], 1e6, lambda: matcher.fill(mask))
        bits = numpy.unpackbits(mask.numpy().view(numpy.uint8), bitorder="little")
        token = int(rng.choice(bits.nonzero()[0]))
        timed(times["accept_us"], 1e6, lambda token=token: matcher.accept(token))
        if token in words.eos:
            break
        path.append(token)
    else:
        rest = timed(times["closing_ms"], 1e3, lambda: closing(matcher, 1000))
        if rest is None:
            return times, "unclosed"
        path += rest
    try:
        value = json.loads(b"".join(words.token_bytes[i] for i in path))
        jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).validate(value)
    except (ValueError, jsonschema.ValidationError):
        return times, "wrong"
    return times, "correct"


def measure(records: list[dict[str, Any]], steps: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    words = vocabulary()
    outcomes: dict[str, list[tuple[dict[str, list[float]], str]]] = {}
    for name in BACKENDS:
        backend = make(name, words)
        one(backend, {"type": "object"}, 0, steps)  # what is made once
        outcomes[name] = [one(backend, record["schema"], i, steps) for i, record in enumerate(records)]
    both = [i for i in range(len(records)) if all(outcomes[name][i][1] != "refused" for name in BACKENDS)]
    rows: list[dict[str, Any]] = []
    for verdict in ("correct", "unclosed", "wrong", "refused"):
        counts = {name: sum(found == verdict for _, found in outcomes[name]) for name in BACKENDS}
        rows.append(
            {
                "figure": f"{verdict} of {len(records)}",
                **counts,
                "ratio": counts["xgrammar"] / max(1, counts["llguidance"]),
            }
        )
    for kind in TIMES:
        for percent in (50, 95, 99, 100):
            figures = {
                name: percentile([t for i in both for t in outcomes[name][i][0][kind]], percent) for name in BACKENDS
            }
            label = f"{kind} {'max' if percent == 100 else f'p{percent}'}"
            rows.append({"figure": label, **figures, "ratio": figures["xgrammar"] / figures["llguidance"]})
    return rows, {"schemas": len(records), "both": len(both)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every n-th schema")
    parser.add_argument("--steps", type=int, default=25, help="tokens drawn of each")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    lines = (ROOT / "tests" / "grammar" / "schemas.jsonl").read_text().splitlines()
    rows, counts = measure([json.loads(line) for line in lines][:: arguments.every], arguments.steps)
    print(f"times on the {counts['both']} schemas that both take")
    print(table(rows))
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), **counts, "rows": rows})


if __name__ == "__main__":
    main()
