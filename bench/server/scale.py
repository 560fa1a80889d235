"""Simulate a hundred replicas: how much of the prompts their caches hold with prefix-aware routing, how the load
spreads, and what a lost replica moves.

Each replica has the engine's own block cache (tailrace.engine.kv_cache), and the router is the one of
tailrace.integrations.ray: real hashes, real reuse, real eviction. Time, load and traffic are simulated: chats of
several turns arrive at random, each with one of a few system prompts, some of which are much more popular than others.
A turn takes the time of its uncached prompt and of its answer, whatever else its replica does.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.lib.harness import table, write_json
from tailrace.engine.block_hash import block_hash, prefix_hash, root_of
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.sequence import Request, Sequence
from tailrace.integrations.ray.rendezvous import order_replicas, rank_replicas
from tailrace.params import SamplingParams

BLOCK = 16
SLACK, FREE = 1.25, 8
MOST = 40  # requests of a replica at once: a full one is passed over
SYSTEM_TOKENS = (160, 1600)  # shortest and longest system prompt
TURN_TOKENS = (20, 300)  # of a question
ANSWER_TOKENS = (50, 400)
TURNS = 6  # mean of a chat
PAUSE_S = 20.0  # mean, between an answer and the next question
PREFILL_S, DECODE_S = 1 / 5000, 1 / 20  # per token, of one request
REQUEST = Request(b"", "", 0, SamplingParams(), (0, 0), 1 << 20)

Policy = Callable[[bytes | None, dict[str, int], random.Random], str]


@dataclass
class Chat:
    """A chat: its tokens so far, and their hashes, which the cache needs not compute again."""

    tokens: list[int]
    turns: int
    hashes: list[bytes] = field(default_factory=list)

    def grow(self, rng: random.Random, bounds: tuple[int, int]) -> int:
        """More tokens, which nobody else has; how many."""
        count = rng.randint(*bounds)
        first = rng.randrange(1 << 40)
        self.tokens += range(first, first + count)
        for start in range(len(self.hashes) * BLOCK, len(self.tokens) - BLOCK + 1, BLOCK):
            parent = self.hashes[-1] if self.hashes else root_of(0)
            self.hashes.append(block_hash(parent, self.tokens[start : start + BLOCK]))
        return count


@dataclass
class Replica:
    """A cache, and the requests that are being served."""

    cache: BlockCache
    load: int = 0
    served: int = 0


@dataclass
class Result:
    """What a run found. peaks: per second, the most loaded replica's requests over the mean."""

    prompt: int = 0
    cached: int = 0
    peaks: list[float] = field(default_factory=list)
    served: list[int] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)  # time to the first token, without waiting

    @property
    def hit_rate(self) -> float:
        return self.cached / max(self.prompt, 1)


def serve_turn(replica: Replica, chat: Chat) -> tuple[Sequence, int]:
    """The cache's part of a turn: match, attach, reserve, publish. The sequence, and its tokens that were cached."""
    sequence = Sequence(REQUEST, 0, 0, len(chat.tokens), list(chat.tokens), hashes=list(chat.hashes))
    found = replica.cache.match_prefix(sequence)
    replica.cache.attach(sequence, found)
    cached = sequence.num_computed
    replica.cache.reserve(sequence, len(sequence.tokens))
    sequence.num_computed = len(sequence.tokens)
    replica.cache.publish_blocks(sequence)
    return sequence, cached


def end_turn(replica: Replica, sequence: Sequence, chat: Chat) -> None:
    """The answer's blocks are published as the engine does it, all but the last token's; then all are let go."""
    sequence.tokens, sequence.hashes = list(chat.tokens), list(chat.hashes)
    replica.cache.reserve(sequence, len(sequence.tokens))
    sequence.num_computed = len(sequence.tokens) - 1
    replica.cache.publish_blocks(sequence)
    replica.cache.release(sequence)


