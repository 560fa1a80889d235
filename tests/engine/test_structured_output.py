"""Sequences whose text a grammar rules: what they say is a word of it, alone, with guesses, guidance and everything
else."""

from __future__ import annotations

import json
import random
import re
import time
from types import SimpleNamespace

import pytest
import torch

from engine.harness import Fickle, Harness
from tailrace.config import GrammarConfig
from tailrace.engine import appending
from tailrace.engine.token_bytes import TokenBytes
from tailrace.grammar import bitmasks
from tailrace.grammar.base import DraftMaskError
from tailrace.grammar.service import Grammars
from tailrace.request.options import MAX_DRAFTS, Grammar, MarkedSpan
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import Abort, Failed, Finished

pytestmark = pytest.mark.usefixtures("both_modes")

# every printable character, some longer pieces, then what is special
PIECES = [chr(c) for c in range(32, 127)] + [
    "\n",
    '{"',
    '": ',
    '", "',
    "true",
    "null",
    '"}',
    "12",
    "}}",
    "<think>",
    "</think>",
    "<eos>",
]
VOCAB, EOS = len(PIECES), len(PIECES) - 1
THINK, UNTHINK = VOCAB - 3, VOCAB - 2
TOKEN_BYTES = TokenBytes([piece.encode() for piece in PIECES], frozenset({THINK, UNTHINK, EOS}))
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", "Bo"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}
GRAMMARS = {
    "regex": Grammar(kind="regex", source="[ab]{2,5}-[0-9]{3}"),
    "choice": Grammar(kind="choice", source='["yes", "no", "perhaps"]'),
    "schema": Grammar(kind="json_schema", source=json.dumps(SCHEMA)),
    "gbnf": Grammar(kind="ebnf", source='root ::= "x" ("," "x")* "."'),
}


def fits(name: str, text: str) -> bool:
    match name:
        case "regex":
            return bool(re.fullmatch("[ab]{2,5}-[0-9]{3}", text))
        case "choice":
            return text in ("yes", "no", "perhaps")
        case "gbnf":
            return bool(re.fullmatch(r"x(,x)*\.", text))
    value = json.loads(text)
    return (
        value["name"] in ("Ada", "Bo")
        and 0 <= value["age"] <= 150
        and isinstance(value["ok"], bool)
        and len(value) == 3
    )


def text_of(tokens: list[int]) -> str:
    return "".join(PIECES[t] for t in tokens if t != EOS)


def ids(text: str) -> list[int]:
    return [PIECES.index(c) for c in text]


def logits(tokens: list[int]) -> torch.Tensor:
    rng = random.Random(repr(tokens[-3:]))
    row = torch.tensor([rng.uniform(-2, 2) for _ in range(VOCAB)])
    row[EOS] = 1.0
    return row


@pytest.fixture(scope="module")
def grammars():
    made = Grammars(GrammarConfig(), None, TOKEN_BYTES.token_bytes, TOKEN_BYTES.special, [EOS], VOCAB)
    yield made
    made.close()


def world(grammars, drafter=None, runner=None, **options) -> Harness:
    runner = runner or ScriptedRunner(VOCAB, logits, 512)
    harness = Harness(
        runner,
        grammars=grammars,
        token_bytes=TOKEN_BYTES,
        drafter=drafter and (lambda sampler: drafter),
        eos=EOS,
        **options,
    )
    return harness


def run(harness: Harness):
    until = time.monotonic() + 300
    while harness.engine.has_work:
        harness.step()
        assert time.monotonic() < until
    return harness.run()


ASKED = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.2, "seed": 1},
    "penalties": {"temperature": 1.0, "seed": 2, "repetition_penalty": 1.3, "frequency_penalty": 0.3, "top_p": 0.9},
    "guidance": {"temperature": 1.0, "seed": 3, "guidance_scale": 1.7, "negative_prompt": (5, 6)},
    "logprobs, n": {"temperature": 1.0, "seed": 4, "logprobs": 2, "n": 2},
    "min_tokens": {"temperature": 1.0, "seed": 5, "min_tokens": 3},
    "mirostat": {"temperature": 1.0, "seed": 6, "mirostat": 2},
}


