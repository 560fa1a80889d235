"""Random crowds: requests of every kind that come one after another, some aborted on the way, in a world that may be
too small for them. What each is told does not depend on when its steps are made, so two engines that should be alike
can be compared."""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.combinations import ASKED, BLOCK, EOS, GRAMMAR, LENGTH, NEGATIVE, PROMPTS, TOKEN_BYTES, VOCAB, target
from engine.harness import Harness
from tailrace.grammar.service import Grammars
from tailrace.request.options import Grammar, MarkedSpan, RepetitionDetection, ThinkingBudget
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import Abort, PromptLogprobs

MORE: dict[str, dict] = {
    "banned": {"banned_strings": ("b;", "3", "a,", "dc")},
    "banned in a grammar": {"banned_strings": ("1", "ba"), "grammar": GRAMMAR},
    "thinking": {
        "thinking": ThinkingBudget(max_tokens=2, span=MarkedSpan("d", "c", opened=True), closing_token_ids=(11, 10, 2))
    },
    "mirostat": {"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.4},
    "adaptive": {"adaptive_target": 0.4},
    "forced": {"forced_token_ids": (3, 1, 4, 1, 5)},
    "loops": {"repetition_detection": RepetitionDetection(max_pattern_size=2, min_count=2)},
    "patterns": {"stop_regex": ("[ab]{3}", "0.2"), "min_tokens": 3},
    "prompt": {"prompt_logprobs": 1},
    "grammar": {"grammar": GRAMMAR},
    "closed in time": {"grammar": Grammar(kind="regex", source="[ab]{1,60}-[cd]{3}", close_in_time=True)},
    "grammar after": {"grammar": Grammar(kind="regex", source="[0-2]{1,9};", after=MarkedSpan("a", "b", opened=True))},
    "guided": {"guidance_scale": 1.6, "negative_prompt": NEGATIVE},
    "guided, ruled": {"guidance_scale": 1.6, "negative_prompt": NEGATIVE, "grammar": GRAMMAR},
}
KINDS = {**ASKED, **MORE}


@dataclass(frozen=True)
class Told:
    """What a client is told of one sequence."""

    tokens: list[int]
    logprobs: list
    end: tuple


class Listening(Harness):
    """Keeps logprobs of prompts as well."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.prompts: dict[str, list] = {}

    def note(self, message) -> None:
        if isinstance(message, PromptLogprobs):
            self.prompts.setdefault(message.id, []).extend(message.entries)
        else:
            super().note(message)


def crowd(
    seed: int, grammars: Grammars, users: tuple[str, ...] = ("",), kind: type[Listening] = Listening, **options
) -> tuple[dict[tuple[str, int, int], Told], Listening]:
    """What a random crowd is told, and its harness. users: in turns. kind, options: of the
    harness."""
    rng = random.Random(seed)
    small = {
        "num_blocks": rng.choice([14, 20, 160]),
        "max_num_batched_tokens": rng.choice([5, 9, 64]),
        "max_num_seqs": rng.choice([4, 8]),
        "prefix_reuse": rng.random() < 0.8,
    }
    harness = kind(
        ScriptedRunner(VOCAB, target, 512, block_size=BLOCK),
        grammars=grammars,
        token_bytes=TOKEN_BYTES,
        eos=EOS,
        block_size=BLOCK,
        **small | options,
    )
    for place in range(rng.randint(2, 9)):
        params = {"max_tokens": rng.randint(1, LENGTH), "seed": place, "n": rng.choice([1, 1, 1, 2])}
        params["temperature"] = rng.choice([0.0, 0.9])
        asked = KINDS[rng.choice(list(KINDS))]
        params["ignore_eos"] = rng.random() < 0.3
        if any(name in asked for name in ("min_p", "mirostat", "adaptive_target")):
            params["temperature"] = 0.9
        params["max_tokens"] = max(params["max_tokens"], asked.get("min_tokens", 0))
        harness.submit(
            f"r{place}",
            rng.choice(PROMPTS),
            priority=rng.randrange(2),
            user=users[place % len(users)],
            **params | asked,
        )
        for _ in range(rng.randrange(5)):
            harness.step()
        if rng.random() < 0.2 and (victim := f"r{rng.randint(0, place)}", 0) not in harness.closed:
            harness.engine.abort(Abort(victim, 0, index=rng.choice([None, 0])))
    stories = harness.run()
    assert sorted(harness.engine.lifecycle.free_slots) == list(range(small["max_num_seqs"]))
    assert harness.engine.steps.in_flight is None
    return {
        name: Told(
            s.tokens,
            s.logprobs,
            (type(s.end).__name__, getattr(s.end, "reason", None), getattr(s.end, "stop_token_id", None)),
        )
        for name, s in stories.items()
    }, harness


def aborted(told: Told) -> bool:
    return told.end[1] == "abort"


def alike(one: dict[tuple[str, int, int], Told], other: dict[tuple[str, int, int], Told]) -> bool:
    """The same was told; to those that were aborted in one of the two, as far as they came."""
    if one.keys() != other.keys():
        return False
    for name, mine in one.items():
        theirs = other[name]
        if aborted(mine) or aborted(theirs):
            common = min(len(mine.tokens), len(theirs.tokens))
            if mine.tokens[:common] != theirs.tokens[:common]:
                return False
        elif mine != theirs:
            return False
    return True