class Cluster:
    """The replicas, their router, and the traffic. lose_s: when a replica is lost, with all its chats' blocks.

    Args:
        route_blocks: of the key.
    """

    def __init__(self, args: argparse.Namespace, policy: Policy, route_blocks: int, seed: int = 0) -> None:
        self.args, self.policy, self.blocks = args, policy, route_blocks
        self.rng, self.router = random.Random(seed), random.Random(seed + 1)
        self.replicas = {f"replica-{i}": Replica(BlockCache(args.cache_blocks, BLOCK)) for i in range(args.replicas)}
        self.systems = [self.system(i) for i in range(args.systems)]
        self.popularity = [1 / (i + 1) for i in range(args.systems)]  # Zipf
        self.result = Result()
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.count = 0

    def system(self, number: int) -> list[int]:
        rng = random.Random(number)
        first = rng.randrange(1 << 40)
        return list(range(first, first + rng.randint(*SYSTEM_TOKENS)))

    def at(self, when: float, what: Callable[[float], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what))

    def run(self, lose_s: float = math.inf) -> Result:
        """Until the time is over. The first third fills the caches and is not counted."""
        self.at(0.0, self.arrive)
        self.at(0.0, self.observe)
        if lose_s < math.inf:
            self.at(lose_s, lambda now: self.lose())
        while self.events and (event := heapq.heappop(self.events))[0] < self.args.seconds:
            event[2](event[0])
        self.result.served = [replica.served for replica in self.replicas.values()]
        return self.result

    def lose(self) -> None:
        """The most popular system prompt's own replica is lost: the worst one."""
        del self.replicas[
            rank_replicas(prefix_hash(self.systems[0], BLOCK, self.blocks) or b"", list(self.replicas))[0]
        ]

    def arrive(self, now: float) -> None:
        self.at(now + self.rng.expovariate(self.args.chats_per_s), self.arrive)
        [system] = self.rng.choices(self.systems, self.popularity)
        self.ask(Chat(list(system), 1 + int(self.rng.expovariate(1 / (TURNS - 1)))), now)

    def ask(self, chat: Chat, now: float) -> None:
        chat.grow(self.rng, TURN_TOKENS)
        loads = {name: replica.load for name, replica in self.replicas.items() if replica.load < MOST}
        name = self.policy(prefix_hash(chat.tokens, BLOCK, self.blocks), loads, self.router)
        replica = self.replicas[name]
        replica.load += 1
        replica.served += 1
        sequence, cached = serve_turn(replica, chat)
        first_s = PREFILL_S * (len(chat.tokens) - cached)
        if now > self.args.seconds / 3:
            self.result.prompt += len(chat.tokens)
            self.result.cached += cached
            self.result.first_s.append(first_s)
        end_s = now + first_s + DECODE_S * chat.grow(self.rng, ANSWER_TOKENS)
        self.at(end_s, lambda now: self.end(replica, sequence, chat, now))

    def end(self, replica: Replica, sequence: Sequence, chat: Chat, now: float) -> None:
        replica.load -= 1
        end_turn(replica, sequence, chat)
        chat.turns -= 1
        if chat.turns:
            self.at(now + self.rng.expovariate(1 / PAUSE_S), lambda now: self.ask(chat, now))

    def observe(self, now: float) -> None:
        self.at(now + 1.0, self.observe)
        loads = [replica.load for replica in self.replicas.values()]
        if now > self.args.seconds / 3 and sum(loads):
            self.result.peaks.append(max(loads) * len(loads) / sum(loads))


# ---- routers


def two_choices(key: bytes | None, loads: dict[str, int], rng: random.Random) -> str:
    """Ray's own: of two at random the one that has less to do."""
    return min(rng.sample(list(loads), 2), key=loads.__getitem__)


def rendezvous(slack: float) -> Policy:
    """tailrace's, with the load bounded to `slack` times the mean."""

    def choose(key: bytes | None, loads: dict[str, int], rng: random.Random) -> str:
        return two_choices(key, loads, rng) if key is None else order_replicas(key, loads, slack, FREE)[0]

    return choose


def moved(names: list[str], keys: int = 5_000) -> tuple[float, float]:
    """The share of keys that another replica has once one is lost: by rendezvous, and by key modulo count."""
    rng = random.Random(0)
    made = [rng.randbytes(16) for _ in range(keys)]
    fewer = names[:-1]
    by_rank = sum(rank_replicas(key, names)[0] != rank_replicas(key, fewer)[0] for key in made) / keys
    by_modulo = sum(int.from_bytes(k) % len(names) != int.from_bytes(k) % len(fewer) for k in made) / keys
    return by_rank, by_modulo


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=90.0, help="simulated (default: 90)")
    parser.add_argument("--chats-per-s", type=float, default=20.0, help="that begin (default: 20)")
    parser.add_argument("--systems", type=int, default=40, help="system prompts (default: 40)")
    parser.add_argument("--cache-blocks", type=int, default=8192, help="per replica, of 16 tokens (default: 8192)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    begun = time.perf_counter()
    cases: list[tuple[str, Policy, int]] = [("two choices", two_choices, 1)]
    for blocks in (4, 32, 128):
        cases.append((f"{blocks} blocks, slack {SLACK}", rendezvous(SLACK), blocks))
    cases.append(("32 blocks, no bound", rendezvous(math.inf), 32))
    figures: dict[str, dict[str, float]] = {}
    for name, policy, blocks in cases:
        figures[name] = summary(Cluster(args, policy, blocks).run())
    lost = Cluster(args, rendezvous(SLACK), 32).run(lose_s=args.seconds / 3)
    figures["32 blocks, slack 1.25, one lost"] = summary(lost)
    print(table([{"router": name, **row} for name, row in figures.items()]))
    by_rank, by_modulo = moved([f"replica-{i}" for i in range(args.replicas)])
    print(f"\na lost replica moves {by_rank:.1%} of the keys (key modulo count: {by_modulo:.1%})")
    print(f"{time.perf_counter() - begun:.0f} s")
    if args.json:
        write_json(args.json, {"figures": figures, "moved": by_rank, "moved_modulo": by_modulo})
    return 0


def summary(result: Result) -> dict[str, float]:
    peaks, first = sorted(result.peaks), sorted(result.first_s)
    mean = sum(result.served) / len(result.served)
    return {
        "turns": len(first),
        "cached %": round(100 * result.hit_rate, 1),
        "prefill ms, mean": round(1e3 * sum(first) / len(first)),
        "99th": round(1e3 * first[len(first) * 99 // 100]),
        "busiest / mean, median": round(peaks[len(peaks) // 2], 2),
        "max": round(peaks[-1], 2),
        "requests, most / mean": round(max(result.served) / mean, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
