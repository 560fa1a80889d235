"""A thought is closed when its budget is used up: at the right token, whoever opened it, and never twice."""

from __future__ import annotations

import msgspec
import pytest

from tailrace.engine.checks.thinking_budget import ThinkingBudgetCheck
from tailrace.engine.token_bytes import TokenBytes, TokenText
from tailrace.engine.validation import check_served
from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.request.options import MarkedSpan, ThinkingBudget
from text.vocabularies import byte_level

TOKENIZER = byte_level()
TOKEN_BYTES = TokenBytes.of(TOKENIZER, TOKENIZER.vocab_size)


def ids(text: str) -> list[int]:
    """One token per character."""
    return [token for char in text for token in TOKENIZER.encode(char, add_special_tokens=False)]


CLOSING = tuple(ids("</t>"))


def played(
    script: str, budget: int, opened: bool = False, calls: str = "", within: str = "end", also: tuple = ()
) -> str:
    """What comes out if the model says `script`, goes on with it after what is forced, and is never asked twice."""
    once = bool(calls) and within == "end"
    budgeted = ThinkingBudget(
        max_tokens=budget,
        span=MarkedSpan("<t>", "</t>", opened, once, ("<tool_call>",) if calls else ()),
        closing_token_ids=CLOSING,
        tool_format=calls,
        calls=within,
        also=also,
    )
    watch = ThinkingBudgetCheck(budgeted, TokenText(TOKEN_BYTES))
    forced, said = list(watch.begin()), ""
    wanted = ids(script)
    while wanted or forced:
        token = forced.pop(0) if forced else wanted.pop(0)
        said += TOKENIZER.text_of(token)
        watch.read(token)
        more = watch.close()
        assert not (more and forced), "asked again while it is being closed"
        forced += more
    return said


@pytest.mark.parametrize(
    ("script", "budget", "opened", "out"),
    [
        ("<t>abcdef", 3, False, "<t>abc</t>def"),
        ("abcdef", 3, True, "abc</t>def"),
        ("abcdef", 0, True, "</t>abcdef"),
        ("<t>abcdef", 0, False, "<t></t>abcdef"),
        ("abcdef", 3, False, "abcdef"),  # no thought
        ("<t>ab</t>cdef", 3, False, "<t>ab</t>cdef"),  # it closed in time
        ("<t>abc</t>def", 3, False, "<t>abc</t></t>def"),  # the model was late by one
        ("<t>ab</t>def", 3, False, "<t>ab</t>def"),  # the marker has begun when the budget ends: it may finish
        ("<t>ab<<<<<<<", 3, False, "<t>ab<<<<</t><<<"),  # but not for ever
        ("<t>ab</t><t>abcd", 3, False, "<t>ab</t><t>abc</t>d"),  # each thought has its own
    ],
)
def test_the_budget(script, budget, opened, out):
    assert played(script, budget, opened) == out


HERMES = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("script", "budget", "out"),
    [
        (f"ab{HERMES}cdef", 3, f"ab{HERMES}cdef"),  # the call ends the thought, though it takes longer than the budget
        (f"ab{HERMES}<t>cdef", 3, f"ab{HERMES}<t>cdef"),  # and there is one thought
        ("a<tool_call>bcdef", 3, "a<tool_call>b</t>cdef"),  # the thought only names the marker
        ('ab<tool_call>{"name": 5}</t>c', 3, 'ab<tool_call>{"name": 5</t>}</t>c'),  # this is none
    ],
)
def test_a_call_in_a_thought(script, budget, out):
    assert played(script, budget, opened=True, calls="hermes") == out


@pytest.mark.parametrize(
    ("script", "budget", "out"),
    [
        (f"ab{HERMES}cdef", 3, f"ab{HERMES}c</t>def"),  # the thought goes on, and the call is not counted
        (f"{HERMES}a{HERMES}bcdef", 3, f"{HERMES}a{HERMES}bc</t>def"),
        (f"{HERMES}<a</t>c<t>defgh", 3, f"{HERMES}<a</t>c<t>def</t>gh"),  # each thought has its own
        ("a<tool_call>bcdef", 3, "a<tool_call>b</t>cdef"),  # the thought only names the marker
    ],
)
def test_a_call_after_which_the_thought_goes_on(script, budget, out):
    assert played(script, budget, True, "hermes", within="inside") == out


def test_other_spellings_of_the_markers():
    assert played("<u>abcdef", 3) == "<u>abcdef"
    assert played("<u>abcdef", 3, also=(("<u>", "</u>"),)) == "<u>abc</t>def"
    assert played("<u>ab</u>cdef", 3, also=(("<u>", "</u>"),)) == "<u>ab</u>cdef"


def test_an_unknown_tool_format_is_refused():
    thinking = ThinkingBudget(max_tokens=1, span=MarkedSpan("<t>", "</t>"), closing_token_ids=CLOSING, tool_format="x")
    with pytest.raises(ParameterError, match='no tool format "x"; there are'):
        check_served(SamplingParams(thinking=thinking), None, TOKEN_BYTES)
    check_served(SamplingParams(thinking=msgspec.structs.replace(thinking, tool_format="hermes")), None, TOKEN_BYTES)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": -1, "span": MarkedSpan("<t>", "</t>"), "closing_token_ids": CLOSING},
        {"max_tokens": 1, "span": MarkedSpan("<t>", None), "closing_token_ids": CLOSING},
        {"max_tokens": 1, "span": MarkedSpan("<t>", "</t>"), "closing_token_ids": ()},
    ],
)
def test_what_cannot_be(fields):
    with pytest.raises(ParameterError, match="thinking_token_budget"):
        ThinkingBudget(**fields)
