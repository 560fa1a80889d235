"""Texts of formats whose parameters stand between tags go out as they are written; what goes out is what the whole
text gives, in any chunks, and what the parser gave before texts were streamed."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.tool_parsers import TOOL_FORMATS, tool_schemas
from tailrace.text.tool_parsers.argument_stream import ArgumentText, choose_text_check
from tailrace.text.tool_parsers.resolve import Declared
from tailrace.text.tool_parsers.tag_sequences import Tags
from tool_examples import UNQUOTED, WRITERS, plain, written

GOLDEN = Path(__file__).parent / "golden_calls.json"
KINDS = {"s": "string", "t": ["string", "null"], "u": ["string", "integer", "array"], "i": "integer", "o": "object"}
PROPERTIES = {"n": {}} | {name: {"type": kind} for name, kind in KINDS.items()}
PARAMETERS = {"parameters": {"properties": PROPERTIES}}
ASKED = [{"type": "function", "function": {"name": name} | PARAMETERS} for name in ("add", "other")]
DECLARED = tool_schemas(ASKED)
FILE = "".join(f'<p class="x{i}">\n  "row" {i} \\ é 😀</p>\n\n' for i in range(40))[:1200]
Calls = list[tuple[str, str]]


def read(form: str, pieces: list[str], cut: bool = False) -> tuple[Calls, str, bool]:
    splitter = ChannelSplitter(None, TOOL_FORMATS[form], declared=DECLARED)
    segments = [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush(cut)
    calls: Calls = []
    for call in (segment.call for segment in segments if segment.call is not None):
        calls = [*calls, (call.name, "")] if call.name else calls
        calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    return calls, "".join(s.text for s in segments if s.channel == "content"), splitter.cut_call


def in_pieces(text: str, places: list[int]) -> list[str]:
    return [text[a:b] for a, b in pairwise([0, *sorted(places), len(text)])]


@pytest.mark.parametrize("form", UNQUOTED)
@pytest.mark.parametrize("key", ["s", "t", "u"])
def test_a_long_text_grows_as_it_is_written(form, key):
    text = written(form, [("add", {"i": 1, key: FILE, "n": 2})])
    begin, came, deltas = text.index(FILE), "", 0
    splitter = ChannelSplitter(None, TOOL_FORMATS[form], declared=DECLARED)
    for at in range(0, len(text), 4):
        parts = [segment.call.arguments for segment in splitter.feed(text[at : at + 4]) if segment.call is not None]
        deltas += bool("".join(parts))
        came += "".join(parts)
        if begin + 4 <= at < begin + len(FILE):  # only white space and what may be a tag is behind
            assert len(json.loads(came + '"}')[key]) > at - begin - 24
    came += "".join(segment.call.arguments for segment in splitter.flush() if segment.call is not None)
    assert deltas > 200
    assert json.loads(came) == {"i": 1, key: FILE, "n": 2}
    assert read(form, [text])[0] == [("add", came)]


def random_value(form: str, rng: random.Random) -> str:
    call = written(form, [("other", {"s": "x", "i": 1})])
    marks = [*TOOL_FORMATS[form].marks, "</parameter>", "</function>", "<parameter=t>", "</arg_value>", "</invoke>"]
    marks += ["<arg_key>t</arg_key>", '<parameter name="t">', '<|"|>', "}", ",", "t:", "]<]minimax[>["]
    marks += [call, call[: len(call) // 2]]
    words = ["x", "hello world", "\n", "\r\n", " ", "\t", "null", "None", "5", "-1", "[", '"', "é", "😀", "\\", "\\n"]
    words += ["\\ud800", "\x01", "<", "/", "if a < b:", "nul", "true"]
    return "".join(rng.choice(marks if rng.random() < 0.2 else words) for _ in range(rng.randint(0, 8)))


def random_text(form: str, rng: random.Random, damage: bool = True) -> str:
    """What a model writes: whole, cut, damaged, with text after it."""
    calls = []
    for _ in range(rng.choice([1, 1, 2])):
        values = {key: random_value(form, rng) for key in "stu"} | {"i": 3, "o": {"a": "b"}}
        values |= {"n": rng.choice([1, None, [1], "y"])}
        keys = rng.sample("stunio", rng.randint(0, 4))
        calls.append((rng.choice(["add", "other"]), {key: values[key] for key in keys}))
    text, how = WRITERS[form](None, calls, plain), rng.random()
    if damage and how < 0.25:
        return text[: rng.randint(0, len(text))]
    if damage and how < 0.4:
        at = rng.randint(0, len(text))
        return text[:at] + rng.choice(["", "x", "<", "\n"]) + text[at + rng.randint(0, 6) :]
    return text + (rng.choice([".", " and so", "\n", text]) if how < 0.5 else "")


def check_chunks(form: str, seed: int) -> None:
    rng = random.Random(f"{form} {seed}")
    text, cut = random_text(form, rng), rng.random() < 0.3
    whole = read(form, [text], cut)
    assert read(form, list(text), cut) == whole, text
    assert read(form, in_pieces(text, rng.choices(range(len(text) + 1), k=5)), cut) == whole, text
    for _, arguments in whole[0] if not cut else ():
        assert isinstance(json.loads(arguments), dict), text


@pytest.mark.few(4)
@pytest.mark.parametrize("form", UNQUOTED)
def test_the_parts_are_the_whole_in_any_chunks(form):
    for seed in range(150):
        check_chunks(form, seed)


@pytest.mark.parametrize("fault", ["end", "frozen", "null", "read again"])
def test_the_law_sees_a_text_that_leaves_too_early(fault, monkeypatch):
    cases = [(form, random_text(form, random.Random(f"{form} {seed}"))) for form in UNQUOTED for seed in range(60)]
    good = [read(form, [text]) for form, text in cases]
    match fault:
        case "end":
            monkeypatch.setattr(Tags, "is_certain", lambda self, text: len(text))
        case "frozen":
            monkeypatch.setattr(ArgumentText, "frozen", property(lambda _: False, lambda _, value: None), raising=False)
        case "null":
            monkeypatch.setattr("tailrace.text.tool_parsers.tagged.choose_text_check", lambda declared: (True, None))
        case _:
            monkeypatch.setattr(ArgumentText, "rewind", lambda self: None)
    assert [read(form, list(text)) for form, text in cases] != good


@pytest.mark.parametrize("form", UNQUOTED)
def test_whole_calls_are_read_as_before_texts_were_streamed(form):
    """The golden file was written by the parser that sent calls whole. A parameter that came twice went out once."""
    for text, expected, content in json.loads(GOLDEN.read_text())[form]:
        calls, said, cut = read(form, [text])
        assert (said, cut) == (content, False), text
        for (name, arguments), (wanted, whole) in zip(calls, expected, strict=True):
            is_twice = len(json.loads(arguments, object_pairs_hook=list)) > len(json.loads(arguments))
            assert name == wanted
            assert json.loads(arguments) == json.loads(whole) if is_twice else arguments == whole, text


@pytest.mark.parametrize("form", UNQUOTED)
def test_a_call_that_a_limit_cuts_ends_as_the_model_wrote_it(form):
    text = written(form, [("add", {"i": 1, "s": "one two three"})])
    text = text[: text.index("three") + 2]
    for pieces in ([text], list(text)):
        [(name, arguments)], content, cut = read(form, pieces, cut=True)
        assert (name, arguments, content, cut) == ("add", '{"i": 1, "s": "one two th', "", True)
        [(name, arguments)], content, cut = read(form, pieces)  # the model ended by itself: closed where it stands
        assert (name, arguments, content, cut) == ("add", '{"i": 1, "s": "one two th"}', "", True)


@pytest.mark.parametrize(
    ("schema", "sends"),
    [
        ({"type": "string"}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ({"type": "integer"}, False),
        ({}, False),
    ],
)
def test_only_a_declared_text_leaves_before_its_end(schema, sends):
    assert choose_text_check(Declared(schema))[0] is sends