def stories(grammars, name, drafter=None, **asked):
    harness = world(grammars, drafter)
    for place in range(3):
        harness.submit(f"r{place}", ids("say it")[place:], max_tokens=120, grammar=GRAMMARS[name], **asked)
        harness.submit(f"free{place}", ids("say it")[place:], max_tokens=20, **asked)
    found = run(harness)
    return {key: (s.tokens, s.logprobs, s.end) for key, s in found.items()}, harness


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        pytest.param(name, asked, marks=[] if i % 2 == j % 2 else pytest.mark.long)
        for i, name in enumerate(GRAMMARS)
        for j, asked in enumerate(ASKED)
    ],
)
def test_what_is_said_is_a_word_of_the_grammar_whoever_guesses(grammars, name, asked):
    asked = ASKED[asked]
    plain, _ = stories(grammars, name, **asked)
    for key, (tokens, _, end) in plain.items():
        if key[0].startswith("r"):
            assert end.reason == "stop", end
            assert fits(name, text_of(tokens)), text_of(tokens)
    texts = [ids("say it")[int(key[0][-1]) :] + tokens for key, (tokens, _, _) in plain.items()]
    guessed, harness = stories(grammars, name, Fickle(texts, 0.8), **asked)
    assert guessed == plain
    assert harness.engine.counters.accepted_tokens


def test_guesses_that_are_given_up_for_their_masks_change_no_token(grammars, monkeypatch):
    """Only the first mask of each sequence is there; the others are undefined."""
    plain, _ = stories(grammars, "schema", temperature=1.2, seed=1)
    texts = [ids("say it")[int(key[0][-1]) :] + tokens for key, (tokens, _, _) in plain.items()]
    cut, fill = [], bitmasks.fill_job

    def first_alone(job, limit_s):
        fill(job, limit_s)
        if job.drafts:
            job.masks[1:] = 0
            cut.append(job)
            raise DraftMaskError(1)

    monkeypatch.setattr(bitmasks, "fill_job", first_alone)
    monkeypatch.setattr(bitmasks, "get_batched_class", lambda job: None)
    guessed, _ = stories(grammars, "schema", Fickle(texts, 0.8), temperature=1.2, seed=1)
    assert cut
    assert guessed == plain


def test_tokens_without_a_choice_take_no_steps_of_their_own(grammars):
    harness = world(grammars)
    harness.submit(
        "a", ids("say it"), grammar=Grammar(kind="choice", source='["a very long sentence without any choice"]')
    )
    found = run(harness)["a", 0, 0]
    assert text_of(found.tokens) == "a very long sentence without any choice"
    assert harness.engine.counters.steps < len(found.tokens) / 2


@pytest.mark.parametrize("opened", [True, False])
def test_thoughts_are_free_and_the_grammar_begins_after_them(grammars, opened):
    thought = [*ids("hm, {no} "), UNTHINK]

    def script(tokens: list[int]) -> torch.Tensor:
        row = logits(tokens)
        said = tokens[3:]
        plan = thought if opened else [THINK, *thought]
        if len(said) < len(plan):
            row[plan[len(said)]] = 50.0
        return row

    after = MarkedSpan("<think>", "</think>", opened)
    asked = Grammar(kind="regex", source="[0-9]{4}", after=after, opening_token_ids=() if opened else ((THINK,),))
    outcomes = []
    for drafter in (None, Fickle([], 1.0)):
        harness = world(grammars, drafter, ScriptedRunner(VOCAB, script, 512))
        harness.submit("a", ids("abc"), grammar=asked, temperature=1.0, seed=1, max_tokens=60)
        outcomes.append(run(harness)["a", 0, 0])
    assert outcomes[0].tokens == outcomes[1].tokens
    text = text_of(outcomes[0].tokens)
    assert re.fullmatch(r"(<think>)?hm, \{no\} </think>[0-9]{4}", text), text
    assert outcomes[0].end.reason == "stop"


@pytest.mark.parametrize("closes", [True, False])
def test_a_grammar_may_begin_with_a_token_within_the_thought(grammars, closes):
    """As a tool call's marker does. The free part ends there, or at its closing marker, whatever comes first."""
    plan = [*ids("hm "), UNTHINK] if closes else [*ids("hm "), THINK]

    def script(tokens: list[int]) -> torch.Tensor:
        row, said = logits(tokens), tokens[3:]
        if len(said) < len(plan):
            row[plan[len(said)]] = 50.0
        return row

    span = MarkedSpan("<thought>", "</think>", opened=True)
    asked = Grammar(kind="lark", source=f"start: <[{THINK}]> /[0-9]{{4}}/", after=span, entry_token_ids=(THINK,))
    outcomes = []
    for drafter in (None, Fickle([], 1.0)):
        harness = world(grammars, drafter, ScriptedRunner(VOCAB, script, 512))
        harness.submit("a", ids("abc"), grammar=asked, temperature=1.0, seed=1, max_tokens=60)
        outcomes.append(run(harness)["a", 0, 0])
    assert outcomes[0].tokens == outcomes[1].tokens
    tokens = outcomes[0].tokens
    assert list(tokens[: len(plan)]) == plan
    rest = tokens[len(plan) + closes :]
    assert tokens[len(plan) - (not closes)] == THINK
    assert re.fullmatch("[0-9]{4}", text_of(rest)), text_of(tokens)
    assert outcomes[0].end.reason == "stop"


