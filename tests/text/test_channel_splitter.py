"""Reasoning, content and tool calls are told apart under any chunking, and no character is lost."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.reasoning import REASONING_FORMATS, ReasoningFormat, format_of, start_of, start_within
from tailrace.text.splitter import ReasoningTokens, Segment
from tailrace.text.tool_parsers import TOOL_FORMATS, ToolCall, ToolFormat

THINK, HERMES = REASONING_FORMATS["think"], TOOL_FORMATS["hermes"]
MARKED = {name: form for name, form in REASONING_FORMATS.items() if not form.harmony and form.split}
CALL = '{"name": "add", "arguments": {"a": 1, "b": [2, "</x>"]}}'
TAGGED = f"<tool_call>{CALL}</tool_call>"
ARGUMENTS = '{"a": 1, "b": [2, "</x>"]}'
STARTS = ("unknown", "opened", "closed")
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


def split(
    pieces: list[str], start: str = "unknown", form: ReasoningFormat | None = THINK, tools: ToolFormat | None = HERMES
) -> list[Segment]:
    splitter = ChannelSplitter(form, tools, start)
    out = [segment for piece in pieces for segment in splitter.feed(piece)]
    out += splitter.flush(cut=True)
    whole = "".join(pieces)
    thought = [segment.text for segment in out if segment.channel == "reasoning"]
    assert "".join(whole[begin:end] for begin, end in splitter.thoughts) == "".join(thought)
    return joined(out)


def cut(text: str, cuts: list[int]) -> list[str]:
    return [text[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True)]


@given(st.lists(PARTS, max_size=12), st.data(), st.sampled_from(STARTS))
def test_any_chunking_says_the_same(parts, data, start):
    text = "".join(parts)
    pieces = cut(text, data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert split(pieces, start) == split([text], start) == split(list(text), start)


# ---- the rules once more, on the whole text: with `re`, without state, for formats with one thought


def told(text: str, start: str, form: ReasoningFormat) -> tuple[str, str]:
    """The thought and the content of a text without calls."""
    either = lambda markers: "(?:" + "|".join(map(re.escape, markers)) + ")"  # noqa: E731
    opening, closing = either(form.openings), either(form.closings)
    frame = either(form.frame) if form.frame else "(?!)"
    head, rest = "", text
    if start == "unknown":
        found = re.search(f"{opening}|{closing}", text)
        if found is None:
            return "", re.sub(frame, "", text)
        head, rest = re.sub(frame, "", text[: found.start()]), text[found.end() :]
        if re.fullmatch(opening, found[0]):
            start = "opened"
            if form.label:
                rest = rest.removeprefix(form.label)
        else:
            start = "closed"
    thought = ""
    if start == "opened":
        again = re.match(rf"(?:{opening}|\s)*", rest)
        assert again is not None
        thought = re.sub(opening, "", again[0])
        more, ended, rest = next(
            ((rest[again.end() : m.start()], True, rest[m.end() :]) for m in re.finditer(closing, rest)),
            (rest[again.end() :], False, ""),
        )
        thought += more
        if not ended:
            return thought, head
    doubled = re.match(rf"(?:{closing}|{frame}|\s)*", rest)  # a mark may begin with a line break
    assert doubled is not None
    lead = re.sub(f"{closing}|{frame}", "", doubled[0])
    return thought, head + lead + re.sub(frame, "", rest[doubled.end() :])


@pytest.mark.few(4)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), start=st.sampled_from(STARTS))
@pytest.mark.parametrize("name", [name for name, form in MARKED.items() if not form.again])
def test_thought_and_content_are_what_the_rules_say(name, data, start):
    """Over outputs in which marks are missing, doubled, swapped and cut."""
    form = MARKED[name]
    marks = (*form.openings, *form.closings, *form.frame, *([form.label] if form.label else []))
    part = st.sampled_from([*marks, *(mark[: len(mark) // 2] for mark in marks), "a", " ", "\n", "<", "é😀"])
    text = "".join(data.draw(st.lists(part, max_size=10)))
    wanted = told(text, start, form)
    pieces = cut(text, data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    for chunks in (pieces, [text], list(text)):
        said = {"reasoning": "", "content": ""}
        for segment in split(chunks, start, form, None):
            said[segment.channel] += segment.text
        assert (said["reasoning"], said["content"]) == wanted


def test_a_second_thought_would_be_seen():
    """The planted fault: a splitter that goes in and out at every marker, as it once was."""
    toggling = THINK._replace(again=True)
    assert split(["<think>a</think>b<think>c"], form=toggling) != split(["<think>a</think>b<think>c"])


@pytest.mark.parametrize("name", MARKED)
def test_no_marker_begins_another(name):
    """Then the earliest marker is known as soon as it is complete. In Muse the shorter one is taken, and its reader
    leaves the rest to the longer one."""
    for tools in TOOL_FORMATS.values():
        if name == "muse" == next(key for key, form in TOOL_FORMATS.items() if form is tools):
            continue
        marks = {*MARKED[name].openings, *MARKED[name].closings, *MARKED[name].frame, *dict(tools.markers)}
        assert not [(a, b) for a in marks for b in marks if a != b and b.startswith(a)]


# ---- calls and thoughts


def test_what_goes_where():
    text = f"<think>\nhm</think>\n\nSo <tool_call>\n{CALL}\n</tool_call>{TAGGED}."
    call = ToolCall(0, "add", ARGUMENTS)
    assert split([text]) == [
        Segment("reasoning", "\nhm"),
        Segment("content", "\n\nSo "),
        Segment("tool", call=call),
        Segment("tool", call=call._replace(place=1)),
        Segment("content", "."),
    ]
    assert json.loads(call.arguments) == {"a": 1, "b": [2, "</x>"]}


@pytest.mark.parametrize("lead", ["", "<think>hm</think>"])
def test_white_space_before_calls_is_left_out(lead):
    call = [Segment("tool", call=ToolCall(0, "add", ARGUMENTS))]
    thought = [Segment("reasoning", "hm")] if lead else []
    block = f"<tool_call>\n{CALL}\n</tool_call>"
    assert split([f"{lead}\n\n{block}"]) == thought + call
    assert split(list(f"{lead}\n\n")) == [*thought, Segment("content", "\n\n")]
    assert split([f"{lead}\n\nSo "]) == [*thought, Segment("content", "\n\nSo ")]
    assert split([f"{lead}\n\n<tool_call>no"]) == [*thought, Segment("content", "\n\n<tool_call>no")]


def test_where_a_thought_begins_and_ends():
    thought, content = (lambda text: Segment("reasoning", text)), (lambda text: Segment("content", text))
    for text, start, wanted in (
        ("hm</think>yes", "opened", [thought("hm"), content("yes")]),
        ("\n<think>\nhm</think>yes", "opened", [thought("\n\nhm"), content("yes")]),  # the model opens it once more
        ("a <think> tag</think>yes", "opened", [thought("a <think> tag"), content("yes")]),
        ("<think>a</think>b<think>c</think>", "unknown", [thought("a"), content("b<think>c</think>")]),
        ("<think>a</think></think>b", "unknown", [thought("a"), content("b")]),
        ("hm</think>yes</think>", "unknown", [content("hmyes</think>")]),
        ("</think>\nyes <think>", "closed", [content("\nyes <think>")]),
        ("<think>a", "closed", [content("<think>a")]),
    ):
        assert split([text], start) == split(list(text), start) == wanted
    assert split(["<think>a</think>"], form=None) == [content("<think>a</think>")]
    gemma = REASONING_FORMATS["gemma4"]
    assert split(["<|channel>thought\nhm<channel|>Hi"], form=gemma) == [thought("hm"), content("Hi")]
    assert split(["<|channel>though"], form=gemma) == [thought("though")]


@pytest.mark.parametrize("end", ["", "</think>", "\n</think>"])
@pytest.mark.parametrize("start", ["opened", "unknown"])
def test_a_call_in_an_open_thought_ends_it(start, end):
    text = f"{'<think>' if start == 'unknown' else ''}I use <tool_call> and <tool_call>{{}}, so {TAGGED}{end}"
    wanted = [
        Segment("reasoning", "I use <tool_call> and <tool_call>{}, so "),
        Segment("tool", call=ToolCall(0, "add", ARGUMENTS)),
    ]
    assert split([text], start) == split(list(text), start) == wanted
    inert = THINK._replace(calls="text")
    [thought, *rest] = split([text], start, inert)
    assert thought.channel == "reasoning"
    assert TAGGED in thought.text
    assert not [segment for segment in rest if segment.text.strip()]


def test_a_thought_may_go_on_after_its_call():
    apertus = REASONING_FORMATS["apertus"]
    text = f"<|inner_prefix|>a{TAGGED}b<|inner_suffix|>c<|inner_prefix|>d"
    assert [(s.channel, s.text) for s in split(list(text), form=apertus)] == [
        ("reasoning", "a"),
        ("tool", ""),
        ("reasoning", "b"),
        ("content", "c"),
        ("reasoning", "d"),
    ]


@pytest.mark.parametrize("cut_at", range(1, len(TAGGED)))
def test_a_call_that_is_cut_in_a_thought(cut_at):
    splitter = ChannelSplitter(THINK, HERMES, "opened")
    out = joined([*splitter.feed("hm" + TAGGED[:cut_at]), *splitter.flush(cut=True)])
    if splitter.calls:
        assert [segment.channel for segment in out] == ["reasoning", "tool"]
        assert splitter.cut_call == (cut_at < TAGGED.index("}}") + 1)
    else:
        assert out == [Segment("reasoning", "hm" + TAGGED[:cut_at])]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(PARTS, max_size=12), st.data(), st.sampled_from(STARTS))
def test_tokens_of_thoughts_are_counted(parts, data, start):
    """A token counts if its first character belongs to a thought, however tokens and deltas are cut."""
    text = "".join(parts)
    tokens = cut(text, data.draw(st.lists(st.integers(0, len(text)), max_size=9)))
    whole = ChannelSplitter(THINK, HERMES, start)
    whole.feed(text)
    whole.flush()
    inside = {at for begin, end in whole.thoughts for at in range(begin, end)}
    begins, at = [], 0
    for token in tokens:
        begins.append(at)
        at += len(token)
    splitter = ChannelSplitter(THINK, HERMES, start)
    counter = ReasoningTokens(splitter)
    for begin, token in zip(begins, tokens, strict=True):
        counter.add([begin])
        splitter.feed(token)
        assert counter.count <= sum(begin in inside for begin in begins)
    splitter.flush()
    assert counter.count == sum(begin in inside for begin in begins)


# ---- where an answer begins


def test_the_prompt_says_where_the_answer_begins():
    for prompt, wanted in (
        ("<|assistant|><think>\n", "opened"),
        ("<|assistant|><think>\n\n</think>\n\n", "closed"),
        ("<|assistant|></think>", "closed"),
        ("What does <think> do?<|assistant|>\n", "unknown"),
    ):
        assert start_of(prompt, THINK) == wanted
    gemma = REASONING_FORMATS["gemma4"]
    assert start_of("<|turn>model\n<|channel>thought\n", gemma) == "opened"
    assert start_of("<|turn>model\n<|channel>thought\n<channel|>", gemma) == "closed"
    for text, wanted in (("<think>before</think> now", "closed"), ("<think>and", "opened"), ("nothing", "unknown")):
        assert start_within(text, THINK) == wanted


def test_peers_names_are_known():
    assert format_of("qwen3") is format_of("kimi_k2") is THINK
    assert format_of("none") is format_of("identity") is None


@pytest.mark.parametrize("broken", ["no json", '{"arguments": {}}', '{"name": 3}', "[]", ""])
def test_what_is_no_call_stays_text(broken):
    text = f"<tool_call>{broken}</tool_call>"
    assert split([text]) == [Segment("content", text)]


def test_a_call_that_is_cut_off_before_its_name_is_text():
    assert split(['<tool_call>{"na']) == [Segment("content", '<tool_call>{"na')]


def test_white_space_between_calls_is_nobodys_and_before_text_the_texts():
    written = ToolCall(0, "add", ARGUMENTS)
    one, two = (Segment("tool", call=written._replace(place=place)) for place in (0, 1))
    assert split([f"{TAGGED}\n\n{TAGGED}\n"]) == [one, two]
    assert split([f"{TAGGED}\n<tool_call>?{TAGGED}\n."]) == [
        one,
        Segment("content", "\n<tool_call>?"),
        two,
        Segment("content", "\n."),
    ]
    assert split([f"{TAGGED} <think>"]) == [one, Segment("content", " ")]


def test_held_back_is_only_what_may_become_a_marker():
    splitter = ChannelSplitter(THINK, None)
    assert splitter.feed("a <thi") == [Segment("content", "a ")]
    assert splitter.feed("s") == [Segment("content", "<this")]
    assert ChannelSplitter(None, None).feed("<think>") == [Segment("content", "<think>")]
    assert splitter.feed("<tool_call>") == [Segment("content", "<tool_call>")]


def test_parameters_are_arguments_and_none_are_an_empty_object():
    for written, arguments in (('{"name": "f", "parameters": {"x": 1}}', '{"x": 1}'), ('{"name": "f"}', "{}")):
        assert split([f"<tool_call>{written}</tool_call>"]) == [Segment("tool", call=ToolCall(0, "f", arguments))]
