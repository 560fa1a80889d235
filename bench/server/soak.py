"""Watch a server at low load for a long time: the memory of its processes, and the answers of five users.

Each user asks for a new grammar, a first token, the rest of a conversation and a long prompt about once per second
(tests/faults/hostile/users.py). Memory must not grow once the caches are full. The table has a line per minute, and the
last lines say how much each process grew per hour in the second half of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lib.harness import ROOT, machine, percentile, table, write_json
from bench.server.abuse import free_port

sys.path.insert(0, str(ROOT / "tests"))
from faults.hostile.storm import Server, serving
from faults.hostile.users import ADDRESSES, User


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--model", help="a model instead of scripted logits")
    parser.add_argument("--server-args", default="", help="further flags for tailrace serve, in one string")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    args = arguments(argv)
    flags = ("--cache-isolation", "user", *args.server_args.split())
    with serving(free_port(), *flags, model=args.model) as server:
        users = [User(server.port, address) for address in ADDRESSES]
        rows = asyncio.run(watch(server, users, args.minutes))
    differences = [found for user in users for found in user.differences]
    growth = {name: grow_per_hour([row[name] for row in rows]) for name in rows[0] if name.endswith("MiB")}
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores; {args.model or 'scripted'}; five users at low load")
    print(table(rows))
    print(f"\nanswers: {sum(row['answers'] for row in rows)}; different from the first: {len(differences)}")
    print("growth per hour in the second half, MiB: " + ", ".join(f"{name} {mib:.1f}" for name, mib in growth.items()))
    if args.json:
        write_json(args.json, {"machine": about, "rows": rows, "growth": growth, "differences": differences})
    return int(bool(differences))


async def watch(server: Server, users: list[User], minutes: float) -> list[dict[str, Any]]:
    """Let the users live for some minutes. Return a row per minute."""
    until, rows = time.monotonic() + 60 * minutes, list[dict[str, Any]]()
    living = [asyncio.create_task(user.live(lambda: time.monotonic() >= until)) for user in users]
    while time.monotonic() < until:
        begun = time.monotonic()
        await asyncio.sleep(min(60.0, until - begun))
        seconds = [s for user in users for taken in user.took.values() for at, s in taken if at >= begun]
        memory = await asyncio.to_thread(server.memory_mib)
        rows.append(
            {
                "minute": len(rows) + 1,
                "answers": len(seconds),
                "p50 ms": percentile(seconds, 50) * 1e3 if seconds else None,
                "p99 ms": percentile(seconds, 99) * 1e3 if seconds else None,
                **{f"{name} MiB": round(mib, 1) for name, mib in memory.items()},
            }
        )
    await asyncio.gather(*living)
    return rows


def grow_per_hour(mib: list[float]) -> float:
    """Return the slope of a line through the second half of the values, which are a minute apart."""
    half = mib[len(mib) // 2 :]
    if len(half) < 2:
        return 0.0
    middle, mean = (len(half) - 1) / 2, sum(half) / len(half)
    slope = sum((i - middle) * (value - mean) for i, value in enumerate(half))
    return 60 * slope / sum((i - middle) ** 2 for i in range(len(half)))


if __name__ == "__main__":
    sys.exit(main())
