"""An engine over a scripted runner, and what its messages amount to."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tailrace.config import CacheConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting.base import Draft, Drafter
from tailrace.engine.engine import Engine
from tailrace.engine.token_bytes import TokenBytes, TokenText
from tailrace.params import SamplingParams
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import Aborted, Failed, Finished, ModelInfo, Owner, Submit, Tokens

VOCAB = 97
EOS = 96
# A garbage collection of 100 ms within a sample would otherwise postpone the samples of the request's other sequences.
NO_HOST_LIMIT_MS = 1e6


def token_bytes_of(table: Sequence[bytes], special: frozenset[int] = frozenset()) -> TokenBytes:
    """Of a vocabulary whose tokens' bytes are the text."""
    spelt = TokenBytes(table, special)
    return replace(spelt, reader=lambda hidden, prompt: TokenText(spelt, hidden).push)


def script(ids: list[int]) -> int:
    """Depends on the whole sequence, so any wrong position shows; never EOS."""
    return hash(tuple(ids)) % (VOCAB - 2)


@dataclass
class Story:
    """What became of one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    survivors: list[bytes] = field(default_factory=list)
    cached: int = 0
    end: Finished | Failed | None = None


class Harness:
    """Runs an engine to the end and checks on the way that its books balance."""

    overlap = "auto"  # of engines that are not told

    def __init__(
        self,
        runner=None,
        *,
        num_blocks=64,
        block_size=16,
        prefix_reuse=True,
        drafter=None,
        max_drafts=5,
        rule="auto",
        adaptive=False,
        grammars=None,
        token_bytes=TokenBytes(),  # noqa: B008, it is frozen
        eos=EOS,
        state_snapshots=0,
        **limits,
    ):
        self.runner = runner or ScriptedRunner(VOCAB, script, 512, block_size=block_size)
        self.engine = Engine(
            self.runner,
            ModelInfo("scripted", self.runner.vocab_size, 512, [eos]),
            CacheConfig(block_size, num_blocks, state_snapshots, prefix_reuse=prefix_reuse),
            SchedulerConfig(
                **(
                    {
                        "max_num_seqs": 8,
                        "max_num_batched_tokens": 64,
                        "prefill_slowdown": 0.0,
                        "overlap": self.overlap,
                        "host_ms": NO_HOST_LIMIT_MS,
                    }
                    | limits
                )
            ),
            token_bytes,
            grammars,
            SpeculationConfig(max_drafts=max_drafts, rule=rule, adaptive=adaptive),
            drafter,
        )
        self.stories: dict[tuple[str, int, int], Story] = defaultdict(Story)
        self.aborted: list[Aborted] = []
        self.closed: set[tuple[str, int]] = set()

    def submit(
        self, id: str, prompt: list[int], epoch: int = 0, priority: int = 0, user: str | Owner = "", **params
    ) -> None:
        asked, owner = (
            SamplingParams(**({"temperature": 0.0} | params)),
            user if isinstance(user, Owner) else Owner(user=user),
        )
        self.engine.submit(Submit(id, epoch, prompt, asked, priority, owner=owner))

    def step(self) -> None:
        for message in self.engine.step().get(b"", []):
            self.note(message)
        engine = self.engine
        living = [member for r in engine.requests.values() for s in r.sequences for member in s.pair]
        engine.cache.check(living)
        assert sorted([*engine.lifecycle.free_slots, *(s.slot for s in living if s.slot >= 0)]) == list(
            range(engine.limits.scheduler.max_num_seqs)
        )

    def note(self, message) -> None:
        if isinstance(message, Aborted):  # one per Abort, also for a second one
            self.aborted.append(message)
            if message.index is None:
                self.closed.add((message.id, message.epoch))
            return
        assert (message.id, message.epoch) not in self.closed, "something came after the acknowledgement"
        story = self.stories[message.id, message.epoch, message.index]
        assert story.end is None, "something came after the terminal event"
        if isinstance(message, Tokens):
            story.tokens += message.token_ids
            story.cached += message.cached_tokens
            story.logprobs += message.logprobs or []
            story.survivors += message.survivors or []
        else:
            story.end = message

    def run(self, limit: int = 100_000) -> dict[tuple[str, int, int], Story]:
        while self.engine.has_work:
            self.step()
            limit -= 1
            assert limit, "the engine does not come to an end"
        assert all(story.end is not None for story in self.stories.values())
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        assert not self.engine.requests
        return dict(self.stories)


class Fickle(Drafter):
    """Guesses what plain decoding has said, wrong now and then, and of any length."""

    def __init__(self, stories: list[list[int]], accuracy: float):
        self.stories, self.accuracy, self.rng = stories, accuracy, random.Random(3)
        self.offered = 0

    def draft(self, asks):
        return [Draft(self.guess(ask)) for ask in asks]

    def guess(self, ask) -> list[int]:
        count = self.rng.randint(0, ask.count)
        text = next((s for s in self.stories if s[: len(ask.tokens)] == list(ask.tokens)), None)
        known = [] if text is None else text[len(ask.tokens) : len(ask.tokens) + count]
        guess = [t if self.rng.random() < self.accuracy else self.rng.randrange(VOCAB) for t in known]
        guess += [self.rng.randrange(VOCAB) for _ in range(count - len(guess))]
        self.offered += len(guess)
        return guess

    def observe(self, seen):
        raise AssertionError("it captures nothing")

    def remove(self, slot):
        pass


def alone(prompt: list[int], num_tokens: int) -> list[int]:
    """What the script says, without any engine."""
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(script(ids))
    return ids[len(prompt) :]
