"""Strict and forced calls may hold the tags of their own format in texts: a grammar takes such a text token by token,
and the parser reads the same text back. No grammar allows a text that the parser would read differently."""

from __future__ import annotations

import random
from typing import Any

import pytest

from api.test_call_laws import read_both
from api.test_forced_tools import EOS, MARKS, script_of, tool, vocabulary
from tailrace.errors import ParameterError
from tailrace.grammar.llguidance import GrammarCompiler
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.request.options import Grammar
from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.text.tool_parsers.grammar import forced_grammar
from text.test_tags_in_values import tags, values
from tool_examples import ALWAYS, UNQUOTED, WRITERS, plain

TEXT = {"type": "string"}
ASKED = [
    tool(name, {"properties": {"s": TEXT, "t": TEXT, "n": {"type": "integer"}}, "required": ["s"]})
    for name in ("add", "other")
]
HOW = ("text", "token", "special")
FORMS = [form for form in UNQUOTED if form not in ALWAYS]


def pieces_of(form: str) -> list[str]:
    one = tags(form)
    return [*one.values(), "\n", " ", "a", "<", "</", ">", ",", "}", "x y", "call:", '"', "é", *values(form)[:12]]


def calls_of(rng: random.Random, form: str) -> list[tuple[str, Any]]:
    def text() -> str:
        return "".join(rng.choices(pieces_of(form), k=rng.randint(0, 5)))

    def arguments() -> dict[str, Any]:
        found: dict[str, Any] = {"s": text()}
        if rng.random() < 0.5:
            found["t"] = text()
        return found | ({"n": 5} if rng.random() < 0.5 else {})

    return [(rng.choice(["add", "other"]), arguments()) for _ in range(rng.randint(1, 2))]


@pytest.mark.few(5)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("form", FORMS)
def test_what_a_grammar_takes_is_read_back(form, how):
    """Whatever the tags in a value: the grammar takes the call, and then the parser reads the same call; or the grammar
    does not take it."""
    words = vocabulary(form, how)
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, how, asked=ASKED))
    taken = tagged = 0
    for seed in range(60):
        rng = random.Random(f"{form} {seed}")
        calls = calls_of(rng, form)
        text = WRITERS[form](None, calls, plain)
        if not words.accepts(source, text):
            continue
        assert read_both(rng, form, text, ASKED) == (calls, ""), text
        taken += 1
        tagged += any(mark in str(value) for _, one in calls for value in one.values() for mark in tags(form).values())
    assert taken > (10 if how == "text" else 1)
    assert tagged > (5 if how == "text" else -1)


@pytest.mark.few(8)
@pytest.mark.parametrize("form", FORMS)
def test_texts_with_tags_can_be_forced(form):
    """Texts such as a coding agent writes when it edits a parser."""
    words = vocabulary(form, "text")
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=ASKED))
    one = tags(form)
    for value in (
        f'x = "{one["close"]}"',
        f"{one['close']}.",
        f"a {one['closing']} b",
        f"{one['end']} b",
        f"<p>{one['close']}\n</p>{one['end']}{one['closing']}",
        one["opening"],
        one["head"],
    ):
        for arguments in ({"s": value}, {"s": "x", "t": value}, {"s": value, "t": value, "n": 5}):
            text = WRITERS[form](None, [("add", arguments), ("other", arguments)], plain)
            assert words.accepts(source, text), text


@pytest.mark.parametrize("form", [form for form in FORMS if MARKS[form]])
def test_a_marker_that_is_a_special_token_may_be_spelled_in_a_text(form):
    """By other tokens: a special token is never text."""
    words = vocabulary(form, "special")
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, "special", asked=ASKED))
    import llguidance

    from tailrace.grammar.llguidance_sources import rewrite_lark

    mark = MARKS[form][-1]
    text = WRITERS[form](None, [("add", {"s": "@"})], plain)
    before, _, after = text.partition("@")
    ids = words.tokenizer.encode(before, add_special_tokens=False)
    ids += list(f"see {mark} here".encode())
    ids += words.tokenizer.encode(after, add_special_tokens=False)
    matcher = llguidance.LLMatcher(words.ll, rewrite_lark(source))
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert read_both(random.Random(1), form, words.text(ids), ASKED) == ([("add", {"s": f"see {mark} here"})], "")


@pytest.mark.few(6)
@pytest.mark.parametrize("form", UNQUOTED)
@pytest.mark.parametrize("length", [1, 400, 990])
def test_a_text_with_a_bound_can_be_forced_to_its_end(form: str, length: int):
    """Within the limits that a served grammar has, whatever part of the bound the text takes."""
    schema = {"properties": {"a": {"type": "string", "maxLength": 1000}}, "required": ["a"]}
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, asked=[tool("f", schema)], many=False))
    words = vocabulary(form, "text")
    compiler = GrammarCompiler(Vocabulary.of(None, words.spelt, frozenset(), [EOS], len(words.spelt)))
    matcher = compiler.load(compiler.compile(Grammar(kind="lark", source=source))).matcher()
    text = ("ab <b>c</b>\n</p é " * 60)[:length].strip()
    for id in words.tokenizer.encode(WRITERS[form](None, [("f", {"a": text})], plain), add_special_tokens=False):
        assert matcher.get_allowed()[id]
        assert matcher.accept(id)
    assert matcher.complete


def test_bounds_of_texts_that_are_too_much_are_refused():
    for form in UNQUOTED:
        for key in ("minLength", "maxLength"):
            asked = [tool("f", {"properties": {"a": {"type": "string", key: 1001}}})]
            with pytest.raises(ParameterError, match=rf"tools: f\.a: {key} 1001, more than 1000, can't be enforced"):
                forced_grammar(TOOL_FORMATS[form], script_of(form, asked=asked))
