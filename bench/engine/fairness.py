"""Show what one user's load costs another user: first tokens and gaps of B's short requests, alone and beside A's.

One engine in this process, without HTTP. B sends short requests one after the other. A's loads: two hundred queued
requests, long prompts, and long generations in all slots. Each load runs twice: with two users, and with both under one
name, which is the order of arrival that the engine had before users had shares. Ratios are to B alone.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

from bench.lib.harness import cores, machine, percentile, table, write_json
from tailrace.config import EngineConfig, ModelConfig, SchedulerConfig
from tailrace.engine.engine import Engine
from tailrace.engine.process import build_engine
from tailrace.models import resolve
from tailrace.params import SamplingParams
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import Abort, Finished, Owner, Submit, Tokens

SHORT = (50, 16)  # tokens of B's prompt and output; the first token of each prompt differs, so no prefix is cached
LOADS = {  # requests of A, tokens of a prompt, tokens of an output
    "200 queued": (200, 100, 40),
    "long prompts": (20, 1500, 8),
    "long generations": (40, 50, 600),
}
PAUSE_S = 0.2  # Between two requests of B.


@dataclass
class Client:
    """B: sends its requests one after the other. Times are in seconds."""

    user: str
    first_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    unserved: int = 0
    arrivals: list[float] = field(default_factory=list)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results here too")
    parser.add_argument("--model", help="as for tailrace serve")
    parser.add_argument("--device", default="auto", help="as for tailrace serve")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=[*LOADS], help="of A")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    args = arguments(argv)
    model = resolve(ModelConfig(model=args.model))
    config = ModelConfig(model=str(model.folder), device=args.device, threads=args.threads)
    scheduler = SchedulerConfig(max_num_seqs=args.slots)
    engine = build_engine(EngineConfig(model=config, scheduler=scheduler))
    text = Tokenizer.load(model.folder).encode("A tailrace carries the water away. " * 600)
    gc.collect()
    gc.freeze()  # as in the engine's process
    names = count()
    run_load(engine, text, (0, 1, 1), "b", args.seconds / 3, names)  # warms up
    runs = {("alone", "-"): run_load(engine, text, (0, 1, 1), "b", args.seconds, names)}
    for name in args.loads:
        for rule, user in (("before", "a"), ("shares", "b")):
            runs[name, rule] = run_load(engine, text, LOADS[name], user, args.seconds, names)
    if engine.grammars is not None:
        engine.grammars.close()
    alone = runs["alone", "-"][0]
    rows = [describe_run(name, rule, client, served, alone) for (name, rule), (client, served) in runs.items()]
    print(f"{model.name}, {args.slots} slots, {args.threads} threads, {args.seconds:g} s each; times in ms")
    print(table(rows))
    if args.json:
        write_json(args.json, {"machine": machine(), "rows": rows})
    return 0


def run_load(
    engine: Engine, text: list[int], load: tuple[int, int, int], user: str, seconds: float, names: Iterator[int]
) -> tuple[Client, float]:
    """Run A's load and B's requests. Return B's times, and all tokens per second."""
    requests, prompt, output = load
    client, current = Client(user), ""
    begun, before = time.perf_counter(), engine.counters.generated_tokens
    next_s, end = begun + PAUSE_S, begun + seconds
    while (now := time.perf_counter()) < end:
        while len(engine.requests) - bool(current) < requests:  # A's load stays as it is
            number = next(names)
            submit(engine, f"a{number}", [number % 997, *text[: prompt - 1]], output, "a")
        if not current and now >= next_s:
            current, client.arrivals = f"b{next(names)}", [now]
            submit(engine, current, [int(current[1:]) % 997, *text[: SHORT[0] - 1]], SHORT[1], user)
        if note_messages(engine, client, current):
            current, next_s = "", time.perf_counter() + PAUSE_S
    if current and len(client.arrivals) == 1:
        client.first_s.append(time.perf_counter() - client.arrivals[0])  # at least
        client.unserved += 1
    served = (engine.counters.generated_tokens - before) / (time.perf_counter() - begun)
    for _, id, epoch in list(engine.requests):
        engine.abort(Abort(id, epoch))
    while engine.has_work:
        engine.step()
    return client, served


def submit(engine: Engine, id: str, prompt: list[int], output: int, user: str) -> None:
    params = SamplingParams(temperature=0.8, max_tokens=output, ignore_eos=True)
    engine.submit(Submit(id, 0, prompt, params, owner=Owner(user=user)))


def note_messages(engine: Engine, client: Client, current: str) -> bool:
    """Run a step. Return whether B's request has ended."""
    if not engine.has_work:
        time.sleep(0.001)
        return False
    messages = [message for message in engine.step().get(b"", []) if getattr(message, "id", None) == current]
    now = time.perf_counter()
    for message in messages:
        if isinstance(message, Tokens):
            client.arrivals.append(now)
    if not any(isinstance(message, Finished) for message in messages):
        return False
    sent, first, *_ = client.arrivals
    client.first_s.append(first - sent)
    client.gaps_s += [later - earlier for earlier, later in pairwise(client.arrivals[1:])]
    return True


def describe_run(name: str, rule: str, client: Client, served: float, alone: Client) -> dict[str, object]:
    """Return a row of the table."""

    def relate(values: list[float], percent: float, base: list[float]) -> tuple[float, float]:
        found = percentile(values, percent)
        return round(found * 1e3, 1), round(found / percentile(base, percent), 1)

    first, last = relate(client.first_s, 50, alone.first_s), relate(client.first_s, 99, alone.first_s)
    gap, longest = relate(client.gaps_s, 50, alone.gaps_s), relate(client.gaps_s, 99, alone.gaps_s)
    return {
        "load of A": name,
        "rule": rule,
        "B's requests": len(client.first_s),
        "unserved": client.unserved,
        "first token p50": first[0],
        "× alone": first[1],
        "p99": last[0],
        "×  alone": last[1],
        "gap p50": gap[0],
        "gap p99": longest[0],
        "×   alone": longest[1],
        "tokens/s": round(served),
    }


if __name__ == "__main__":
    sys.exit(main())
