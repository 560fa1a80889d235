"""Measure grammars: how many real schemas are accepted, what they cost with the default model's tokenizer, and how many
verdicts of the JSON-Schema-Test-Suite hold.

One process, one thread: the schemas of tests/grammar/schemas.jsonl, and a random walk through each. A text counts as
correct if jsonschema accepts it. Every instance of the suite (tests/grammar/suite.md) is tried: an invalid one that can
be written is wrong, a valid one that can't is missing, except for those left out as docs/api.md says.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import torch
from jsonschema.validators import validator_for

from bench.lib.harness import ROOT, machine, percentile, table, write_json
from tailrace.config import ModelConfig
from tailrace.errors import ParameterError
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.completion import shortest_completion
from tailrace.grammar.llguidance import GrammarCompiler
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.models import resolve
from tailrace.request.options import Grammar
from tailrace.text.tokenizer import Tokenizer

sys.path.insert(0, str(ROOT / "tests"))  # the suite's cases and their verdicts

from grammar.suite import ANNOTATION, CASES, TOKEN_BYTES, UNWRITTEN, judged
from grammar.vocabularies import small

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


def one(library: GrammarCompiler, schema: dict[str, Any], seed: int, steps: int) -> tuple[dict[str, list[float]], str]:
    """Times of one schema, and "refused", "correct", "unclosed" or "wrong"."""
    times: dict[str, list[float]] = {name: [] for name in TIMES}
    grammar = Grammar(kind="json_schema", source=json.dumps(schema))
    try:
        text = timed(times["compile_ms"], 1e3, lambda: library.compile(grammar))
    except (UnsupportedError, ParameterError):
        return times, "refused"
    matcher = timed(times["load_ms"], 1e3, lambda: library.load(text)).matcher()
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
        rest = timed(times["closing_ms"], 1e3, lambda: shortest_completion(matcher, 1000))
        if rest is None:
            return times, "unclosed"
        path += rest
    try:
        value = json.loads(b"".join(words.token_bytes[i] for i in path))
        validator_for(schema, jsonschema.Draft202012Validator)(schema).validate(value)
    except (ValueError, jsonschema.ValidationError):
        return times, "wrong"
    return times, "correct"


def measure(records: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    library = GrammarCompiler(vocabulary())
    one(library, {"type": "object"}, 0, steps)  # made once, before the clock runs
    outcomes = [one(library, record["schema"], i, steps) for i, record in enumerate(records)]
    verdicts = Counter(found for _, found in outcomes)
    rows: list[dict[str, Any]] = [
        {"figure": f"{verdict} of {len(records)}", "value": verdicts[verdict]}
        for verdict in ("correct", "unclosed", "wrong", "refused")
    ]
    for kind in TIMES:
        for percent in (50, 95, 99, 100):
            times = [time for figures, found in outcomes if found != "refused" for time in figures[kind]]
            label = f"{kind} {'max' if percent == 100 else f'p{percent}'}"
            rows.append({"figure": label, "value": percentile(times, percent)})
    return rows


def suite() -> list[dict[str, Any]]:
    """By draft: schemas accepted and refused, and instances on which schema and grammar differ."""
    library, rows = GrammarCompiler(small()), {}
    for case in CASES:
        row = rows.setdefault(case["draft"], Counter())
        if case["file"] in ANNOTATION or (case["draft"], case["file"]) in TOKEN_BYTES:
            row["annotation"] += 1
            continue
        verdict = judged(library, case)
        row["refused" if verdict.reason else "taken"] += 1
        row["instances"] += 0 if verdict.reason else len(case["tests"])
        row["wrong"] += len(verdict.wrong)
        for value in verdict.missing:
            row["left out" if isinstance(value, str) and (case["file"], value) in UNWRITTEN else "missing"] += 1
    names = ("taken", "refused", "annotation", "instances", "wrong", "missing", "left out")
    rows["all"] = sum(rows.values(), Counter())
    return [{"draft": draft, **{name: row[name] for name in names}} for draft, row in rows.items()]


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.grammar", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every n-th schema")
    parser.add_argument("--steps", type=int, default=25, help="tokens drawn of each")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args(argv)
    lines = (ROOT / "tests" / "grammar" / "schemas.jsonl").read_text().splitlines()
    rows = measure([json.loads(line) for line in lines][:: arguments.every], arguments.steps)
    print(table(rows))
    judged_rows = suite()
    print(table(judged_rows))
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), "rows": rows, "suite": judged_rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
