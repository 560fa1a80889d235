"""Measure what one user's load costs other users: the time of a new grammar, a first token, a stored conversation and a
long prompt, alone and beside each load.

Five users ask for these things all the time, and sixteen of their streams run beside (tests/faults/hostile). Users are
addresses of this machine. "Alone" is a phase of the same run in which the hostile user does nothing. Then each load is
kept up for some seconds, with the load's number of requests at once. A load is data. An answer that differs from the
one in peace is printed too. A probe counts where it begins, so one that waits until a load is over counts in full.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.lib.harness import ROOT, machine, percentile, table, write_json
from bench.server.abuse import free_port, in_window

sys.path.insert(0, str(ROOT / "tests"))
from faults.hostile import KINDS
from faults.hostile.client import chat, complete, respond, send
from faults.hostile.neighbours import Neighbours
from faults.hostile.storm import serving

if TYPE_CHECKING:
    from faults.hostile.client import Attempt

LIMIT_S = 300.0
GOAL = 3.0  # the p99 beside a load, as a multiple of the p99 alone
RULES = 20_000  # of a grammar that takes seconds
WORDS = ["abandon", "ability", "able", "about", "above", "absent", "absorb", "abstract", "absurd", "abuse"]


class Load(NamedTuple):
    """What the hostile user sends. at_once: requests that are open at a time. make: (chance, number) → a request."""

    name: str
    at_once: int
    make: Callable[[Random, int], Attempt]


def make_slow_grammar(chance: Random, number: int) -> Attempt:
    """Return a request with a grammar that takes seconds to compile."""
    rules = [f'r{place} ::= "{number} {place}" | r{place * 7919 % RULES}' for place in range(RULES)]
    return complete(guided_grammar="\n".join(["root ::= r0", *rules]), max_tokens=1)


def make_small_grammar(chance: Random, number: int) -> Attempt:
    """Return a request with a schema of its own."""
    names = {f"key_{number}_{place}": {"type": "string", "maxLength": 9} for place in range(8)}
    return complete(guided_json={"type": "object", "properties": names, "required": list(names)}, max_tokens=1)


def make_long_prompt(chance: Random, number: int) -> Attempt:
    """Return a request with a prompt of thousands of tokens."""
    return complete(f"{number} " + " ".join(chance.choices(WORDS, k=5000)), max_tokens=1)


def make_stream(chance: Random, number: int) -> Attempt:
    """Return a request with a long output."""
    return complete(f"{number} once", max_tokens=1500, ignore_eos=True)


def make_short(chance: Random, number: int) -> Attempt:
    """Return a short chat."""
    return chat(f"Hello {number}")


def make_stored(chance: Random, number: int) -> Attempt:
    """Return a response that is stored."""
    return respond(f"Keep {number} " + "x" * 3000, store=True, max_output_tokens=1)


def make_any_kind(chance: Random, number: int) -> Attempt:
    """Return a hostile request of any kind."""
    return chance.choice(KINDS).make(chance, number)


LOADS = (
    Load("slow grammars", 12, make_slow_grammar),
    Load("small grammars", 64, make_small_grammar),
    Load("long prompts", 32, make_long_prompt),
    Load("long streams", 300, make_stream),
    Load("short chats", 200, make_short),
    Load("stored responses", 16, make_stored),
    Load("every hostile kind", 8, make_any_kind),
)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.abuse_users", description=__doc__)
    parser.add_argument("--only", default="", help="loads whose name holds this")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load, and of the phase alone")
    parser.add_argument("--model", help="a model instead of scripted logits")
    parser.add_argument("--server-args", default="", help="further flags for tailrace serve, in one string")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    flags = ("--cache-isolation", "user", *args.server_args.split())
    windows: dict[str, tuple[float, float]] = {}
    with serving(free_port(), *flags, model=args.model) as server, Neighbours(server.port) as neighbours:
        begun = time.monotonic()
        time.sleep(args.seconds)
        windows["alone"] = begun, time.monotonic()
        for load in LOADS:
            if args.only in load.name:
                begun = time.monotonic()
                answers = asyncio.run(keep_up(server.port, load, args.seconds))
                windows[load.name] = begun, time.monotonic()
                print(f"measured: {load.name}, {answers} answers", file=sys.stderr, flush=True)
                time.sleep(2.0)
        told = neighbours.report()
    rows = [row(name, load, windows, told) for load in windows for name in ("gap", *told["probes"])]
    record = {"machine": machine(), "model": args.model or "scripted", "rows": rows, "differences": told["differences"]}
    report(record)
    if args.json:
        write_json(args.json, record)
    return 0


async def keep_up(port: int, load: Load, seconds: float) -> int:
    """Send requests of a load for some seconds. Return the number of those that ended in that time; the others' clients
    leave."""
    until, ended = time.monotonic() + seconds, 0

    async def send_again(place: int) -> None:
        nonlocal ended
        number = place
        while time.monotonic() < until:
            attempt = await asyncio.to_thread(load.make, Random(f"{load.name} {number}"), number)
            with contextlib.suppress(OSError):
                await send(port, attempt, LIMIT_S)
            ended, number = ended + 1, number + load.at_once

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*map(send_again, range(load.at_once)))
    return ended


def row(name: str, load: str, windows: dict[str, tuple[float, float]], told: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the table, in milliseconds."""
    noted = told["gaps"] if name == "gap" else told["probes"][name]
    alone, beside = in_window(noted, *windows["alone"]), in_window(noted, *windows[load])
    p99 = percentile(beside, 99) if beside else float("inf")
    ratio = p99 / percentile(alone, 99)
    return {
        "load": load,
        "of others": name,
        "answers": len(beside),
        "p50 ms": percentile(beside, 50) * 1e3 if beside else None,
        "p99 ms": p99 * 1e3,
        "× alone": ratio,
        "goal": GOAL,
        "": "" if ratio <= GOAL else "✗",
    }


def report(record: dict[str, Any]) -> None:
    """Print the table."""
    about = record["machine"]
    print(f"{about['cpu']}, {about['cores']} cores; {record['model']}; five users, and the load of a sixth")
    print(f"answers that differ from those in peace: {len(record['differences'])}\n")
    print(table(record["rows"]))
    for found in record["differences"][:5]:
        print("DIFFERENT", str(found)[:500])


if __name__ == "__main__":
    sys.exit(main())