def test_a_model_that_does_not_think_is_ruled_from_the_start(grammars):
    harness = world(grammars)
    after = MarkedSpan("<think>", "</think>")
    harness.submit(
        "a", ids("abc"), grammar=Grammar(kind="regex", source="[0-9]{4}", after=after, opening_token_ids=((THINK,),))
    )
    found = run(harness)["a", 0, 0]
    assert re.fullmatch("[0-9]{4}", text_of(found.tokens))


@pytest.mark.few(1)
@pytest.mark.parametrize("room", [30, 45, 60, 90])
def test_closed_in_time(grammars, room):
    asked = Grammar(kind="json_schema", source=json.dumps({"type": "array", "items": SCHEMA}), close_in_time=True)
    for drafter in (None, Fickle([], 1.0)):
        harness = world(grammars, drafter)
        for seed in range(4):
            harness.submit(f"a{seed}", ids("abc"), grammar=asked, temperature=1.0, seed=seed, max_tokens=room)
        for story in run(harness).values():
            json.loads(text_of(story.tokens))
            assert len(story.tokens) <= room


@pytest.mark.long
def test_a_search_that_takes_many_steps_finds_the_same(grammars, monkeypatch):
    """With no time at all each step looks at one place per sequence; others go on meanwhile."""
    asked = Grammar(kind="json_schema", source=json.dumps({"type": "array", "items": SCHEMA}), close_in_time=True)

    def told(seconds: float) -> tuple[dict, int]:
        monkeypatch.setattr(appending, "SEARCH_S", seconds)
        harness = world(grammars)
        for seed in range(2):
            harness.submit(f"a{seed}", ids("abc"), grammar=asked, temperature=1.0, seed=seed, max_tokens=45)
        harness.submit("plain", ids("abc"), temperature=1.0, seed=7, max_tokens=45, ignore_eos=True)
        stories = run(harness)
        return {name: story.tokens for name, story in stories.items()}, harness.engine.counters.steps

    whole, quick = told(60.0)
    pieces, steps = told(0.0)
    assert pieces == whole
    assert steps > quick + 10


def test_a_banned_string_backs_the_grammar_up(grammars):
    harness = world(grammars)
    harness.submit(
        "a", ids("abc"), grammar=GRAMMARS["regex"], temperature=1.0, seed=1, banned_strings=("ab", "b-", "7")
    )
    text = text_of(run(harness)["a", 0, 0].tokens)
    assert fits("regex", text)
    assert not any(word in text for word in ("ab", "b-", "7"))


@pytest.mark.parametrize("field", ["banned_strings", "banned_regex"])
def test_a_grammar_that_asks_for_what_is_banned_ends_with_a_reason(grammars, field):
    harness = world(grammars)
    harness.submit(
        "bad", ids("abc"), grammar=GRAMMARS["choice"], temperature=1.0, seed=1, n=2, **{field: ("ye", "no", "p")}
    )
    harness.submit("good", ids("abc"), grammar=GRAMMARS["choice"], temperature=1.0, seed=1, **{field: ("yes", "no")})
    found = run(harness)
    for index in range(2):
        end = found["bad", 0, index].end
        assert (end.reason, end.cause) == ("abort", field)
    assert text_of(found["good", 0, 0].tokens) == "perhaps"


@pytest.mark.disturbs
def test_bad_grammars_fail_alone(grammars):
    harness = world(grammars)
    harness.submit("bad", ids("abc"), grammar=Grammar(kind="regex", source="[0-9"))
    harness.submit("worse", ids("abc"), grammar=Grammar(kind="json_schema", source="{"), n=2)
    harness.submit("good", ids("abc"), grammar=GRAMMARS["choice"])
    harness.submit("free", ids("abc"), max_tokens=10)
    found = run(harness)
    for key, story in found.items():
        if key[0] in ("bad", "worse"):
            assert isinstance(story.end, Failed)
            assert story.end.param == "grammar"
    assert text_of(found["good", 0, 0].tokens) in ("yes", "no", "perhaps")
    assert len(found) == 5


