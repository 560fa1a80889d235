"""A predicted output changes no token, whatever is asked, whoever else drafts, and however wrong it is. It only takes
fewer steps, and the count of predicted tokens in the output follows from the output alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from engine.harness import VOCAB, Fickle, Harness
from engine.test_speculation import ASKED, PROMPTS, TOKEN_BYTES, logits
from engine.test_structured_output import GRAMMARS
from engine.test_structured_output import TOKEN_BYTES as PIECE_BYTES
from engine.test_structured_output import VOCAB as PIECES
from tailrace.config import GrammarConfig
from tailrace.drafting.ngram import NGram
from tailrace.grammar.service import Grammars
from tailrace.request.options import Speculation
from tailrace.runners.scripted import ScriptedRunner

pytestmark = pytest.mark.usefixtures("both_modes")


def edit(tokens: list[int], kind: str, seed: int) -> list[int]:
    """The prediction of a client that expects these tokens, more or less."""
    rng, edited = random.Random(seed), list(tokens)
    if kind == "other":
        return [rng.randrange(VOCAB) for _ in range(60)]
    if kind == "long":
        return [*edited, *(rng.randrange(VOCAB) for _ in range(300))]
    for _ in range(0 if kind == "same" else 3):
        at = rng.randrange(max(1, len(edited)))
        edited[at : at + (0 if kind == "insert" else 2)] = [] if kind == "delete" else [rng.randrange(VOCAB)] * 2
    return edited


@dataclass
class Told:
    """What became of all requests, and how many predicted tokens each sequence is said to have."""

    stories: dict
    found: list[int]
    world: Harness


def tell(predictions: list[list[int]], drafter=None, limits=None, **asked) -> Told:
    """Run a request for each prompt, with its prediction."""
    world = Harness(
        ScriptedRunner(VOCAB, logits, 512),
        drafter=drafter and (lambda sampler: drafter),
        token_bytes=TOKEN_BYTES,
        **{"num_blocks": 48} | (limits or {}),
    )
    for place, (prompt, prediction) in enumerate(zip(PROMPTS, predictions, strict=True)):
        fields = {"max_tokens": 40, "temperature": 1.0} | asked
        world.submit(f"r{place}", prompt, prediction=tuple(prediction), **fields)
    ended = sorted(world.run().items())
    return Told(
        {name: (s.tokens, s.logprobs, s.end.reason, s.end.stop_token_id, s.end.cause) for name, s in ended},
        [s.end.num_predicted for _, s in ended],
        world,
    )


def predict(plain: Told, kind: str) -> list[list[int]]:
    return [edit(plain.stories[f"r{place}", 0, 0][0], kind, place) for place in range(len(PROMPTS))]


NONE = [[]] * len(PROMPTS)


@pytest.mark.few(3)
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_a_prediction_changes_no_token(asked):
    plain = tell(NONE, **asked)
    assert plain.found == [0] * len(plain.found)
    for kind in ("same", "change", "other"):
        told = tell(predict(plain, kind), **asked)
        assert told.stories == plain.stories, kind
        assert told.world.runner.steps <= plain.world.runner.steps
        if kind == "same":
            assert told.world.engine.counters.accepted_tokens
            assert told.world.runner.steps < plain.world.runner.steps
    predictions = predict(plain, "insert")
    told, beside = tell(predictions, **asked), tell(predictions, NGram(), **asked)
    assert told.stories == beside.stories == plain.stories
    assert told.found == beside.found


def test_many_seeds():
    for seed in range(12):
        plain = tell(NONE, seed=seed, top_p=0.9)
        told = tell(predict(plain, ("insert", "delete", "change", "long")[seed % 4]), seed=seed, top_p=0.9)
        assert told.stories == plain.stories


def test_the_count_follows_from_the_output_alone():
    plain = tell(NONE, seed=3, ignore_eos=True)
    predictions = predict(plain, "change")
    told = tell(predictions, seed=3, ignore_eos=True)
    silent = tell(predictions, seed=3, ignore_eos=True, speculation=Speculation(max_drafts=0))
    assert silent.world.engine.counters.drafted_tokens == 0 < told.world.engine.counters.drafted_tokens
    assert told.found == silent.found
    assert all(20 < found <= 40 for found in told.found)
    assert tell(predict(plain, "same"), seed=3, ignore_eos=True).found == [40] * 3
    assert tell(predict(plain, "other"), seed=3, ignore_eos=True).found == [0] * 3


def test_a_request_limits_its_drafts():
    plain = tell(NONE, seed=3, ignore_eos=True)
    predictions = predict(plain, "same")
    limited = tell(predictions, seed=3, ignore_eos=True, speculation=Speculation(max_drafts=2))
    assert max(limited.world.engine.counters.drafted_at) == 1
    free = tell(predictions, seed=3, ignore_eos=True)
    assert max(free.world.engine.counters.drafted_at) > 5  # more than max_drafts, which is for drafters
    assert limited.stories == free.stories == plain.stories


@pytest.mark.parametrize("rule", ["rejection", "block", "typical"])
def test_predicted_drafts_are_verified_exactly_whatever_the_rule(rule):
    """The drafter has nothing: its steps are plain ones."""

    class Silent(Fickle):
        def guess(self, ask):
            return []

    plain = tell(NONE, seed=5)
    told = tell(predict(plain, "insert"), Silent([], 1.0), seed=5, speculation=Speculation(rule=rule))
    assert told.stories == plain.stories
    assert told.world.engine.counters.accepted_tokens


def test_the_drafter_continues_where_the_prediction_has_no_place():
    plain = tell(NONE, seed=6, ignore_eos=True)
    texts = [PROMPTS[int(name[0][1:])] + tokens for name, (tokens, *_) in plain.stories.items()]
    half = [tokens[20:] for tokens in predict(plain, "same")]
    alone, drafter = tell(half, seed=6, ignore_eos=True), Fickle(texts, 1.0)
    both = tell(half, drafter, seed=6, ignore_eos=True)
    assert both.stories == alone.stories == plain.stories
    assert drafter.offered
    assert both.world.runner.steps < alone.world.runner.steps < plain.world.runner.steps


def test_preempted_in_a_tight_cache():
    plain = tell(NONE, seed=3, ignore_eos=True)
    predictions = predict(plain, "change")
    told = tell(predictions, limits={"num_blocks": 7}, seed=3, ignore_eos=True)
    assert told.world.engine.counters.preemptions
    assert told.stories == plain.stories
    assert told.found == tell(predictions, seed=3, ignore_eos=True).found


def test_adaptive_lengths_are_learned_apart_from_the_drafters():
    """Prediction and drafter are sources of their own, also on a server without a drafter."""
    plain = tell(NONE, seed=3, ignore_eos=True)
    told = tell(predict(plain, "same"), limits={"adaptive": True}, seed=3, ignore_eos=True)
    assert told.stories == plain.stories
    seen: list[int] = []
    world = Harness(ScriptedRunner(VOCAB, logits, 512), drafter=lambda sampler: NGram(), adaptive=True)
    record = world.engine.speculator.lengths.record_acceptance
    world.engine.speculator.lengths.record_acceptance = lambda source, *counts: (
        seen.append(source) or record(source, *counts)
    )
    world.submit("predicted", PROMPTS[0], max_tokens=40, prediction=tuple(range(90)) + (5,) * 99, ignore_eos=True)
    world.submit("loops", [5, 6] * 20, max_tokens=40, ignore_eos=True, logit_bias={5: 50.0})
    world.run()
    assert all(source >= ~8 for source in seen)
    assert not world.engine.speculator.lengths._sequences  # all are forgotten


@pytest.fixture(scope="module")
def grammars():
    made = Grammars(GrammarConfig(), None, PIECE_BYTES.token_bytes, PIECE_BYTES.special, [PIECES - 1], PIECES)
    yield made
    made.close()


def tell_ruled(grammars: Grammars, name: str, prediction: list[int]):
    """What becomes of a request with this grammar; the drafts."""

    def row(ids: list[int]):
        rng = random.Random(repr(ids[-3:]))
        return [rng.uniform(0, 3) for _ in range(PIECES)]

    world = Harness(ScriptedRunner(PIECES, row, 512), token_bytes=PIECE_BYTES, grammars=grammars, eos=PIECES - 1)
    fields = {"temperature": 1.0, "seed": 7, "max_tokens": 60, "grammar": GRAMMARS[name]}
    world.submit("a", [5, 6, 7], prediction=tuple(prediction), **fields)
    [story] = world.run(10**6).values()
    return (story.tokens, story.end.reason), world.engine.counters.drafted_tokens


@pytest.mark.parametrize("name", ["regex", "schema"])
def test_under_a_grammar(grammars, name):
    plain, _ = tell_ruled(grammars, name, [])
    tokens = plain[0]
    for prediction in (tokens, [*tokens[:3], 1, 2, *tokens[3:]], [9] * 30):
        told, drafted = tell_ruled(grammars, name, prediction)
        assert told == plain
        assert drafted or prediction[0] == 9
