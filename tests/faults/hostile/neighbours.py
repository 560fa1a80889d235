"""Sixteen innocent streams of five users, and the users' other questions (users.py), in a process of their own: what
they were told, and when.

python -m faults.hostile.neighbours PORT    a line says that the first round is over; it ends, and reports, when stdin
is closed
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from faults.hostile.client import HOST, head
from faults.hostile.users import ADDRESSES, PROBES, User

HEALTH_EVERY_S = 0.05
APART_S = 0.03
COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "size": {"type": "integer"}},
    "required": ["name", "size"],
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}

# What each asks beside its own prompt and seed: a mix of everything whose state could be mixed up with somebody else's.
ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.5, "allowed_token_ids": list(range(300, 400)), "logprobs": 3},
    {"guided_json": SCHEMA},
    {"guided_regex": "[a-z]{3,9}( [a-z]{3,9}){20}", "temperature": 1.2},
    {"logprobs": 5, "top_k": 40},
    {"stop": ["the", "zq"], "top_k": 2000, "include_stop_str_in_output": True},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"dry_multiplier": 0.8, "no_repeat_ngram_size": 4, "temperature": 1.1},
    {"top_a": 0.01, "eta_cutoff": 0.0001, "temperature": 1.3},
    {"n": 2, "min_p": 0.02, "logprobs": 0},
    {"guidance_scale": 1.5, "negative_prompt": "Nothing at all"},
    {"messages": [{"role": "user", "content": "Hello neighbour"}], "logprobs": True, "top_logprobs": 2},
    {
        "messages": [{"role": "user", "content": "Look it up"}],
        "tools": [TOOL],
        "tool_choice": "required",
        "max_tokens": 80,
    },
    {"banned_strings": ["e", "qu"], "temperature": 1.0},
    {"temperature": 0, "stop_regex": "[0-9]{7}x"},
    {"xtc_probability": 0.5, "typical_p": 0.9, "watermark": {"kind": "kgw", "key": 7}, "logit_bias": {"500": 3}},
)

HOLDING = {"stop", "stop_regex", "banned_strings", "tools"}  # of such text some waits by right: its gaps say nothing


def body_of(place: int) -> tuple[str, dict[str, Any]]:
    """(path, body) of one neighbour."""
    body = {"seed": place, "max_tokens": 60 + place, "stream": True, "ignore_eos": True} | ASKED[place]
    if "messages" in body:
        return CHAT, body
    return COMPLETE, body | {"prompt": f"The story of neighbour {place}:"}


class Told(NamedTuple):
    """One answer: what was said, in a form that two can be compared by, and when each event came."""

    said: dict[str, Any]
    arrivals: list[float]


async def listen(port: int, place: int) -> Told:
    """One stream from its beginning to its end."""
    path, body = body_of(place)
    payload = json.dumps(body).encode()
    user = ADDRESSES[place % len(ADDRESSES)]
    reader, writer = await asyncio.open_connection(HOST, port, local_addr=(user, 0))
    writer.write(head(path, len(payload)) + payload)
    status = await reader.readline()
    arrivals: list[float] = []
    events: list[str] = []
    async for line in reader:
        if line.startswith(b"data: "):
            arrivals.append(time.monotonic())
            events.append(line[6:].decode().strip())
    writer.close()
    return Told(joined(status.decode().strip(), events), arrivals)


def joined(status: str, events: list[str]) -> dict[str, Any]:
    """A stream as one answer; where the pieces were cut is nobody's promise."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        if event == "[DONE]":
            continue
        for choice in json.loads(event).get("choices", [{"index": -1, "text": event}]):
            whole = choices.setdefault(choice["index"], {"text": "", "logprobs": [], "end": None})
            delta = choice.get("delta", {})
            whole["text"] += (choice.get("text") or "") + (delta.get("content") or "")
            for call in delta.get("tool_calls", []):
                whole["text"] += call["function"].get("name", "") + call["function"]["arguments"]
            if choice.get("logprobs"):
                found = choice["logprobs"]
                whole["logprobs"] += found.get("token_logprobs") or [
                    entry["logprob"] for entry in found.get("content", [])
                ]
            whole["end"] = choice.get("finish_reason") or whole["end"]
    return {"status": status, "done": events[-1:], "choices": {str(index): choices[index] for index in sorted(choices)}}


class Street:
    """All neighbours, each again and again, and somebody who asks /health."""

    def __init__(self, port: int) -> None:
        self.port, self.over = port, threading.Event()
        self.gaps: list[tuple[float, float]] = []  # when, how long
        self.health: list[tuple[float, float]] = []
        self.differences: list[dict[str, Any]] = []
        self.rounds = [0] * len(ASKED)
        self.users = [User(port, address) for address in ADDRESSES]

    async def live(self) -> None:
        """Until told that it is over; what each was told first is what all its others are compared with."""
        places = range(len(ASKED))
        first = await asyncio.gather(*map(self.told, places))
        print("ready", flush=True)
        probing = asyncio.create_task(self.probe())
        asking = [user.live(self.over.is_set) for user in self.users]
        await asyncio.gather(*map(self.stay, places, first), *asking)
        probing.cancel()

    async def stay(self, place: int, peace: dict[str, Any]) -> None:
        """One neighbour. They begin one after the other: what sixteen beginnings at once cost is no hostile request's
        doing."""
        await asyncio.sleep(place * APART_S)
        while not self.over.is_set():
            if (now := await self.told(place)) != peace:
                self.differences.append({"neighbour": place, "at": time.monotonic(), "in peace": peace, "now": now})
            self.rounds[place] += 1

    async def told(self, place: int) -> dict[str, Any]:
        """One answer."""
        one = await listen(self.port, place)
        if not HOLDING & ASKED[place].keys():
            self.gaps += [(b, b - a) for a, b in zip(one.arrivals, one.arrivals[1:], strict=False)]
        return one.said

    async def probe(self) -> None:
        """How long /health takes."""
        while True:
            start = time.monotonic()
            reader, writer = await asyncio.open_connection(HOST, self.port)
            writer.write(head("/health", None, method="GET"))
            whole = await reader.read()
            writer.close()
            now = time.monotonic()
            self.health.append((now, now - start if b" 200 " in whole[:20] else -1.0))
            await asyncio.sleep(HEALTH_EVERY_S)


class Neighbours:
    """The process, while the block lasts. `report` ends it."""

    def __init__(self, port: int) -> None:
        tests = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.hostile.neighbours", str(port)],
            cwd=tests,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the neighbours did not get through their first round")

    def report(self) -> dict[str, Any]:
        """gaps and health: (time.monotonic(), seconds); health −1: not 200. probes: the same by name, of all users.
        rounds, that each had, and differences from the first."""
        out, _ = self._process.communicate(timeout=300)
        return json.loads(out)

    def __enter__(self) -> Neighbours:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    """See the module."""
    gc.disable()  # a collection here would look like a gap there
    street = Street(int(sys.argv[1]))

    def wait() -> None:
        sys.stdin.read()
        street.over.set()

    threading.Thread(target=wait, daemon=True).start()
    asyncio.run(street.live())
    report = {
        "rounds": min(street.rounds),
        "gaps": street.gaps,
        "health": street.health,
        "probes": {probe.name: sorted(at for user in street.users for at in user.took[probe.name]) for probe in PROBES},
        "differences": street.differences + [found for user in street.users for found in user.differences],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
