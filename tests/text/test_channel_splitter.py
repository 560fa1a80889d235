"""Reasoning, content and tool calls are told apart under any chunking, and no character is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.text.channel_splitter import ChannelSplitter, Segment
from tailrace.text.reasoning import REASONING_MARKERS, ends_inside_reasoning
from tailrace.text.tool_parsers import TOOL_FORMATS, ToolCall

THINK, HERMES = REASONING_MARKERS["think"], TOOL_FORMATS["hermes"]
CALL = '{"name": "add", "arguments": {"a": 1, "b": [2, "</x>"]}}'
PARTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        CALL,
        "{}",
        "a",
        " ",
        "\n",
        "<",
        "</",
        "<th",
        "think>",
        "é😀",
        "tool_call>",
    ]
)


def joined(segments: list[Segment]) -> list[Segment]:
    """Joins neighbouring segments of one channel, and the pieces of each call."""
    found: list[Segment] = []
    for segment in segments:
        last = found[-1] if found else None
        if last is None or last.channel != segment.channel or (segment.call is not None and segment.call.name):
            found.append(segment)
        elif last.call is not None and segment.call is not None:
            call = last.call._replace(arguments=last.call.arguments + segment.call.arguments)
            found[-1] = Segment("tool", call=call)
        else:
            found[-1] = Segment(segment.channel, last.text + segment.text)
    return found


def split(pieces: list[str], opened: bool = False) -> list[Segment]:
    splitter = ChannelSplitter(THINK, HERMES, opened)
    out = [segment for piece in pieces for segment in splitter.feed(piece)]
    return joined(out + splitter.flush())


@given(st.lists(PARTS, max_size=12), st.data(), st.booleans())
def test_any_chunking_says_the_same(parts, data, opened):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces, opened) == split([text], opened) == split(list(text), opened)


@given(st.lists(PARTS.filter(lambda part: "tool_call" not in part), max_size=12))
def test_no_character_is_lost(parts):
    """Put back between its markers, the text is the original, up to a marker that only closed its channel. For tool
    calls see test_tool_parsers.py."""
    text = "".join(parts)
    back, thinking = "", False
    for segment in split([text]):
        if segment.channel == "reasoning" and not thinking:
            back += THINK[0]
        if segment.channel != "reasoning" and thinking:
            back += THINK[1]
        thinking = segment.channel == "reasoning"
        back += segment.text
    for marker in THINK:  # empty reasoning leaves no segment
        back, text = back.replace(marker, ""), text.replace(marker, "")
    assert back == text


def test_what_goes_where():
    text = f"<think>\nhm</think>\n\nSo <tool_call>\n{CALL}\n</tool_call><tool_call>{CALL}</tool_call>."
    call = ToolCall(0, "add", '{"a": 1, "b": [2, "</x>"]}')
    assert split([text]) == [
        Segment("reasoning", "\nhm"),
        Segment("content", "\n\nSo "),
        Segment("tool", call=call),
        Segment("tool", call=call._replace(place=1)),
        Segment("content", "."),
    ]
    assert json.loads(call.arguments) == {"a": 1, "b": [2, "</x>"]}


def test_a_template_may_have_opened_the_thinking():
    assert split(["hm</think>yes"], opened=True) == [Segment("reasoning", "hm"), Segment("content", "yes")]
    assert ends_inside_reasoning("<|assistant|><think>\n", THINK)
    assert not ends_inside_reasoning("<think>before</think> now", THINK)
    assert not ends_inside_reasoning("nothing", THINK)


@pytest.mark.parametrize("broken", ["no json", '{"arguments": {}}', '{"name": 3}', "[]", ""])
def test_what_is_no_call_stays_text(broken):
    text = f"<tool_call>{broken}</tool_call>"
    assert split([text]) == [Segment("content", text)]


def test_a_call_that_is_cut_off_before_its_name_is_text():
    assert split(['<tool_call>{"na']) == [Segment("content", '<tool_call>{"na')]


def test_white_space_between_calls_is_nobodys_and_before_text_the_texts():
    call = f"<tool_call>{CALL}</tool_call>"
    written = ToolCall(0, "add", '{"a": 1, "b": [2, "</x>"]}')
    one, two = (Segment("tool", call=written._replace(place=place)) for place in (0, 1))
    assert split([f"{call}\n\n{call}\n"]) == [one, two]
    assert split([f"{call}\n<tool_call>?{call}\n."]) == [
        one,
        Segment("content", "\n<tool_call>?"),
        two,
        Segment("content", "\n."),
    ]
    assert split([f"{call} <think>"]) == [one, Segment("content", " ")]


def test_held_back_is_only_what_may_become_a_marker():
    splitter = ChannelSplitter(THINK, None)
    assert splitter.feed("a <thi") == [Segment("content", "a ")]
    assert splitter.feed("s") == [Segment("content", "<this")]
    assert ChannelSplitter(None, None).feed("<think>") == [Segment("content", "<think>")]
    assert splitter.feed("<tool_call>") == [Segment("content", "<tool_call>")]


def test_parameters_are_arguments_and_none_are_an_empty_object():
    for written, arguments in (('{"name": "f", "parameters": {"x": 1}}', '{"x": 1}'), ('{"name": "f"}', "{}")):
        assert split([f"<tool_call>{written}</tool_call>"]) == [Segment("tool", call=ToolCall(0, "f", arguments))]
