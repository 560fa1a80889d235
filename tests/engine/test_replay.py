"""Why tokens came, live and afterwards: the records are the same, whoever shares the steps, however they overlap and
whatever is guessed; and an output that can't have come is noticed."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
import torch

from engine import mixes
from engine.combinations import BLOCK, EOS, PROMPTS, TOKEN_BYTES, VOCAB, target
from engine.harness import Fickle, Harness
from tailrace.config import GrammarConfig
from tailrace.engine import replay as replays
from tailrace.engine.appending import TokenAppender
from tailrace.engine.wanted_rows import MAX_SCORED
from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.grammar.service import Grammars
from tailrace.params import SamplingParams
from tailrace.request.options import RepetitionDetection, Speculation
from tailrace.runners.scripted import ScriptedRunner
from tailrace.sampling import reference
from tailrace.wire.messages import Abort, Replay, Replayed, Submit, Tokens

SHOWN = ExplainOptions(top=3, ids=(1,))
Name = tuple[str, int, int]
KINDS = {name: asked for name, asked in mixes.KINDS.items() if name != "prompt"}


class Explained(Harness):
    """Keeps records: of what is generated, and of what is replayed."""

    def __init__(self, grammars=None, **options) -> None:
        world = {"block_size": BLOCK, "num_blocks": 160, "max_num_seqs": 32} | options
        runner = ScriptedRunner(VOCAB, target, 512, block_size=BLOCK)
        super().__init__(runner, grammars=grammars, token_bytes=TOKEN_BYTES, eos=EOS, **world)
        self.live: dict[Name, list[Explanation]] = {}
        self.keys: dict[Name, int] = {}
        self.replayed: dict[str, list[Replayed]] = {}

    def note(self, message) -> None:
        if isinstance(message, Replayed):
            self.replayed.setdefault(message.id, []).append(message)
            return
        if isinstance(message, Tokens):
            name = (message.id, message.epoch, message.index)
            self.live.setdefault(name, []).extend(message.explanations or [])
            if message.key is not None:
                assert name not in self.keys, "the first message alone has the key"
                self.keys[name] = message.key
        super().note(message)

    def replay(self, id: str, prompt: list[int], output: list[int], params: dict, **more) -> None:
        self.engine.submit(Submit(id, 0, prompt, SamplingParams(**params), replay=asked(output, **more)))

    def records(self, id: str) -> list[Explanation]:
        return [record for message in self.replayed[id] for record in message.records]


class Guesses(Fickle):
    """Of this vocabulary."""

    def guess(self, ask) -> list[int]:
        return [token % VOCAB for token in super().guess(ask)]


def asked(output: list[int], positions=None, **more) -> Replay:
    return Replay(output, list(range(len(output))) if positions is None else positions, SHOWN, **more)


def requests(seed: int, count: int) -> list[tuple[list[int], dict]]:
    """Prompts and parameters of every kind."""
    rng, found = random.Random(seed), []
    for place in range(count):
        kind = KINDS[rng.choice(list(KINDS))]
        params = {"max_tokens": rng.randint(5, 18), "seed": place, "temperature": rng.choice([0.0, 0.9, 0.9])}
        params["ignore_eos"] = rng.random() < 0.3
        if any(name in kind for name in ("min_p", "mirostat", "adaptive_target")):
            params["temperature"] = 0.9
        params["max_tokens"] = max(params["max_tokens"], kind.get("min_tokens", 0))
        found.append((rng.choice(PROMPTS), params | kind))
    return found


def generated(many: list[tuple[list[int], dict]], grammars, **options) -> Explained:
    """All of them at once."""
    world = Explained(grammars, **options)
    for place, (prompt, params) in enumerate(many):
        world.submit(f"r{place}", prompt, explain=SHOWN, **params)
    world.run()
    return world


def plain(record: Explanation, params: dict) -> Explanation:
    """As if nobody had guessed; of rule exact only who guessed differs."""
    if record.draft is None:
        return record
    origin = "forced" if record.origin == "forced" else "greedy" if params["temperature"] == 0.0 else "drawn"
    return msgspec.structs.replace(record, draft=None, origin=origin)


def banned(params: dict) -> bool:
    return bool(params.get("banned_strings") or params.get("banned_regex"))


WORLDS = {
    "alone": {"overlap": "off", "max_num_seqs": 2},
    "32 at once": {"overlap": "off"},
    "overlapped": {"overlap": "on"},
    "overlapped, tight": {"overlap": "on", "num_blocks": 24, "max_num_batched_tokens": 9},
}


@pytest.fixture(scope="module")
def grammars():
    service = Grammars(GrammarConfig(workers=1), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], VOCAB)
    yield service
    service.close()


def check_all(many, live: Explained, grammars, **options) -> int:
    """Replays everything that was generated. Returns how many tokens were the same."""
    world, count = Explained(grammars, **options), 0
    for name, story in live.stories.items():
        prompt, params = many[int(name[0][1:])]
        if story.tokens and not banned(params):
            world.replay(f"{name[0]}.{name[2]}", prompt, story.tokens, params | {"n": 1}, key=live.keys[name])
    world.run()
    for name, story in live.stories.items():
        _, params = many[int(name[0][1:])]
        assert [record.token_id for record in live.live.get(name, [])] == story.tokens, "a record for each token"
        assert [record.index for record in live.live.get(name, [])] == list(range(len(story.tokens)))
        if story.tokens and not banned(params):
            id = f"{name[0]}.{name[2]}"
            assert world.replayed[id][-1].difference is None, (params, world.replayed[id][-1].difference)
            assert world.records(id) == [plain(record, params) for record in live.live[name]], params
            count += len(story.tokens)
    return count


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        pytest.param(0, 5, id="few"),
        *(pytest.param(seed, 25, id=str(seed), marks=pytest.mark.long) for seed in range(8)),
    ],
)
def test_records_are_the_same_live_and_afterwards(grammars, seed, count):
    """Random requests, generated and replayed in other worlds."""
    many = requests(seed, count)
    live = {name: generated(many, grammars, **options) for name, options in WORLDS.items()}
    for world in live.values():
        assert world.live == live["alone"].live
    for options in WORLDS.values():
        assert check_all(many, live["alone"], grammars, **options) > 6 * count


@pytest.mark.few(1)
@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_guesses_leave_the_records_as_they_are(grammars, seed, overlap):
    many = [(prompt, params) for prompt, params in requests(100 + seed, 25)]
    slow = generated(many, grammars, overlap="off")
    texts = [many[int(name[0][1:])][0] + story.tokens for name, story in slow.stories.items()]
    drafter = Guesses(texts, 0.8)
    fast = generated(many, grammars, overlap=overlap, drafter=lambda sampler: drafter, rule="exact")
    guessed = [record for records in fast.live.values() for record in records if record.draft is not None]
    assert {record.draft.token == record.token_id for record in guessed} == {True, False}
    for name, records in slow.live.items():
        _, params = many[int(name[0][1:])]
        assert [plain(record, params) for record in fast.live[name]] == records, params
    assert check_all(many, fast, grammars, overlap=overlap, drafter=lambda sampler: drafter, rule="exact") > 100


def test_positions_are_explained_alone_and_what_is_cached_is_not_computed_again():
    world = Explained(overlap="off")
    params = {"max_tokens": 40, "temperature": 0.9, "seed": 3, "presence_penalty": 0.5, "ignore_eos": True}
    world.submit("a", PROMPTS[0], explain=SHOWN, **params)
    [story] = world.run().values()
    live = world.live["a", 0, 0]
    for positions in ([0], [39], [3, 38], [20, 21, 22]):
        world.replay("b", PROMPTS[0], story.tokens, params, positions=positions)
        world.run()
        assert world.records("b") == [live[place] for place in positions]
        assert world.replayed["b"][0].cached_tokens == (len(PROMPTS[0]) + positions[0] - 1) // BLOCK * BLOCK
        world.replayed.clear()
        world.stories.clear()


TAMPERED = {
    "another token": (lambda output: [*output[:7], (output[7] + 1) % 11, *output[8:]], {}, 7, "drawn"),
    "another seed": (list, {"seed": 4}, None, "drawn"),
    "other parameters": (list, {"temperature": 0.2}, None, "drawn"),
    "forced elsewhere": (list, {"forced_token_ids": (9, 9)}, 0, "forced"),
    "longer": (lambda output: [*output, 1], {}, 20, "ended"),
    "ended before": (list, {"stop_token_ids": (0, 1, 2, 3, 4), "min_tokens": 2}, None, "ended"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_an_output_that_cannot_have_come_is_noticed(name):
    change, other, position, why = TAMPERED[name]
    world, params = Explained(), {"max_tokens": 20, "temperature": 1.5, "seed": 3, "ignore_eos": True}
    world.submit("a", PROMPTS[0], **params)
    [story] = world.run().values()
    world.replay("b", PROMPTS[0], change(story.tokens), params | other)
    world.run()
    difference = world.replayed["b"][-1].difference
    assert difference is not None
    assert position is None or difference.position == position
    if name != "ended before":  # the bans before min_tokens may come first
        assert difference.why == why
    assert len(world.records("b")) == len(change(story.tokens)), "all are explained nevertheless"


def test_a_token_that_the_grammar_forbids_is_named(grammars):
    world, params = Explained(grammars), {"max_tokens": 20, "temperature": 0.9, "seed": 3, "grammar": mixes.GRAMMAR}
    world.submit("a", PROMPTS[0], explain=SHOWN, **params)
    [story] = world.run().values()
    assert any(step.method == "grammar" for step in world.live["a", 0, 0][0].edits)
    output = [*story.tokens[:2], 10, *story.tokens[3:]]
    world.replay("b", PROMPTS[0], output, params)
    world.run()
    difference = world.replayed["b"][-1].difference
    assert (difference.position, difference.why) == (2, "grammar")
    assert [record.token_id for record in world.records("b")] == output


@pytest.mark.parametrize("live", [True, False])
def test_records_that_say_otherwise_than_the_kernels_are_errors(monkeypatch, live):
    """Rivals within rounding of each other: nobody is told that a token is what is drawn beside a record that it is
    not."""
    world = Explained(overlap="off")
    params = {"max_tokens": 6, "temperature": 0.9, "seed": 3, "ignore_eos": True}
    world.submit("a", PROMPTS[0], **params)
    [story] = world.run().values()
    real = reference.scores_of
    monkeypatch.setattr(reference, "scores_of", lambda *given: -real(*given))
    monkeypatch.setattr("tailrace.sampling.record.scores_of", lambda *given: -real(*given))
    if live:
        world.submit("b", PROMPTS[0], explain=SHOWN, **params)
    else:
        world.replay("b", PROMPTS[0], story.tokens, params)
    world.run()
    assert world.stories["b", 0, 0].end.message.startswith("explain: the kernels have drawn [")
    assert not world.live.get(("b", 0, 0))
    assert "b" not in world.replayed


def test_other_parameters_are_tried_on_the_same_history_and_noise():
    world = Explained()
    params = {"max_tokens": 12, "temperature": 1.5, "seed": 3, "ignore_eos": True, "frequency_penalty": 0.3}
    world.submit("a", PROMPTS[0], explain=SHOWN, **params)
    [story] = world.run().values()
    live, other = world.live["a", 0, 0], params | {"top_k": 2, "frequency_penalty": 2.0}
    world.replay("b", PROMPTS[0], story.tokens, params, what_if=SamplingParams(**other))
    world.run()
    assert world.replayed["b"][-1].difference is None, "it speaks of the request as it was"
    found = world.records("b")
    assert [record.token_id for record in found] == story.tokens
    for mine, theirs in zip(found, live, strict=True):
        assert mine.model.entropy == theirs.model.entropy
        assert [step.method for step in mine.refinements] == ["temperature", "top_k"]
        assert mine.refinements[-1].kept == 2
    assert any(record.draw.winner != record.token_id for record in found)
    world.replay("c", PROMPTS[0], story.tokens, params, what_if=SamplingParams(**params))
    world.run()
    assert world.records("c") == live


def test_a_state_of_other_parameters_learns_along():
    world = Explained()
    params = {"max_tokens": 12, "temperature": 0.9, "seed": 3, "ignore_eos": True, "mirostat": 2, "mirostat_tau": 2.0}
    world.submit("a", PROMPTS[0], explain=SHOWN, **params)
    [story] = world.run().values()
    plainly = {name: value for name, value in params.items() if not name.startswith("mirostat")}
    world.replay("b", PROMPTS[0], story.tokens, plainly, positions=[11], what_if=SamplingParams(**params))
    world.run()
    [record] = world.records("b")
    [mine], [theirs] = record.refinements[1:], world.live["a", 0, 0][11].refinements[1:]
    assert mine.method == theirs.method == "mirostat"
    assert mine.kept == theirs.kept


def test_what_drafts_may_have_brought_is_not_called_false():
    """Under rejection a token may be another than is drawn; which ones were guessed is not known afterwards."""
    params = {"max_tokens": 40, "temperature": 1.2, "seed": 3, "ignore_eos": True}
    guesses = {"drafter": lambda sampler: Guesses([], 0.0), "rule": "rejection"}
    world = Explained(**guesses)
    world.submit("a", PROMPTS[0], explain=SHOWN, speculation=Speculation(rule="rejection"), **params)
    [story] = world.run().values()
    assert {record.origin for record in world.live["a", 0, 0]} >= {"accepted", "replaced"}
    world.replay("b", PROMPTS[0], story.tokens, params | {"speculation": Speculation(rule="rejection")})
    world.run()
    last = world.replayed["b"][-1]
    assert last.difference is None
    assert last.unsure > 0
    world.replay("c", PROMPTS[0], story.tokens, params | {"speculation": Speculation(rule="exact")})
    world.run()
    assert world.replayed["c"][-1].difference is not None


REFUSED = {
    "foreign token": ({"output": [VOCAB]}, {}, "output_token_ids"),
    "beyond the output": ({"output": [1, 2], "positions": [2]}, {}, "positions"),
    "no positions": ({"output": [1, 2], "positions": []}, {}, "positions"),
    "no room": ({"output": [1] * 512}, {}, "output_token_ids"),
    "taken back": ({"output": [1]}, {"banned_strings": ("a",)}, "banned_strings"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_explained(name):
    fields, params, param = REFUSED[name]
    world = Explained()
    world.replay("b", PROMPTS[0], fields.pop("output", [1]), {"seed": 1} | params, **fields)
    [story] = world.run().values()
    assert story.end.param == param


def test_a_replay_takes_no_more_of_a_step_than_a_request_may(monkeypatch):
    """One place at least in each step, and no second one where there is no time. A neighbour goes on meanwhile."""
    world = Explained(host_ms=1e-6)
    params = {"max_tokens": 20, "temperature": 0.9, "seed": 3, "ignore_eos": True}
    world.submit("a", PROMPTS[0], **params)
    [story] = world.run().values()
    world.replay("b", PROMPTS[0], story.tokens, params)
    world.submit("c", PROMPTS[1], **params)
    world.run()
    assert [len(message.records) for message in world.replayed["b"]] == [1] * 20
    assert len(world.stories["c", 0, 0].tokens) == 20


def test_replays_share_the_time_of_a_step_and_take_turns():
    """Not one budget each: neighbours would wait for all of them."""
    world = Explained(host_ms=1e-6)
    params = {"max_tokens": 20, "temperature": 0.9, "seed": 3, "ignore_eos": True}
    world.submit("a", PROMPTS[0], **params)
    [story] = world.run().values()
    for name in "bcd":
        world.replay(name, PROMPTS[0], story.tokens, params)
    counts = [0]
    while counts[-1] < 60:
        world.step()
        found = [len(world.records(name)) if name in world.replayed else 0 for name in "bcd"]
        assert max(found) - min(found) <= 1, "in turns"
        counts.append(sum(found))
    assert {after - before for before, after in pairwise(counts)} <= {0, 1}
    world.run()
    assert [world.replayed[name][-1].difference for name in "bcd"] == [None] * 3


@pytest.mark.few(1)
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_all_replays_together_keep_so_many_rows(scale):
    world = Explained(host_ms=1e-6, max_num_batched_tokens=4096)
    params = {"max_tokens": 40, "temperature": 0.9, "seed": 3, "ignore_eos": True, "guidance_scale": scale}
    world.submit("a", PROMPTS[0], **params)
    [story] = world.run().values()
    for name in range(12):
        world.replay(f"b{name}", PROMPTS[0], story.tokens, params)
    world.submit("c", PROMPTS[1], **params)
    most = 0
    while len(world.replayed) < 12 or sum(len(m.records) for found in world.replayed.values() for m in found) < 480:
        world.step()
        held = [len(m.wanted.waiting) for s in world.engine.lifecycle.running for m in s.pair if m.wanted is not None]
        most = max(most, sum(held))
    assert MAX_SCORED // 2 < most <= MAX_SCORED
    world.run()
    assert len(world.stories["c", 0, 0].tokens) == 40


def test_the_token_that_ends_the_output_says_so_also_where_bans_held_it_back(monkeypatch):
    """Five tokens come out at once, and the third is a repetition."""
    monkeypatch.setitem(globals(), "target", lambda ids: 9.0 * torch.eye(VOCAB)[1 if len(ids) == 8 else 0])
    world, loops = Explained(overlap="off"), RepetitionDetection(max_pattern_size=1, min_count=3)
    world.submit("a", [2] * 4, explain=SHOWN, max_tokens=9, banned_strings=("aaaaz",), repetition_detection=loops)
    [story] = world.run().values()
    assert story.tokens == [0, 0, 0, 0, 1]
    assert [record.ended for record in world.live["a", 0, 0]] == [None, None, "repetition", None, None]


def test_a_request_that_does_not_ask_has_no_records(monkeypatch):
    """Nor are its rows kept."""
    world = Explained()
    kept = []
    real = replays.explain_row
    monkeypatch.setattr("tailrace.engine.step.keep_rows", lambda *given: kept.append(given) or {})
    monkeypatch.setattr(replays, "explain_row", lambda *given: kept.append(given) or real(*given))
    world.submit("a", PROMPTS[0], max_tokens=9)
    world.run()
    assert not kept
    assert not world.live["a", 0, 0]


def test_sequences_of_a_call_take_turns_and_have_the_same_records():
    params = {"max_tokens": 6, "temperature": 0.9, "seed": 3, "ignore_eos": True, "n": 4, "explain": SHOWN}
    found = []
    for host_ms in (1000.0, 1e-6):
        world = Explained(host_ms=host_ms)
        world.submit("a", PROMPTS[0], **params)
        world.submit("b", PROMPTS[1], max_tokens=6, ignore_eos=True)
        steps = 0
        while ("b", 0, 0) not in world.stories or world.stories["b", 0, 0].end is None:
            world.step()
            steps += 1
        assert steps < 12, "a neighbour does not wait for them"
        world.run()
        found.append((world.live, world.engine.counters.steps))
    assert found[0][0] == found[1][0]
    assert found[1][1] > found[0][1], "one of them per step"


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_an_abort_leaves_nothing_behind(overlap):
    world = Explained(overlap=overlap, host_ms=1e-6)
    params = {"max_tokens": 20, "temperature": 0.9, "seed": 3, "ignore_eos": True}
    world.submit("a", PROMPTS[0], **params)
    [story] = world.run().values()
    for steps in range(12):
        world.replay(f"b{steps}", PROMPTS[0], story.tokens, params | {"guidance_scale": 2.0})
        for _ in range(steps):
            world.step()
        world.engine.abort(Abort(f"b{steps}", 0))
    world.run()
    assert not world.engine.lifecycle.replays


def test_records_that_cannot_be_made_fail_their_request_alone(monkeypatch):
    def broken(*given):
        raise ZeroDivisionError("no record")

    world = Explained()
    world.submit("a", PROMPTS[0], max_tokens=5, ignore_eos=True)
    [before] = [list(story.tokens) for story in world.run().values()]
    monkeypatch.setattr(world.engine.steps.sampler, "explain", broken)
    monkeypatch.setattr(replays, "explain_row", broken)
    for name, more in (("b", {"explain": SHOWN}), ("c", {})):
        world.submit(name, PROMPTS[0], max_tokens=5, ignore_eos=True, **more)
    world.replay("d", PROMPTS[0], before, {"temperature": 0.0, "seed": 1, "ignore_eos": True})
    stories = world.run()
    for name in ("b", "d"):
        assert stories[name, 0, 0].end.message.endswith("ZeroDivisionError: no record")
    assert stories["c", 0, 0].tokens == before


# ---- planted faults


def without_history(patch) -> None:
    """The walker's penalties don't see the output."""
    real = TokenAppender.append

    def append(self, sequence, new, after_draft=False):
        outcome = real(self, sequence, new, after_draft)
        if sequence.request.replay is not None and (history := self.slots[sequence.slot].history) is not None:
            history.pop()
            history.append((new.id + 1) % VOCAB)
        return outcome

    patch.setattr(TokenAppender, "append", append)


def of_the_row_before(patch) -> None:
    """A replay's rows are those of the token before."""
    from tailrace.engine import batch, wanted_rows

    real = wanted_rows.WantedRows.select_places
    patch.setattr(wanted_rows.WantedRows, "select_places", lambda self, end: [p - (p > 10) for p in real(self, end)])
    assert batch


def never_forgets(patch) -> None:
    """The record of a token is made after it has been committed."""
    real = TokenAppender.append_token

    def append(self, sequence, new, after_draft):
        if new.explanation is not None:
            moved = msgspec.structs.replace(new.explanation, index=new.explanation.index + 1)
            new = new._replace(explanation=moved)
        return real(self, sequence, new, after_draft)

    patch.setattr(TokenAppender, "append_token", append)


@pytest.mark.long
@pytest.mark.parametrize("fault", [without_history, of_the_row_before, never_forgets], ids=lambda f: f.__name__)
def test_the_test_can_fail(grammars, monkeypatch, fault):
    many = requests(0, 25)
    fault(monkeypatch)
    live = generated(many, grammars, overlap="off")
    with pytest.raises((AssertionError, KeyError)):
        check_all(many, live, grammars, overlap="off")
