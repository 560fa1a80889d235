"""Grammars of a free choice, as with tool_choice "auto" and strict tools: whatever a model writes in its own way fits,
and a call that does not fit is refused at once."""

from __future__ import annotations

import random
import re
from typing import Any

import llguidance
import pytest

from api.test_call_laws import HOW, read_both, without_frame
from api.test_forced_tools import MARKS, Vocabulary, script_of, tool, vocabulary
from tailrace.grammar.llguidance_sources import rewrite_lark
from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.text.tool_parsers.grammar import optional_grammar
from tool_examples import written

FORMS = list(TOOL_FORMATS)
FRAMED = [form for form in FORMS if TOOL_FORMATS[form].frame]
WAYS = [(form, how) for form in FORMS for how in HOW if MARKS[form] or how == "text"]
SAID = ("", "Hello.", "Wait: {x} [y] <b>\n", "It goes to the user, é", "I call paint", "user")
WALL = {
    "type": "object",
    "properties": {
        "where": {"type": "string"},
        "coats": {"type": "integer"},
        "rooms": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["coats"],
    "additionalProperties": False,
}
ASKED = [tool("paint", WALL), tool("user_2", WALL), tool("use", {"type": "object", "properties": {}})]


def random_calls(rng: random.Random, form: str) -> list[tuple[str, dict[str, Any]]]:
    most = 1 if form == "granite_20b" else 3  # between two calls, it writes more than one kind of white space
    values = {
        "where": rng.choice(["the wall", "é", "5", "a b"]),
        "coats": rng.randint(-9, 99),
        "rooms": [1] * rng.randint(0, 2),
    }
    painted = {key: value for key, value in values.items() if key == "coats" or rng.random() < 0.7}
    choices = [("paint", painted), ("user_2", painted), ("use", {})]
    return [rng.choice(choices) for _ in range(rng.randint(1, most))]


def answer_of(rng: random.Random, form: str, how: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """An answer as such a model writes it: with calls, or with a text alone."""
    said, call = rng.choice(SAID), written(form, calls) if calls else ""
    if form not in FRAMED or how == "text":
        return call if calls and TOOL_FORMATS[form].bare else said + call
    thoughts = [rng.choice(SAID) for _ in range(rng.randint(0, 2))]
    if form == "kimi_k3":
        text = f"<|open|>response<|sep|>{said}<|close|>response<|sep|>"
        return f"{text}{call}<|close|>message<|sep|>"
    if form == "muse":
        parts = [f" to=self<|message|>{thought}<|eom|>" for thought in thoughts]
        parts += [f" to={'commentary' if calls else 'user'}<|message|>{said}<|eom|>"] if said or not calls else []
        return "<|start|>assistant".join([*parts, *([call + "<|eot|>"] if calls else [])])
    parts = [f"<|content_thinking|>{thought}<|end_message|>" for thought in thoughts]
    parts += [f"<|content_text|>{said}<|end_message|>"] if said or not calls else []
    name = rng.choice(("", calls[0][0])) if calls and parts else ""
    return "<|message_model|>".join([*parts, *([name + call] if calls else [])]) + "<|content_model_end_sampling|>"


def accepted(words: Vocabulary, source: str, text: str) -> str:
    """The longest beginning of the text that the grammar accepts."""
    ids = words.tokenizer.encode(text, add_special_tokens=False)
    matcher = llguidance.LLMatcher(words.ll, rewrite_lark(source))
    taken = matcher.try_consume_tokens(ids)
    assert not matcher.is_error(), matcher.get_error()
    return b"".join(words.spelt[id] for id in ids[:taken]).decode(errors="ignore")


@pytest.mark.few(7)
@pytest.mark.parametrize(("form", "how"), WAYS)
def test_an_answer_as_a_model_writes_it_fits_and_is_read_back(form, how):
    words = vocabulary(form, how)
    source = optional_grammar(TOOL_FORMATS[form], script_of(form, how, ASKED))
    for seed in range(40):
        rng = random.Random(f"{form} {how} {seed}")
        calls = random_calls(rng, form) if seed % 4 else []
        text = answer_of(rng, form, how, calls)
        assert words.accepts(source, text), text
        found, besides = read_both(rng, form, text, ASKED)
        assert found == calls, text
        if not calls:
            assert besides == without_frame(form, text)


@pytest.mark.parametrize("how", ["token", "special"])
@pytest.mark.parametrize("form", FRAMED)
def test_no_text_spells_a_marker_of_calls(form, how):
    """The parser would take the text behind the marker for a call, whatever spells the marker."""
    words, table = vocabulary(form, how), TOOL_FORMATS[form]
    source = optional_grammar(table, script_of(form, how, ASKED))
    assert table.frame is not None
    for marker in ("", *table.frame.texts):
        for opening, _ in table.markers:
            if opening == " to=":
                continue  # a text, unless the token behind the name follows
            begun = words.tokenizer.encode(marker, add_special_tokens=False)
            matcher = llguidance.LLMatcher(words.ll, rewrite_lark(source))
            assert matcher.try_consume_tokens([*begun, *b"Hi"]) == len(begun) + 2
            assert matcher.try_consume_tokens(list(opening.encode())) < len(opening), (marker, opening)


@pytest.mark.few(7)
@pytest.mark.parametrize(("form", "how"), WAYS)
def test_a_call_that_does_not_fit_is_refused_at_its_first_wrong_token(form, how):
    words = vocabulary(form, how)
    source = optional_grammar(TOOL_FORMATS[form], script_of(form, how, ASKED))
    for seed in range(20):
        rng = random.Random(f"{form} {how} {seed}")
        calls = random_calls(rng, form)
        state = rng.getstate()
        right = answer_of(rng, form, how, calls)
        name, arguments = calls[-1]
        wrong_calls = [(name.upper(), arguments)]
        if "coats" in arguments:
            wrong_calls.append((name, arguments | {"coats": "x"}))
        for wrong_call in wrong_calls:
            rng.setstate(state)
            wrong = answer_of(rng, form, how, [*calls[:-1], wrong_call])
            if len(calls) == 1 and wrong_call[0] != name and form == "inkling":
                wrong = re.sub(rf">{wrong_call[0]}<", f">{name}<", wrong)  # the header's name is refused before
            common = next(i for i in range(len(wrong)) if wrong[: i + 1] != right[: i + 1])
            # "[USE" may be a text. "[USE(" is a call.
            until = wrong.index("(") if form == "pythonic" and wrong[common - 1] == "[" else common
            assert accepted(words, source, wrong) == wrong[:until], wrong