@pytest.mark.disturbs
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "asked",
    [
        {"grammar": Grammar(kind="choice", source='["y\u00e9"]')},  # the vocabulary can't spell it
        {"grammar": GRAMMARS["choice"], "forced_token_ids": tuple(ids("yx"))},
        {"grammar": Grammar(kind="ebnf", source="root ::= root")},
    ],
)
def test_a_grammar_that_fails_on_the_way_fails_alone(grammars, asked, n):
    harness = world(grammars)
    harness.submit("bad", ids("abc"), n=n, temperature=1.0, **asked)
    harness.submit("free", ids("abc"), max_tokens=10, temperature=0.0)
    found = run(harness)
    assert all(isinstance(story.end, Failed) for key, story in found.items() if key[0] == "bad")
    assert all(story.end.code != "engine_error" for key, story in found.items() if key[0] == "bad")
    assert found["free", 0, 0].end.reason in ("stop", "length")


@pytest.mark.parametrize("banned", ['"x', "now", "baa"])
def test_what_was_held_back_is_there_at_the_end_of_the_grammar(grammars, banned):
    for seed in range(6):
        harness = world(grammars)
        asked = Grammar(kind="regex", source='[ab]{3}"(no)?')
        harness.submit("a", ids("abc"), grammar=asked, temperature=1.0, seed=seed, banned_strings=(banned,))
        text = text_of(run(harness)["a", 0, 0].tokens)
        assert re.fullmatch('[ab]{3}"(no)?', text), text


def test_a_way_out_that_is_banned_is_taken_once(grammars):
    asked = Grammar(kind="json_schema", source=json.dumps({"type": "array", "items": SCHEMA}), close_in_time=True)
    for seed in range(3):
        harness = world(grammars)
        harness.submit(
            "a", ids("abc"), grammar=asked, temperature=1.0, seed=seed, max_tokens=40, banned_strings=("}", "ok")
        )
        run(harness)
        assert harness.engine.counters.rewinds < 900


def test_a_thought_does_not_end_the_output(grammars):
    after = MarkedSpan("<think>", "</think>", True)
    harness = world(grammars)
    asked = Grammar(kind="regex", source="[0-9]{4}", after=after)
    harness.submit(
        "a", ids("abc"), grammar=asked, temperature=1.0, seed=1, max_tokens=80, logit_bias={EOS: 100.0, UNTHINK: -100.0}
    )
    found = run(harness)["a", 0, 0]
    assert EOS not in found.tokens
    assert found.end.reason == "length"


def test_long_texts_without_a_choice_come_in_pieces(grammars):
    harness = world(grammars)
    harness.submit("a", ids("abc"), grammar=Grammar(kind="regex", source="a(b{150})c"))
    assert text_of(run(harness)["a", 0, 0].tokens) == "a" + 150 * "b" + "c"
    counters = harness.engine.counters
    assert counters.forced_drafted > 100
    assert counters.steps >= counters.forced_drafted / MAX_DRAFTS
    assert counters.make_stats().drafted_tokens == 0, "forced tokens are no guesses"


@pytest.mark.disturbs
def test_what_must_be_said_against_the_grammar_fails(grammars):
    harness = world(grammars)
    harness.submit("a", ids("abc"), grammar=GRAMMARS["choice"], forced_token_ids=tuple(ids("maybe")))
    story = run(harness)["a", 0, 0]
    assert isinstance(story.end, Failed)
    assert "grammar" in story.end.message


@pytest.mark.disturbs
def test_aborted_while_it_compiles(grammars):
    harness = world(grammars)
    harness.submit("a", ids("abc"), grammar=Grammar(kind="regex", source="[a-c]{3,17}x"))
    harness.engine.abort(Abort("a", 0))
    run(harness)
    assert len(harness.engine.lifecycle.free_slots) == 8


