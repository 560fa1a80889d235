"""Harmony's messages become thoughts, content and calls: under any chunking, with no mark in what comes out, and as
the vendor's own parser has them."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.test_forced_tools import Vocabulary
from examples import examples
from tailrace.text import harmony
from tailrace.text.harmony import HarmonySplitter
from tailrace.text.reasoning import HARMONY_MARKS
from tailrace.text.splitter import ReasoningTokens
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter
from tailrace.text.tool_parsers.harmony import harmony_grammar

PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
Told = tuple[str, str, list[tuple[str, str]]]


def split(pieces: list[str], prompt: str = PROMPT, **options: bool) -> Told:
    """The thoughts, the content, and the calls with their arguments."""
    splitter = HarmonySplitter(prompt, **options)
    segments = [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush()
    calls: list[list[str]] = []
    for call in [segment.call for segment in segments if segment.call is not None]:
        if call.name:
            calls.append([call.name, ""])
        calls[call.place][1] += call.arguments
    thought, content = ("".join(s.text for s in segments if s.channel == name) for name in ("reasoning", "content"))
    whole = "".join(pieces)
    assert "".join(whole[begin:end] for begin, end in splitter.thoughts) == thought
    assert splitter.calls == len(calls)
    return thought, content, [(name, arguments) for name, arguments in calls]


ANALYSIS = "<|channel|>analysis<|message|>hm<|end|>"
ASSISTANT = "<|start|>assistant"
CASES: dict[str, Told] = {
    f"{ANALYSIS}{ASSISTANT}<|channel|>final<|message|>Hi<|return|>": ("hm", "Hi", []),
    "<|channel|>final<|message|>Hi": ("", "Hi", []),
    # calls: the recipient behind the channel or before it, on either channel, with and without a constraint
    f'{ANALYSIS}{ASSISTANT}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"a": 1}}<|call|>': (
        "hm",
        "",
        [("f", '{"a": 1}')],
    ),
    f'{ANALYSIS}{ASSISTANT} to=functions.f<|channel|>commentary json<|message|>{{"a": 1}}': (
        "hm",
        "",
        [("f", '{"a": 1}')],
    ),
    # what is no object is no call
    '<|channel|>analysis to=python code<|message|>print("x")<|call|>': ('print("x")', "", []),
    "<|channel|>commentary to=functions.f<|message|>Hello<|call|>": ("", "Hello", []),
    # usual mistakes of JSON
    **{
        f"<|channel|>commentary to=functions.f<|message|>{written}<|call|>": ("", "", [("f", read)])
        for written, read in (
            ('{"a": 1,}', '{"a": 1}'),
            ("{'a': 1}", '{"a": 1}'),
            ('{"a": [1', '{"a": [1]}'),
            ('{"a": 1', '{"a": 1}'),
            ('{"a": 1,', '{"a": 1}'),
            ('{"a": 1}}', '{"a": 1}'),
            ('"{\\"a\\": 1}"', '{"a": 1}'),
            ("null", "{}"),
        )
    },
    "<|channel|>commentary to=functions.f<|message|><|call|>": ("", "", [("f", "{}")]),
    # a preamble, then several calls
    "<|channel|>commentary<|message|>I look.<|end|>"
    + "".join(f"{ASSISTANT}<|channel|>commentary to=functions.{n}<|message|>{{}}<|call|>" for n in "fg"): (
        "",
        "I look.",
        [("f", "{}"), ("g", "{}")],
    ),
    # what models leave out
    "<|channel|>analysis<|message|>hm<|channel|>final<|message|>Hi": ("hm", "Hi", []),
    f"<|channel|>analysis<|message|>hm{ASSISTANT}<|channel|>final<|message|>Hi": ("hm", "Hi", []),
    f"{ANALYSIS}assistant<|channel|>final<|message|>Hi": ("hm", "Hi", []),
    f"{ANALYSIS}Hi": ("hm", "Hi", []),
    "<|message|>Hi": ("", "Hi", []),
    "Hello there": ("", "Hello there", []),
    "user": ("", "user", []),
    "to the moon": ("", "to the moon", []),
    "<|channel|>analysis hm.\nSo<|end|>x": (" hm.\nSo", "x", []),
    "<|channel|>final Hi!": ("", " Hi!", []),
    "<|channel|>comm": ("", "", []),
    "": ("", "", []),
}


@pytest.mark.parametrize("text", CASES)
def test_what_goes_where(text):
    assert split([text]) == split(list(text)) == CASES[text]


def test_what_a_request_may_ask():
    text = f"{ANALYSIS}{ASSISTANT}<|channel|>commentary to=functions.f<|message|>{{}}<|call|>"
    assert split([text], calls=False) == ("hm", "{}", [])
    assert split([text], separate=False) == ("", "<|channel|>analysis<|message|>hm<|end|>", [("f", "{}")])
    # the answer goes on with a message of the prompt
    for prompt, text, told in (
        (f"{PROMPT}<|channel|>final<|message|>The", " end<|return|>", ("", " end", [])),
        (f"{PROMPT}<|channel|>analysis<|message|>The", " end<|end|>", (" end", "", [])),
        (f"{PROMPT}<|channel|>", "analysis<|message|>hm", ("hm", "", [])),
        ("no mark", "Hi", ("", "Hi", [])),
    ):
        assert split([text], prompt) == split(list(text), prompt) == told


@pytest.mark.parametrize(("written", "cut"), [('{"a": 1}', False), ('{"a": ', True), ("", True)])
def test_a_call_that_ends_with_the_text_is_whole_if_its_arguments_are(written, cut):
    """The mark that ends a call ends the answer as well, and is not part of its text."""
    splitter = HarmonySplitter(PROMPT)
    splitter.feed(f"<|channel|>commentary to=functions.f<|message|>{written}")
    splitter.flush()
    assert (splitter.cut_call, splitter.called) == (cut, not cut)


FRAGMENTS = ("<", "<|", "|>", "<|chan")
PARTS = st.sampled_from(
    [
        *HARMONY_MARKS,
        *HARMONY_MARKS,
        "analysis",
        "commentary",
        "final",
        "assistant",
        "user",
        " to=functions.f",
        " json",
        '{"a": 1}',
        "ж1",
        "é😀 ",
        "ü\n",
        " ",
        *FRAGMENTS,
    ]
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(PARTS, max_size=14), st.data(), st.booleans())
def test_broken_answers_say_the_same_in_any_chunks_and_lose_nothing(parts, data, calls):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    told = split(pieces, calls=calls)
    assert told == split([text], calls=calls) == split(list(text), calls=calls)
    thought, content, made = told
    said = thought + content + "".join(name + arguments for name, arguments in made)
    if not set(parts) & set(FRAGMENTS):  # else two of them may become neighbours and look like a mark
        assert not [mark for mark in HARMONY_MARKS if mark in said]
    assert sorted(re.findall("[жé😀ü]", said)) == sorted(re.findall("[жé😀ü]", text))


def test_a_mark_that_chunks_cut_would_be_seen(monkeypatch):
    """The planted fault: nothing is held back."""
    monkeypatch.setattr(harmony, "partial_marker", lambda text, mark: 0)
    text = next(iter(CASES))
    assert split(list(text)) != CASES[text]


def test_tokens_of_thoughts_are_counted():
    text = f"{ANALYSIS}{ASSISTANT}<|channel|>analysis<|message|>so<|end|>{ASSISTANT}<|channel|>final<|message|>Hi"
    for size in (1, 2, 5, 100):
        splitter = HarmonySplitter(PROMPT)
        counter = ReasoningTokens(splitter)
        counter.add(range(len(text)))  # a token per character
        for at in range(0, len(text), size):
            splitter.feed(text[at : at + size])
        splitter.flush()
        assert counter.count == len("hm") + len("so")


# ---- the grammar of answers


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CALL = ' to=functions.f <|constrain|>json<|message|>{"a": 1}'


@pytest.mark.parametrize("how", ["text", "special"])
def test_forced_and_optional_calls(how):
    words = Vocabulary(HARMONY_MARKS if how == "special" else (), how == "special", "".join(HARMONY_MARKS))
    write = lambda: GrammarWriter([Function("f", SCHEMA)], words.tokenizer)  # noqa: E731
    must, may, json_or_call = (
        harmony_grammar(write(), must, content) for must, content in ((True, None), (False, None), (False, SCHEMA))
    )
    called = f"<|channel|>commentary{CALL}"
    before = ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}'
    final = "<|channel|>final<|message|>"
    for thought in ("", f"{ANALYSIS}{ASSISTANT}"):
        for answer, wanted in (
            (called, (True, True, True)),
            (before, (True, True, True)),
            (f"<|channel|>commentary<|message|>I look.<|end|>{ASSISTANT}{called}", (True, True, True)),
            (f"{final}Hi", (False, True, False)),
            (f'{final}{{"a": 1}}', (False, True, True)),
            (called.replace("1", '"x"'), (False, False, False)),
            (called.replace("functions.f", "functions.g"), (False, False, False)),
            ("Hi", (False, False, False)),
        ):
            text = thought + answer
            assert tuple(words.accepts(source, text) for source in (must, may, json_or_call)) == wanted, text
            if wanted[0]:
                assert split([text])[2] == [("f", '{"a": 1}')]


# ---- the vendor's parser (pip install openai-harmony; TIKTOKEN_ENCODINGS_BASE: a folder with o200k_base.tiktoken)


def test_well_formed_answers_are_what_the_vendors_parser_says():
    vendor = pytest.importorskip("openai_harmony")
    try:
        encoding = vendor.load_harmony_encoding(vendor.HarmonyEncodingName.HARMONY_GPT_OSS)
    except vendor.HarmonyError:
        pytest.skip("the vendor's vocabulary is not here")
    rng = random.Random(17)
    for _ in range(300):
        messages = [random_message(rng) for _ in range(rng.randint(1, 4))]
        text = ASSISTANT.join(messages)
        parser = vendor.StreamableParser(encoding, vendor.Role.ASSISTANT)
        for token in encoding.encode(text, allowed_special="all"):
            parser.process(token)
        thought, content, calls = "", "", []
        for message in parser.messages:
            body = message.content[0].text if message.content else ""
            if message.recipient not in (None, "assistant"):
                calls.append((message.recipient.removeprefix("functions."), body or "{}"))
            elif message.channel == "analysis":
                thought += body
            else:
                content += body
        assert split([text]) == split(list(text)) == (thought, content, calls), text


def random_message(rng: random.Random) -> str:
    """A message as the model writes it, behind <|start|>assistant."""
    body = "".join(rng.choice(["a", " ", "\n", "é", "😀", "<", "|>", "final", "to="]) for _ in range(rng.randint(0, 9)))
    if rng.random() < 0.5:
        return f"<|channel|>{rng.choice(['analysis', 'commentary', 'final'])}<|message|>{body}<|end|>"
    name, channel = rng.choice(["functions.f", "functions.get_it", "python"]), rng.choice(["analysis", "commentary"])
    body = json.dumps({"x": body}, ensure_ascii=rng.random() < 0.5)
    kind = rng.choice(["", " json", " <|constrain|>json"])
    if rng.random() < 0.5:
        return f" to={name}<|channel|>{channel}{kind}<|message|>{body}<|call|>"
    return f"<|channel|>{channel} to={name}{kind}<|message|>{body}<|call|>"
