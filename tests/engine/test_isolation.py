"""What raises in one request's work fails that request. Faults are planted in every place that looks at a request; its
neighbours say what they say alone."""

from __future__ import annotations

import pytest

from engine.harness import Fickle, Harness, alone
from tailrace.engine import draws, lifecycle, scored_rows
from tailrace.engine import engine as engine_room
from tailrace.kernels.rows import Rows
from tailrace.wire.messages import Failed, Finished

pytestmark = [pytest.mark.usefixtures("both_modes"), pytest.mark.disturbs]

BAD = [66, 6]


class Panic(BaseException):
    """As a library in Rust raises it."""


@pytest.fixture
def harness() -> Harness:
    return Harness()


def served(harness: Harness, code: str = "engine_error", **bad) -> None:
    """Three requests, of which the second is the bad one."""
    harness.submit("a", [5, 6, 7], max_tokens=9, ignore_eos=True)
    harness.submit("bad", BAD, **({"max_tokens": 9, "ignore_eos": True} | bad))
    harness.submit("b", [8], max_tokens=9, ignore_eos=True)
    stories = harness.run(400)
    for id, prompt in (("a", [5, 6, 7]), ("b", [8])):
        story = stories[id, 0, 0]
        assert isinstance(story.end, Finished)
        assert story.tokens == alone(prompt, 9)
    ends = [story.end for (id, _, _), story in stories.items() if id == "bad"]
    assert len(ends) == bad.get("n", 1)
    assert all(isinstance(end, Failed) and end.code == code for end in ends)


@pytest.mark.parametrize("error", [ZeroDivisionError, Panic])
@pytest.mark.parametrize("n", [1, 3])
def test_a_request_that_cannot_join(harness: Harness, monkeypatch, error, n):
    add = harness.engine.slots.add

    def planted(slot, params, **given):
        if list(given["prompt"]) == BAD:
            raise error("planted")
        add(slot, params, **given)

    monkeypatch.setattr(harness.engine.slots, "add", planted)
    served(harness, n=n)


@pytest.mark.parametrize("n", [1, 3])
def test_a_row_that_the_sampler_fails_on(harness: Harness, monkeypatch, n):
    begin = harness.engine.steps.sampler.begin

    def planted(logits, rows):
        bad = {s.slot for s in harness.engine.running if s.request.id == "bad"}
        bad |= {fork.slot for s in harness.engine.running if s.request.id == "bad" for fork in s.forks}
        if bad & set(rows.slot.tolist()):
            raise ZeroDivisionError("planted")
        return begin(logits, rows)

    monkeypatch.setattr(harness.engine.steps.sampler, "begin", planted)
    served(harness, n=n)


@pytest.mark.parametrize("n", [1, 3])
def test_a_draw_that_cannot_be_put_together(harness: Harness, monkeypatch, n):
    real = draws.draws_of

    def planted(group, *rest):
        if any(sequence.request.id == "bad" for sequence in group):
            raise ZeroDivisionError("planted")
        return real(group, *rest)

    monkeypatch.setattr(draws, "draws_of", planted)
    served(harness, n=n)


def test_a_prompt_whose_logprobs_fail(harness: Harness, monkeypatch):
    def planted(rows, tokens, top):
        raise IndexError("planted")

    monkeypatch.setattr(scored_rows, "replay", planted)
    served(harness, prompt_logprobs=0)


@pytest.mark.parametrize("error", [RecursionError, MemoryError, Panic])
def test_a_request_that_cannot_be_taken(harness: Harness, monkeypatch, error):
    real = engine_room.stop_search

    def planted(params):
        if params.stop_regex:
            raise error("planted")
        return real(params)

    monkeypatch.setattr(engine_room, "stop_search", planted)
    served(harness, stop_regex=("x",))


@pytest.mark.parametrize("plain", [True, False])
def test_a_token_that_cannot_be_committed(harness: Harness, monkeypatch, plain):
    slots, planted = harness.engine.slots, []

    def fail_at(whole):
        def commit(chosen, tokens):
            those = [chosen] if isinstance(chosen, int) else list(chosen)
            if any(s.slot in those and s.request.id == "bad" and s.num_output == 3 for s in harness.engine.running):
                planted.append(1)
                raise Panic("planted")
            whole(chosen, tokens)

        return commit

    name = "commit_drawn" if plain else "commit"
    monkeypatch.setattr(slots, name, fail_at(getattr(slots, name)))
    if not plain:
        monkeypatch.setattr(lifecycle, "is_plain", lambda sequence: False)
    served(harness)
    assert planted


def test_guesses_that_cannot_be_verified_are_dropped(monkeypatch):
    said = [[*prompt, *alone(prompt, 30)] for prompt in ([5, 6, 7], BAD, [8])]
    drafter = Fickle(said, accuracy=1.0)
    harness = Harness(drafter=lambda sampler: drafter)
    drafted, planted = Rows.drafted, []

    def picky(slot, position, drafts, *rest, **more):
        bad = {s.slot for s in harness.engine.running if s.request.id == "bad"}
        if any(of and s in bad for s, of in zip(slot, drafts, strict=True)):
            planted.append(1)
            raise ValueError("planted")
        return drafted(slot, position, drafts, *rest, **more)

    monkeypatch.setattr(Rows, "drafted", staticmethod(picky))
    for id, prompt in (("a", [5, 6, 7]), ("bad", BAD), ("b", [8])):
        harness.submit(id, prompt, max_tokens=20, ignore_eos=True)
    stories = harness.run(400)
    assert planted
    for id, prompt in (("a", [5, 6, 7]), ("bad", BAD), ("b", [8])):
        assert stories[id, 0, 0].tokens == alone(prompt, 20)