def test_without_a_tokenizer_it_is_refused():
    harness = Harness()
    harness.submit("a", [1, 2], grammar=GRAMMARS["choice"])
    assert harness.run()["a", 0, 0].end.param == "grammar"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"allowed_token_ids": (EOS,), "min_tokens": 3}, ("allowed_token_ids", "min_tokens")),
        ({"allowed_token_ids": (5,), "no_repeat_ngram_size": 1}, ("allowed_token_ids", "no_repeat_ngram_size")),
    ],
)
def test_fields_that_leave_no_token_are_the_requests_own_fault(fields, named):
    harness = Harness(ScriptedRunner(VOCAB, lambda tokens: [0.0] * VOCAB, 64), eos=EOS)
    harness.submit("a", [1, 2], max_tokens=6, **fields)
    harness.submit("b", [3], max_tokens=6)
    stories = harness.run()
    end = stories["a", 0, 0].end
    assert (end.code, end.param) == ("no_token_left", named[0])
    assert all(name in end.message for name in named)
    assert isinstance(stories["b", 0, 0].end, Finished)


def test_looking_ahead_has_one_limit_for_all_of_a_step(grammars, monkeypatch):
    harness, limits = world(grammars), []
    monkeypatch.setattr(
        harness.engine.speculator, "_collect_forced", lambda sequence, count, until: limits.append(until) or []
    )
    asking = SimpleNamespace(tokens_left=9, waits_for_mask=False, constraint=object(), prediction=None)
    assert not harness.engine.speculator.expects_forced([asking] * 5)
    assert len(limits) == 5
    assert len(set(limits)) == 1


def ended_by(
    prompt: list[int], stops: tuple[int, ...], min_tokens: int, ignore_eos: bool
) -> tuple[list[int], int | None]:
    """What greedy decoding says under [a-c]{2,9}, and the token that ends it; None: the grammar allows no more."""
    said: list[int] = []
    while len(said) < 9:
        allowed = ids("abc")
        if len(said) >= 2 and len(said) >= min_tokens:
            allowed += [*stops, *(() if ignore_eos else (EOS,))]
        row = logits([*prompt, *said])
        token = max(allowed, key=lambda one: (float(row[one]), -one))
        complete = len(said) >= 2
        said.append(token)
        if token == EOS or (token in stops and complete and len(said) > min_tokens):
            return said, token
    return said, None


@pytest.mark.few(3)
@pytest.mark.parametrize("stops", [(), tuple(ids("b")), (*ids("bc"), THINK), (THINK, UNTHINK)])
@pytest.mark.parametrize("min_tokens", [0, 2, 5, 20])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_eos_and_stop_ids_end_the_text_only_where_the_grammar_may_end(grammars, stops, min_tokens, ignore_eos):
    prompts = [ids(text) for text in ("say it", "abc", "x", "ba", "to be")]
    fields = {"stop_token_ids": stops, "min_tokens": min_tokens, "ignore_eos": ignore_eos}
    wanted = [ended_by(prompt, stops, min_tokens, ignore_eos) for prompt in prompts]
    for drafter in (None, Fickle([prompt + said for prompt, (said, _) in zip(prompts, wanted, strict=True)], 0.8)):
        harness = world(grammars, drafter)
        for place, prompt in enumerate(prompts):
            asked = Grammar(kind="regex", source="[a-c]{2,9}")
            harness.submit(f"r{place}", prompt, max_tokens=40, grammar=asked, **fields)
        for (name, _, _), story in run(harness).items():
            assert (story.tokens, story.end.stop_token_id) == wanted[int(name[1:])]
            assert story.end.reason == "stop"


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("opens", [True, False])
def test_a_marker_of_several_tokens_opens_a_thought_or_turns_out_to_be_text(grammars, drafts, opens):
    """The grammar allows the marker's first token, too."""
    plan = ids("[[hm]]1234" if opens else "[abc")

    def script(tokens: list[int]) -> torch.Tensor:
        row, said = logits(tokens), tokens[3:]
        if len(said) < len(plan):
            row[plan[len(said)]] = 50.0
        return row

    after = MarkedSpan("[[", "]]")
    asked = Grammar(kind="regex", source=r"\[[a-z]{3}|[0-9]{4}", after=after, opening_token_ids=(tuple(ids("[[")),))
    drafter = Fickle([ids("abc") + plan], 0.8) if drafts else None
    harness = world(grammars, drafter, ScriptedRunner(VOCAB, script, 512))
    harness.submit("a", ids("abc"), grammar=asked, max_tokens=60)
    story = run(harness)["a", 0, 0]
    assert (story.tokens, story.end.reason) == (plan, "stop")
