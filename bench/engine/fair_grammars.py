"""Measure how long a user's small schemas take to compile beside another user's grammars, and compare with the time
alone.

User B sends small schemas, one after the other. Meanwhile user A keeps 12 slow, 100 medium or 500 small grammars in the
line, each another text. A grammar of A that finds no place is sent again after a while. All runs in one process, with
the default model's tokenizer and no model. Ratios are of the same run. The last row shows how much the machine varies.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from itertools import count
from pathlib import Path
from typing import Any

from bench.lib.harness import machine, percentile, table, write_json
from tailrace.config import GrammarConfig, ModelConfig
from tailrace.grammar.base import Compiled
from tailrace.grammar.service import Grammars
from tailrace.models import resolve
from tailrace.request.options import Grammar
from tailrace.text.tokenizer import Tokenizer

NUMBERS = count()
PAUSE_S = 0.02  # between two of B's schemas
AGAIN_S = 0.25  # after which A fills the line again
PROPERTIES = 200  # of a medium schema
PATTERNS = 100  # of a slow schema, all of which must match


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.fair_grammars", description=__doc__)
    parser.add_argument("--requests", type=int, default=100, help="B's schemas in each phase")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args(argv)
    loads: dict[str, tuple[int, Callable[[], Grammar]]] = {
        "alone": (0, small_schema),
        "12 slow": (12, slow_schema),
        "100 medium": (100, medium_schema),
        "500 small": (500, small_schema),
        "alone again": (0, small_schema),
    }
    rows: list[dict[str, Any]] = []
    for name, (number, make) in loads.items():
        grammars = start_grammars()
        for _ in range(5):
            grammars.compile(small_schema(), "b", b"b").result()
        times = measure_beside(grammars, number, make, arguments.requests)
        grammars.close()
        row = {"A's load": name, "p50 ms": percentile(times, 50) * 1e3, "p99 ms": percentile(times, 99) * 1e3}
        alone = rows[0] if rows else row
        rows.append(row | {f"{p} ratio": row[f"{p} ms"] / alone[f"{p} ms"] for p in ("p50", "p99")})
        print(name, file=sys.stderr, flush=True)
    print(table(rows))
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), "rows": rows})
    return 0


def start_grammars() -> Grammars:
    """Return the grammar service of the default model's tokenizer."""
    folder = resolve(ModelConfig(), progress=False).folder
    tokenizer, config = Tokenizer.load(folder), json.loads((folder / "config.json").read_text())
    size = config["vocab_size"]
    spelled = [tokenizer.bytes_of(i) for i in range(size)]
    special = frozenset(tokenizer.special_ids)
    return Grammars(GrammarConfig(), folder, spelled, special, [config["eos_token_id"]], size)


def measure_beside(grammars: Grammars, number: int, make: Callable[[], Grammar], requests: int) -> list[float]:
    """Return the seconds of each of B's schemas, beside this number of A's grammars."""
    ended = threading.Event()
    load = threading.Thread(target=keep_waiting, args=(grammars, number, make, ended))
    load.start()
    time.sleep(1.0 if number else 0.0)
    times: list[float] = []
    for _ in range(requests):
        begun = time.perf_counter()
        grammars.compile(small_schema(), "b", b"b").result()
        times.append(time.perf_counter() - begun)
        time.sleep(PAUSE_S)
    ended.set()
    load.join()
    return times


def keep_waiting(grammars: Grammars, number: int, make: Callable[[], Grammar], ended: threading.Event) -> None:
    """Keep this number of A's grammars in the line until the end."""
    waiting: set[Future[Compiled]] = set()
    while not ended.wait(AGAIN_S) and number:
        waiting |= {grammars.compile(make(), "a", b"a") for _ in range(number - len(waiting))}
        waiting = wait(waiting, 0).not_done
    for future in waiting:
        grammars.forget(future)


def small_schema() -> Grammar:
    name = f"field_{next(NUMBERS)}"
    return write_schema({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]})


def medium_schema() -> Grammar:
    number = next(NUMBERS)
    names = [f"field_{number}_{i}" for i in range(PROPERTIES)]
    properties = {name: {"type": "array", "items": {"enum": [name, number]}, "maxItems": 9} for name in names}
    return write_schema({"type": "object", "properties": properties, "required": names})


def slow_schema() -> Grammar:
    number = next(NUMBERS)
    return write_schema({"allOf": [{"pattern": f"[ab]*a[ab]{{{i}}}{number}?$"} for i in range(PATTERNS)]})


def write_schema(schema: dict[str, Any]) -> Grammar:
    return Grammar(kind="json_schema", source=json.dumps(schema))


if __name__ == "__main__":
    sys.exit(main())
