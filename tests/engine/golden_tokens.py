"""Golden transcripts: what 500 mixed seeded requests are told, with and without drafters, with steps that overlap and
steps that do not.

    PYTHONPATH=tests python -m engine.golden_tokens record FILE
    PYTHONPATH=tests python -m engine.golden_tokens compare FILE

Record before a change that must not change any token, compare after each step of it. Token ids, logprobs, prompt
logprobs and the end of every sequence must be equal. Requests that are aborted on the way are compared as far as both
came. How tokens are divided into messages is counted apart, because it may depend on clocks. Logprobs may differ
between machines: compare on the machine that recorded.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from engine import mixes
from engine.combinations import DRAFTERS, EOS, PROMPTS, TOKEN_BYTES, VOCAB, Case, run
from engine.harness import Harness
from tailrace.config import GrammarConfig
from tailrace.engine import draws, speculation
from tailrace.engine.checks import structured_output
from tailrace.grammar.service import Grammars
from tailrace.wire.messages import Tokens

CROWDS = range(2000, 2010)
NAMES = ("none", "n-gram", "suffix", "draft model", "oracle")
LAWS = [
    Case(drafter, rule, guided, ruled, asked)
    for at, (drafter, rule) in enumerate(
        (drafter, rule) for drafter in ("dense", "draft model", "oracle") for rule in ("rejection", "block", "typical")
    )
    for guided, ruled, asked in ((False, False, "logprobs"), (at % 2 == 0, at % 3 == 0, "penalties"))
]


class Recorded(mixes.Listening):
    """Also keeps how many tokens came in each message, by sequence."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.pieces: dict[str, list] = {}

    def note(self, message) -> None:
        if isinstance(message, Tokens):
            name = f"{message.id}/{message.index}"
            self.pieces.setdefault(name, []).append([len(message.token_ids), message.cached_tokens, message.drafts])
        super().note(message)


def transcripts(grammars: Grammars) -> Iterator[tuple[str, dict]]:
    """The name of each request, and what it was told."""
    for mode in ("off", "on"):
        for drafter in NAMES:
            for seed in CROWDS:
                texts = [[*prompt, *told["tokens"]] for told in plain_of(seed, grammars) for prompt in PROMPTS]
                factory: Callable | None = DRAFTERS[drafter](texts)
                told, harness = mixes.crowd(seed, grammars, overlap=mode, drafter=factory, rule="exact")
                yield from named(f"{mode}, {drafter}, {seed}", told, harness)
        Harness.overlap = mode
        for case in LAWS:
            outcome = run(case, grammars)
            for (id, _, index), story in outcome.stories.items():
                end = (type(story.end).__name__, getattr(story.end, "reason", None), getattr(story.end, "cause", None))
                yield f"{mode}, {case}, {id}/{index}", entry(story.tokens, story.logprobs, end)


def plain_of(seed: int, grammars: Grammars, known: dict[int, list[dict]] = {}) -> list[dict]:  # noqa: B006, a cache
    if seed not in known:
        told, harness = mixes.crowd(seed, grammars, overlap="off")
        known[seed] = [told for _, told in named("", told, harness)]
    return known[seed]


def named(prefix: str, told: dict, harness: Recorded) -> Iterator[tuple[str, dict]]:
    for (id, _, index), one in told.items():
        pieces = harness.pieces.get(f"{id}/{index}", [])
        yield f"{prefix}, {id}/{index}", entry(one.tokens, one.logprobs, one.end, harness.prompts.get(id, []), pieces)


def entry(
    tokens: list[int], logprobs: list, end: tuple, prompt: list | None = None, pieces: list | None = None
) -> dict:
    return {
        "tokens": tokens,
        "digest": hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16],
        "logprobs": [repr(logprob) for logprob in logprobs],
        "prompt": [repr(logprob) for logprob in prompt or []],
        "end": list(end),
        "pieces": pieces,
    }


def differences(old: dict[str, dict], new: dict[str, dict]) -> tuple[list[str], int]:
    """Names of requests that were told something else, and how many got the same in other pieces."""
    wrong = sorted(old.keys() ^ new.keys())
    pieces = 0
    for name in old.keys() & new.keys():
        one, other = old[name], new[name]
        cut = "abort" in (one["end"][1], other["end"][1])
        common = min(len(one["tokens"]), len(other["tokens"])) if cut else sys.maxsize
        same = all(one[key][:common] == other[key][:common] for key in ("tokens", "logprobs"))
        if not same or (not cut and (one["end"] != other["end"] or one["prompt"] != other["prompt"])):
            wrong.append(name)
        pieces += one["pieces"] != other["pieces"]
    return wrong, pieces


def main() -> int:
    """Record, or compare."""
    command, path = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    # how many drafts there are must not depend on clocks; on a busy machine, too, every mask is in time
    draws.LATE_S = speculation.LOOK_S = structured_output.MASKS_S = 60.0
    mixes.Listening = Recorded  # type: ignore[misc]
    grammars = Grammars(GrammarConfig(), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], VOCAB)
    found = json.loads(json.dumps(dict(transcripts(grammars))))
    grammars.close()
    if command == "record":
        path.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n")
        print(f"{len(found)} sequences recorded")
        return 0
    wrong, pieces = differences(json.loads(path.read_text()), found)
    print(f"{len(found)} sequences, {len(wrong)} differ; {pieces} came in other pieces")
    print("\n".join(wrong[:20]))
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
