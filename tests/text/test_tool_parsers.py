"""Tool calls in the formats of open models: parsed under any chunking, arguments as they come, no character lost."""

from __future__ import annotations

import json
import re
import typing
import warnings
from contextlib import ExitStack
from unittest import mock

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.reasoning import REASONING_FORMATS
from tailrace.text.splitter import Segment
from tailrace.text.tool_parsers import TOOL_FORMATS, CallParser, call_parser, resolve, tag_tree, tool_schemas, trees
from tailrace.text.tool_parsers.call_parser import NotACallError, partial_marker
from tailrace.text.tool_parsers.functions import close_schema
from tailrace.text.tool_parsers.pythonic import calls_of
from tailrace.text.tool_parsers.resolve import Declared
from tailrace.text.tool_parsers.values import is_json, json_of
from tool_examples import ALONE, DS, KIMI, STREAMED, UNQUOTED, WRITERS, written

THINK = REASONING_FORMATS["think"]
TOOLS_ASKED = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"s": {"type": "string"}, "n": {}}}}}
    for name in ("add", "get.it-2")
]
KNOWN = tool_schemas(TOOLS_ASKED)

# format → (what a model writes, calls as (name, arguments), content), the calls' arguments as JSON values
ARGS = '{"a": 1, "b": [2, {"c": "</x>] \\" }"}], "é": null}'
VALUE = json.loads(ARGS)
X = [("add", {"a": 1})]
ONE, TWO = [("add", VALUE)], [("add", VALUE), ("get.it-2", {})]
Case = tuple[str, list[tuple[str, typing.Any]], str]
CASES: dict[str, list[Case]] = {
    "hermes": [
        (f'<tool_call>\n{{"name": "add", "arguments": {ARGS}}}\n</tool_call>', ONE, ""),
        (
            f'So <tool_call>{{"name": "add", "parameters": {ARGS}}}</tool_call>\n'
            f'<tool_call>{{"name": "get.it-2"}}</tool_call>\n',
            TWO,
            "So ",
        ),
        (f'<tool_call>{{"arguments": {ARGS}, "name": "add"}}</tool_call> ok', ONE, " ok"),
        (
            '<tool_call>{"id": "7", "name": "add", "x": {"y": 0}, "arguments": "no"}</tool_call>',
            [],
            '<tool_call>{"id": "7", "name": "add", "x": {"y": 0}, "arguments": "no"}</tool_call>',
        ),
        (
            '<tool_call>{"name": "add", "arguments": {"a": "</tool_call>"}}</tool_call>',
            [("add", {"a": "</tool_call>"})],
            "",
        ),
        (
            '<tool_call>{"name": "add", "arguments": {}}\n{"name": "add", "arguments": -1.5e3}</tool_call>.',
            [("add", {})],
            '{"name": "add", "arguments": -1.5e3}.',
        ),
        (f'<tool_call>{{"name": "add", "arguments": {ARGS}</tool_call>.', ONE, "."),  # a brace too few
        (f'<tool_call>{{"name": "add", "arguments": {ARGS}}}}}</tool_call>.', ONE, "."),  # one too many
        ('<tool_call>no</tool_call><tool_call>{"name": "add"}</tool_call>', [("add", {})], "<tool_call>no</tool_call>"),
    ],
    "mistral": [
        (f'[TOOL_CALLS][{{"name": "add", "arguments": {ARGS}}}, {{"arguments": {{}}, "name": "get.it-2"}}]', TWO, ""),
        (f'Hm [TOOL_CALLS] [{{"name": "add", "arguments": {ARGS}}}]\n', ONE, "Hm "),
        (f"[TOOL_CALLS]add[ARGS]{ARGS}[TOOL_CALLS]get.it-2[ARGS]{{}}", TWO, ""),
        (f"[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{ARGS}", ONE, ""),
        (f"x [TOOL_CALLS]add{ARGS} y", ONE, "x  y"),
        ("[TOOL_CALLS][]", [], "[TOOL_CALLS][]"),
    ],
    "llama3_json": [
        (f'{{"name": "add", "parameters": {ARGS}}}', ONE, ""),
        (
            f'\n {{"type": "function", "name": "add", "parameters": {ARGS}}}; '
            '{"name": "get.it-2", "parameters": {}}',
            TWO,
            "",
        ),
        (f'I call <|python_tag|>{{"name": "add", "parameters": {ARGS}}}', ONE, "I call "),
        (f'{{"parameters": {ARGS}, "name": "add"}}\nso', ONE, "\nso"),
        ('{"name": "Bob", "parameters": {}}', [], '{"name": "Bob", "parameters": {}}'),
        ('So {"name": "add", "parameters": {}}', [("add", {})], "So "),
        ('{"sum": 3}', [], '{"sum": 3}'),
        ("<|python_tag|>print(1)", [], "<|python_tag|>print(1)"),
    ],
    "pythonic": [
        ("[add(a=1, b=[2, {'c': '</x>] \" }'}], é=None)]", ONE, ""),
        (" [add(a=-1.5, b=true),\n add()]\n", [("add", {"a": -1.5, "b": True}), ("add", {})], ""),
        ("<|python_start|>[add(s='\\'x')]<|python_end|>", [("add", {"s": "'x"})], ""),
        ("[add(open('x'))]", [], "[add(open('x'))]"),
        ("[add(a=open('x'))]", [], "[add(a=open('x'))]"),
        ("[add(**{})]", [], "[add(**{})]"),
        ("[other(a=1)]", [], "[other(a=1)]"),
        ("[add](http://x)", [], "[add](http://x)"),
        ("[1, 2]", [], "[1, 2]"),
        ("see [add(a=1)]", X, "see "),
        ("[add(a='\\d', b={1+2j})]", [], "[add(a='\\d', b={1+2j})]"),
    ],
    "qwen3_coder": [
        (
            "<tool_call>\n<function=add>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
            "</function>\n</tool_call>",
            [("add", {"s": "12", "n": 12})],
            "",
        ),
        (
            'Ok\n<tool_call><function=add><parameter=n>two\n"lines"</parameter><parameter=o>True</parameter>'
            "</function></tool_call>\n"
            "<tool_call><function=get.it-2></function></tool_call>",
            [("add", {"n": 'two\n"lines"', "o": True}), ("get.it-2", {})],
            "Ok\n",
        ),
        # a lone quote begins no JSON string; but where JSON goes on after the marker, it does
        (
            '<tool_call><function=add><parameter=o>\n{x} say "hi\n</parameter>\n<parameter=p>"C:\\</parameter>\n'
            "</function></tool_call>",
            [("add", {"o": '{x} say "hi', "p": '"C:\\'})],
            "",
        ),
        (
            '<tool_call><function=add><parameter=o>["</parameter>", "<\\""]</parameter></function></tool_call>',
            [("add", {"o": ["</parameter>", '<"']})],
            "",
        ),
        ("<tool_call>{}</tool_call>", [], "<tool_call>{}</tool_call>"),
        (
            "<tool_call><function=add><parameter=n>1</tool_call>",
            [],
            "<tool_call><function=add><parameter=n>1</tool_call>",
        ),
    ],
    "glm4": [
        (
            "<tool_call>add\n<arg_key>s</arg_key>\n<arg_value>null</arg_value>\n<arg_key>n</arg_key>\n"
            "<arg_value>[1]</arg_value>\n</tool_call>",
            [("add", {"s": "null", "n": [1]})],
            "",
        ),
        (
            "<tool_call>add</tool_call>\n<tool_call>get.it-2<arg_key>a</arg_key><arg_value>b c</arg_value>"
            "</tool_call>!",
            [("add", {}), ("get.it-2", {"a": "b c"})],
            "!",
        ),
        (
            '<tool_call>add<arg_key>o</arg_key><arg_value>[x] say "hi</arg_value>\n'
            '<arg_key>p</arg_key><arg_value>"hello</arg_value></tool_call>',
            [("add", {"o": '[x] say "hi', "p": '"hello'})],
            "",
        ),
        (
            '<tool_call>add<arg_key>o</arg_key><arg_value>{"a": "\\"</arg_value>, </tool_call> "}</arg_value>'
            "</tool_call>",
            [("add", {"o": {"a": '"</arg_value>, </tool_call> '}})],
            "",
        ),
        ("<tool_call>it may be</tool_call>", [], "<tool_call>it may be</tool_call>"),
    ],
    "deepseek_v3": [
        (
            f"Ah{DS[0]}{DS[1]}function{DS[2]}add\n```json\n{ARGS}\n```{DS[3]}\n"
            f"{DS[1]}function{DS[2]}get.it-2\n```json\n{{}}\n```{DS[3]}{DS[4]}",
            TWO,
            "Ah",
        ),
        (f"{DS[0]}{DS[1]}add{DS[2]}{ARGS}{DS[3]}{DS[1]}get.it-2{DS[2]}{{}}{DS[3]}{DS[4]}", TWO, ""),
        (f"{DS[0]}{DS[4]}", [], f"{DS[0]}{DS[4]}"),
        (f"{DS[0]}{DS[1]}add{DS[2]}none{DS[3]}{DS[4]}", [], f"{DS[0]}{DS[1]}add{DS[2]}none{DS[3]}{DS[4]}"),
    ],
    "kimi_k2": [
        (
            f"{KIMI[0]}{KIMI[1]}functions.add:0{KIMI[2]}{ARGS}{KIMI[3]}"
            f"{KIMI[1]}functions.get.it-2:1{KIMI[2]}{{}}{KIMI[3]}{KIMI[4]}",
            TWO,
            "",
        ),
        (f"I {KIMI[0]} {KIMI[1]} functions.add:0 {KIMI[2]} {ARGS} {KIMI[3]} {KIMI[4]}", ONE, "I "),
        (f"{KIMI[0]}{KIMI[1]}{KIMI[2]}{{}}", [], f"{KIMI[0]}{KIMI[1]}{KIMI[2]}{{}}"),
    ],
    "granite": [
        (f'<|tool_call|>[{{"name": "add", "arguments": {ARGS}}}, {{"name": "get.it-2", "arguments": {{}}}}]', TWO, ""),
        (f'<tool_call>[{{"name": "add", "arguments": {ARGS}}}]', ONE, ""),
        (f'<tool_call>[{{"name": "add", "arguments": {ARGS}}}]</tool_call>.', ONE, "."),
    ],
}
for name in TOOL_FORMATS:  # those that are only declared
    values = VALUE if name != "minimax_m3" else {key: VALUE[key] for key in "ab"}  # which leaves out what is null
    one, two = [("add", values)], [("add", values), ("get.it-2", {})]
    if name == "minimax_m3":  # where the empty object would be a text
        one, two = [("add", {"s": "1", "o": {"k": "v"}})], [("add", {"s": "1"}), ("get.it-2", {})]
    begin = "" if name in ALONE else "So "
    cases = [
        (written(name, one), one, ""),
        (begin + written(name, two), two, begin),
        (f"{TOOL_FORMATS[name].markers[0][0]}?", [], f"{TOOL_FORMATS[name].markers[0][0]}?"),
    ]
    CASES.setdefault(name, []).extend(cases)
EVERY = [(name, *case) for name, cases in CASES.items() for case in cases]


# ---- what models write beside their templates


Y = [("add", {"a": 1}), ("add", {})]
SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALL = '<|tool_call_begin|>{}<|tool_call_argument_begin|>{{"a": 1}}<|tool_call_end|>'
TOLERATED: list[tuple[str, str, list[tuple[str, typing.Any]], str]] = [
    ("qwen3_coder", "So <function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", X, "So "),
    ("qwen3_coder", "<function=add>\n<parameter=a>\n1\n</parameter>\n</function>.", X, "."),
    ("qwen3_coder", "write <function=other>\n</function>", [], "write <function=other>\n</function>"),
    (
        "qwen3_coder",
        "<tool_call>\n<function=add>\n<parameter=s>\n1\n<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>",
        [("add", {"s": "1", "n": 2})],
        "",
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=add>\n<parameter=s>\n<parameter=x>\n</parameter>\n</function>\n</tool_call>",
        [("add", {"s": "<parameter=x>"})],
        "",
    ),
    ("qwen3_coder", "<tool_call><function=add><parameter=s>1</function></tool_call>.", [("add", {"s": "1"})], "."),
    ("qwen3_coder", "<tool_call><function=add><parameter=a>[1]</function></tool_call>", [("add", {"a": [1]})], ""),
    ("kimi_k2", KIMI_CALL.format("functions.add:0"), X, ""),
    ("kimi_k2", KIMI_CALL.format("add:0") + SECTION[1] + "!", X, "!"),
    ("kimi_k2", SECTION[0] + KIMI_CALL.format("add") + SECTION[1], X, ""),
    (
        "kimi_k2",
        SECTION[0] + KIMI_CALL.format("??") + KIMI_CALL.format("add:1"),
        X,
        SECTION[0] + KIMI_CALL.format("??"),
    ),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', X, ""),
    ("hermes", '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "add"}</tool_call>', X, ""),
    ("llama3_json", '{"type": "function", "function": {"name": "add", "parameters": {"a": 1}}}', X, ""),
    ("llama3_json", '{"function": {"parameters": {"a": 1}, "name": "add"}, "type": "function"}.', X, "."),
    ("llama3_json", '{"function": {"name": "Bob"}}', [], '{"function": {"name": "Bob"}}'),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": "x\n\ty\x01 \\d \\n"}}</tool_call>',
        [("add", {"a": "x\n\ty\x01 \\d \n"})],
        "",
    ),
    (
        "nemotron",
        '<TOOLCALL>[{"nme": 1}, {"name": "add", "arguments": {"a": 1}}, {"x": []}, {"name": "add"}]</TOOLCALL>',
        Y,
        '{"nme": 1}{"x": []}',
    ),
    ("nemotron", '<TOOLCALL>[{"nme": 1}, {"x": 2}]</TOOLCALL>', [], '<TOOLCALL>[{"nme": 1}, {"x": 2}]</TOOLCALL>'),
    ("xlam", 'So\n```json\n[{"name": "add", "arguments": {"a": 1}}]\n```', X, "So\n"),
    ("xlam", '```json\n[{"name": "Bob"}]\n```', [], '```json\n[{"name": "Bob"}]\n```'),
    ("command", 'Action:\n```json\n[\n {\n "tool_name": "add",\n "parameters": {"a": 1}\n }\n]```', X, ""),
    ("phi4_mini_json", '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|/tool_call|>', X, ""),
    ("phi4_mini_json", "import functools\nfunctools[0]", [], "import functools\nfunctools[0]"),
    ("internlm", '<|action_start|> <|plugin|>\n{"name": "add", "parameters": {"a": 1}}\n<|action_end|>\n', X, ""),
    (
        "kimi_k3",
        "<|open|>response<|sep|>Hello <b>\n<|close|>response<|sep|><|close|>message<|sep|>",
        [],
        "Hello <b>\n",
    ),
    ("kimi_k3", "<|open|>response<|sep|>Hello <|clo", [], "Hello <|clo"),
    (
        "gemma4",
        '<|tool_call>call:add{s:"x", n: [1, true,{k:<|"|>v}<|"|>}], "o": {}}<tool_call|>',
        [("add", {"s": "x", "n": [1, True, {"k": "v}"}], "o": {}})],
        "",
    ),
    ("olmo3", "<function_calls>[add(a=1), add()]</function_calls>", Y, ""),
]
EVERY += TOLERATED


def test_a_cut_call_before_a_good_one_is_still_cut():
    text = '<tool_call>{"name": "add", "arguments": {"a": <tool_call>{"name": "add", "arguments": {}}</tool_call>'
    for pieces in ([text], list(text)):
        splitter = ChannelSplitter(THINK, TOOL_FORMATS["hermes"], declared=KNOWN)
        segments = [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush()
        assert calls_in(segments) == [("add", "{}"), ("add", "{}")]
        assert splitter.cut_call
        assert not splitter.called


WHOLE = tuple(name for name in TOOL_FORMATS if name not in STREAMED)  # arguments that must be converted


def split(name: str, pieces: list[str], cut: bool = False) -> list[Segment]:
    splitter = ChannelSplitter(THINK, TOOL_FORMATS[name], declared=KNOWN)
    out = [segment for piece in pieces for segment in splitter.feed(piece)]
    return out + splitter.flush(cut)


def calls_in(segments: list[Segment]) -> list[tuple[str, str]]:
    """(name, arguments) of each call, joined from its fragments. Checks the shape of the stream."""
    calls: list[tuple[str, str]] = []
    for call in (segment.call for segment in segments if segment.call is not None):
        assert bool(call.name) != bool(call.arguments)
        if call.name:
            assert call.place == len(calls)
            calls.append((call.name, ""))
        else:
            assert call.place == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    return calls


def told(segments: list[Segment]) -> tuple[typing.Any, ...]:
    """All that a client can see: calls, ids, content, reasoning."""
    return (
        calls_in(segments),
        [s.call.id for s in segments if s.call is not None and s.call.name and ":" in (s.call.id or "")],
        *("".join(s.text for s in segments if s.channel == channel) for channel in ("content", "reasoning")),
    )


def cut(text: str, places: list[int]) -> list[str]:
    places = sorted(place % (len(text) + 1) for place in places)
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def test_every_format_has_cases():
    assert set(WRITERS) == set(TOOL_FORMATS)


@pytest.mark.few(84)
@pytest.mark.parametrize(("name", "text", "calls", "content"), EVERY)
def test_what_a_model_writes_is_what_it_calls(name, text, calls, content):
    for pieces in ([text], list(text)):
        segments = split(name, pieces)
        found, _, said, thought = told(segments)
        assert [(called, json.loads(arguments)) for called, arguments in found] == calls
        assert (said, thought) == (content, "")


@pytest.mark.few(5)
@pytest.mark.parametrize("name", TOOL_FORMATS)
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data(), places=st.lists(st.integers(0, 10**6), max_size=8))
def test_any_chunking_says_the_same(name, data, places):
    """Texts of the format, whole, cut off, damaged and mixed."""
    parts = data.draw(
        st.lists(
            st.sampled_from([case[0] for case in CASES[name]] + ["<think>", "</think>", "{", "[", " ", "a"]), max_size=3
        )
    )
    text = "".join(parts)
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text)))]
    if text and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + data.draw(st.sampled_from(["", "<", "}", '"', "x"])) + text[at + 1 :]
    whole = told(split(name, [text]))
    assert told(split(name, cut(text, places))) == whole == told(split(name, list(text)))


# ---- laws of damaged outputs

PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|<[^<>]*>|\[[A-Z_]+\]|\w+|\s+|.', re.DOTALL)
WITNESS = "⟦{}⟧"  # no format has these signs, so what happens to each can be seen


@st.composite
def damaged(draw: st.DrawFn, name: str) -> str:
    """Outputs of the format, with pieces deleted, doubled, swapped, nested into others, cut anywhere; with witnesses
    between the pieces."""
    texts = [case[0] for case in CASES[name]]
    pieces = [
        piece
        for text in draw(st.lists(st.sampled_from(texts), min_size=1, max_size=3))
        for piece in PIECE.findall(text)
    ]
    places = st.integers(0, 10**6)
    for how in draw(st.lists(st.sampled_from(["delete", "double", "swap", "nest", "mark", "witness"]), max_size=5)):
        a, b = draw(places) % (len(pieces) + 1), draw(places) % (len(pieces) + 1)
        low, high = min(a, b), min(max(a, b), min(a, b) + 6)
        if how == "delete":
            del pieces[low:high]
        elif how == "double":
            pieces[low:low] = pieces[low:high]
        elif how == "swap" and high < len(pieces):
            pieces[low], pieces[high] = pieces[high], pieces[low]
        elif how == "nest":
            pieces[low:low] = PIECE.findall(draw(st.sampled_from(texts)))
        elif how == "mark":
            pieces.insert(
                low, draw(st.sampled_from([*TOOL_FORMATS[name].marks, "<think>", "</think>", '"', "\\", "{", "]"]))
            )
        elif how == "witness":
            pieces.insert(low, WITNESS.format(len(pieces)))
    text = "".join(pieces)
    return text[: draw(places) % (len(text) + 1)] if draw(st.booleans()) else text


def check_chunks(name: str, text: str, places: list[int]) -> None:
    """In pieces and by characters the same is told as of the whole."""
    whole = told(split(name, [text]))
    assert told(split(name, list(text))) == whole
    assert told(split(name, cut(text, places))) == whole


def write_all_pairs(pairs: typing.Iterable[tuple[str, str]]) -> str:
    """As write_object, but a parameter that is written twice comes twice, so no text is lost."""
    return f"{{{', '.join(f'{json.dumps(key, ensure_ascii=False)}: {value}' for key, value in pairs)}}}"


def check_witnesses(name: str, text: str) -> None:
    """Each witness comes out once, in order of the text within its channel."""
    with ExitStack() as stack:
        for place in (call_parser, trees, tag_tree):
            stack.enter_context(mock.patch.object(place, "write_object", write_all_pairs))
        calls, _, *texts = told(split(name, [text]))
    seen = "".join([*texts, *(part for call in calls for part in call)])
    assert sorted(re.findall("⟦\\d+⟧", seen)) == sorted(re.findall("⟦\\d+⟧", text)), seen


@pytest.mark.few(2)
@pytest.mark.parametrize("name", TOOL_FORMATS)
@settings(max_examples=examples(400), deadline=None)
@given(data=st.data(), places=st.lists(st.integers(0, 10**6), max_size=8))
def test_damaged_outputs_say_the_same_in_any_chunks_and_lose_nothing(name, data, places):
    text = data.draw(damaged(name))
    check_chunks(name, text, places)
    check_witnesses(name, text)


def test_an_unclosed_argument_before_a_good_call_costs_that_call_only():
    text = "<tool_call>f<arg_key>a</arg_key><arg_value>x<tool_call>g</tool_call>"
    for pieces in ([text], list(text)):
        assert told(split("glm4", pieces)) == ([("g", "{}")], [], text.removesuffix("<tool_call>g</tool_call>"), "")


@pytest.mark.long
def test_the_laws_of_damaged_outputs_can_fail(monkeypatch):
    """A parser that reads what has come at once, and one that loses a character."""

    def seen(law: typing.Callable[[str], None]) -> bool:
        @settings(max_examples=1000, deadline=None, database=None, phases=[Phase.generate])  # none is made smaller
        @given(text=damaged("glm4"))
        def run(text: str) -> None:
            law(text)

        try:
            run()
        except AssertionError:
            return True
        return False

    take = CallParser.take
    with monkeypatch.context() as patch:
        patch.setattr(CallParser, "up_to", lambda self, *marks, sink=None: hasty_split(self, marks))
        patch.setattr(CallParser, "_unread_later_opening", lambda self: None)
        assert seen(lambda text: check_chunks("glm4", text, []))
    with monkeypatch.context() as patch:
        patch.setattr(CallParser, "take", lambda self, length: take(self, length).replace("⟦", ""))
        patch.setattr(CallParser, "held", property(lambda self: "".join(self._held).replace("⟦", "")))
        assert seen(lambda text: check_witnesses("glm4", text))


def hasty_split(parser: CallParser, marks: tuple[str, ...]) -> typing.Any:
    """As `up_to`, but what comes in one piece with the end is left unread where the end is not the wanted one."""
    parts: list[str] = []
    while not (ends := [(end, mark) for mark in marks if (end := parser.text.find(mark, parser.at)) >= 0]):
        keep = max(partial_marker(parser.unread, mark) for mark in marks)
        parts.append(parser.take(len(parser.text) - parser.at - keep))
        yield
    if min(ends)[1] != marks[0]:
        raise NotACallError(marks[0])
    return "".join([*parts, parser.take(min(ends)[0] - parser.at)]), marks[0]


KEYS = "tool_call_id|tool_name|name|arguments|parameters|type|id|function|7|x|y|0"
JSON_WRAPPER = rf'\s|[\[\]{{}},:;]|"(?:{KEYS})"|0|"(?:add|get\.it-2|Bob)"'
WRAPPERS = {
    "mistral": JSON_WRAPPER + r"|add|get\.it-2|\[CALL_ID\]|abcdefghi|\[ARGS\]",
    "deepseek_v3": r"\s|function|add|get\.it-2|```json|```|" + "|".join(DS),
    "kimi_k2": r"\s|functions\.(?:add:0|get\.it-2:1)|" + "|".join(re.escape(mark) for mark in KIMI),
    "qwen3_coder": r"\s|</tool_call>|<function=[^>]*>(?:\s*<parameter=[^>]*>.*?</parameter>)*\s*</function>",
    "glm4": r"\s|</tool_call>|add|get\.it-2|<arg_key>.*?</arg_key>|<arg_value>.*?</arg_value>",
    "pythonic": r"\s|\[(?:add\(.*?\)[,\s]*)+\]",
    "plamo3": r"\s|add|get\.it-2|<\|plamo:[a-z_]+:plamo\|>|<\|plamo:constrain\|>json<\|plamo:msg\|>",
    "solar_open": r"\s|add|get\.it-2|<\|tool_call[a-z:]*\|>|<\|calls\|>|a1b2c3d4e\d",
    "inkling": JSON_WRAPPER + r"|\"args\"|<\|[a-z_]+\|>",
    "muse": r"\s| to=(?:add|get\.it-2)<\|message\|>.*?</atem:function_calls>|<\|[a-z]+\|>(?:assistant)?",
}


@pytest.mark.few(9)
@pytest.mark.parametrize("name", TOOL_FORMATS)
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_no_character_is_lost(name, data):
    """The text is what was returned, in order, with nothing between but markers, wrappers and white space."""
    text = "".join(
        data.draw(st.lists(st.sampled_from([case[0] for case in CASES[name]] + [" ", "a", "<b"]), max_size=3))
    )
    markers = "|".join(re.escape(mark) for pair in TOOL_FORMATS[name].markers for mark in pair if mark is not None)
    opening, closing = TOOL_FORMATS[name].markers[0]
    block = rf"\s|{re.escape(opening)}.*?{re.escape(closing or '')}" if name in WHOLE else JSON_WRAPPER
    wrapper = f"(?:{markers}|{WRAPPERS.get(name, block)})*?"
    pattern = wrapper
    for segment in split(name, [text]):
        part = re.escape(segment.text if segment.call is None else segment.call.arguments)
        if segment.call is not None and name in WHOLE:
            part = ""  # converted
        elif segment.call is not None and segment.call.arguments == "{}":
            part = f"(?:{part})?"  # generated, since the model wrote none
        pattern += part + wrapper
    assert re.fullmatch(pattern, text, re.DOTALL)


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if name not in WHOLE])
def test_arguments_come_as_they_are_written(name):
    """The name comes before the first character. A comma, a quote, a number or a word comes with the next character, a
    key with its value."""
    waits = re.compile(r""".{0,4}|.?\s*"(\\.|[^"\\])*("\s*:?\s*.{0,4})?""", re.DOTALL)
    text = CASES[name][0][0]
    splitter = ChannelSplitter(THINK, TOOL_FORMATS[name], declared=KNOWN)
    begin, came = text.index(ARGS), ""
    for i, char in enumerate(text[: begin + len(ARGS)]):
        calls = [segment.call for segment in splitter.feed(char) if segment.call is not None]
        came += "".join(call.arguments for call in calls)
        assert waits.fullmatch(ARGS[: max(0, i + 1 - begin)].removeprefix(came)), came
    assert splitter.calls == 1
    assert came == ARGS


@pytest.mark.parametrize(("name", "text"), [(name, case[0]) for name, cases in CASES.items() for case in cases[:1]])
def test_cut_off_before_the_name_is_known_it_is_content_and_after_it_stands(name, text):
    for length in range(len(text)):
        calls, _, content, _ = told(split(name, [text[:length]], cut=True))
        if not calls:
            assert content == text[:length].rstrip() or content == text[:length]
        else:
            assert text[:length].endswith(content.removeprefix("Ah"))  # the next call, before its name
            assert calls[0][0] == "add"
            assert name in WHOLE or ARGS.startswith(calls[0][1]) or calls[0][1].startswith(ARGS)


HEAD = '<tool_call>{"name": "add", "arguments": {"a": '


@pytest.mark.parametrize(
    ("rest", "arguments", "content"),
    [
        ("? 1}} so</tool_call> bye", "{}", '"a": ? 1}} so bye'),
        ("[? 2]}</tool_call>", '{"a": []}', "? 2]}"),
        ('1, "b": ?}</tool_call>', '{"a": 1}', ', "b": ?}'),
        ('1, "b": f"x"}</tool_call>', '{"a": 1}', ', "b": f"x"}'),
        ('1}, "x": ?}\n</tool_call> bye', '{"a": 1}', ', "x": ?}\n bye'),
        ("1}}\n?</tool_call>\n<tool_call>?", '{"a": 1}', "\n?\n<tool_call>?"),
    ],
)
def test_wrong_after_the_name_what_went_out_stands_and_the_rest_is_content(rest, arguments, content):
    assert told(split("hermes", list(HEAD + rest))) == ([("add", arguments)], [], content, "")


def test_a_later_call_of_a_block_that_is_cut_is_content_from_its_own_beginning():
    text = '[TOOL_CALLS][{"name": "add", "arguments": {}}, {"na'
    assert told(split("mistral", list(text))) == ([("add", "{}")], [], '{"na', "")
    assert told(split("mistral", list(text[:-4]))) == ([("add", "{}")], [], "", "")


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize(("depth", "whole"), [(490, True), (510, False), (5000, False)])
def test_arguments_nested_too_deep_are_a_call_that_was_cut(name, depth, whole):
    """At one depth for all, below where Python's own readers give up."""
    shallow = "[" * 9 + "]" * 9
    text = written(name, [("f", {"a": json.loads(shallow)})])
    assert shallow in text
    text = text.replace(shallow, "[" * depth + "]" * depth)
    for pieces in ([text], list(text)):
        splitter = ChannelSplitter(None, TOOL_FORMATS[name], "unknown", {})
        segments = [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush()
        (called, arguments), *_ = calls_in(segments)
        assert (called, splitter.cut_call) == ("f", not whole)
        assert is_json(arguments)


def test_properties_that_are_null_are_missing():
    assert close_schema({"properties": None, "required": None}, "f") == close_schema({}, "f")


def test_ids_that_the_model_writes_and_those_its_template_wants():
    kimi = split("kimi_k2", [CASES["kimi_k2"][0][0]])
    assert [s.call.id for s in kimi if s.call and s.call.name] == ["functions.add:0", "functions.get.it-2:1"]
    made = [s.call.id for s in split("mistral", [CASES["mistral"][0][0]]) if s.call and s.call.name]
    assert all(re.fullmatch("[a-z0-9]{9}", id or "") for id in made)
    assert len(set(made)) == 2
    written = [s.call.id for s in split("mistral", [CASES["mistral"][3][0]]) if s.call and s.call.name]
    assert written == ["abcdefghi"]


def test_thoughts_before_an_answer_that_is_a_call():
    text = '<think>{"name": "add"}</think>\n{"name": "add", "parameters": {}}'
    assert told(split("llama3_json", list(text))) == ([("add", "{}")], [], "", '{"name": "add"}')


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("start", ["opened", "unknown", "closed"])
@pytest.mark.parametrize("calls", [ONE, TWO])
def test_a_call_without_markers_may_stand_in_the_place_of_the_thought(name, start, calls):
    """The prompt may have opened a thought that the model skips."""
    text = written(name, calls)
    said = [(called, json.dumps(arguments)) for called, arguments in calls]
    thought = text if start == "opened" else ""
    for whole, expected in (
        (text, ("", "")),
        (f" \n{text}\n", ("", "")),
        (f"{text} then", (" then", f"{thought} then" if thought else "")),
        (f"so {text}", ("so ", f"so {thought}" if thought else "")),
    ):
        for pieces in ([whole], list(whole), [whole[:7], whole[7:]]):
            splitter = ChannelSplitter(REASONING_FORMATS["deepseek_r1"], TOOL_FORMATS[name], start, KNOWN)
            segments = [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush()
            found, _, *channels = told(segments)
            assert [(called, json.dumps(json.loads(arguments))) for called, arguments in found] == said
            assert tuple(channels) == expected
            assert splitter.called


@pytest.mark.parametrize(
    ("text", "thought", "content"),
    [
        ('{"name": "add"}</think>ok', '{"name": "add"}', "ok"),
        ('{"name": "add"} would do</think>ok', '{"name": "add"} would do', "ok"),
        ('{"sum": 3}', '{"sum": 3}', '{"sum": 3}'),
        ('{"name": "Bob"}', '{"name": "Bob"}', '{"name": "Bob"}'),
        ('{"name": "ad', '{"name": "ad', '{"name": "ad'),
        ("\n ", "\n ", ""),
    ],
)
def test_a_thought_that_begins_like_a_call_stays_a_thought(text, thought, content):
    form = REASONING_FORMATS["deepseek_r1"]
    for pieces in ([text], list(text)):
        splitter = ChannelSplitter(form, TOOL_FORMATS["llama3_json"], "opened", KNOWN)
        segments = [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush()
        assert told(segments) == ([], [], content, thought)
    splitter = ChannelSplitter(form, TOOL_FORMATS["llama3_json"], "opened", KNOWN)
    assert told(splitter.feed(text) + splitter.flush(cut=True)) == ([], [], content if "ok" in text else "", thought)


def test_calls_of_a_skipped_thought_are_calls_where_thoughts_hold_none():
    text = written("seed_oss", [("add", {"s": "x"})])
    splitter = ChannelSplitter(REASONING_FORMATS["seed"], TOOL_FORMATS["seed_oss"], "opened", KNOWN)
    assert told(splitter.feed(text) + splitter.flush()) == ([("add", '{"s": "x"}')], [], "", text)


@pytest.mark.parametrize("name", WHOLE)
def test_of_a_parameter_that_is_written_twice_the_last_value_counts(name):
    """Where arguments go out as they come, the first value has left. Readers of JSON take the last one."""
    text = written(name, [("add", {"s": "x", "n": 1, "z": "y"})])
    text = re.sub("z(?=[^a-z])", "s", text)
    for pieces in ([text], list(text)):
        twice = '{"s": "x", "n": 1, "s": "y"}' if name in UNQUOTED else '{"s": "y", "n": 1}'
        assert calls_in(split(name, pieces)) == [("add", twice)]
        assert json.loads(twice) == {"s": "y", "n": 1}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": ["string", "null"]}, "5"),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("5", {"type": ["string", "integer"]}, 5),
        ("5", {"type": 3, "anyOf": "x"}, 5),
        ("5", None, 5),
        (' {"a": [1]}\n', {"type": "object"}, {"a": [1]}),
        ("False", {"type": "boolean"}, False),
        ("False", {"type": "string"}, "False"),
        ("{'a': True, 'b': None}", {"type": "object"}, {"a": True, "b": None}),
        ("[(1, 'x')]", {"type": "array"}, [[1, "x"]]),
        ("{'a': 1}", {}, "{'a': 1}"),
        ("{'a': f()}", {"type": "object"}, "{'a': f()}"),
        ("TRUE", {"type": "boolean"}, True),
        ("5", {"anyOf": [{"type": "string"}, {"type": "object"}]}, "5"),
        ("1", {"enum": ["1", 2]}, "1"),
        ("2", {"enum": ["1", 2]}, 2),
        ("5", {"type": "string", "nullable": True}, "5"),
        ("null", {"type": "string", "nullable": True}, None),
        ("5", {"allOf": [{"type": "string"}], "default": "x"}, "5"),
        ("5", {"anyOf": [{"$ref": "#/$defs/s"}, {"type": "null"}], "$defs": {"s": {"type": "string"}}}, "5"),
        ("5", {"$ref": "#/$defs/s", "$defs": {"s": {"$ref": "#/$defs/s"}}}, 5),
        ("NaN", {}, "NaN"),
        ("", {}, ""),
    ],
)
def test_bare_text_becomes_the_value_that_is_declared(text, schema, value):
    assert json.loads(json_of(text, Declared(schema))) == value


@pytest.mark.parametrize("key", ["anyOf", "allOf", "oneOf"])
def test_references_that_fork_are_followed_so_far_and_no_further(key, monkeypatch):
    """Each of twenty schemas refers to the next one twice: followed apart, these would be a million paths."""
    followed: list[str] = []
    pointed = resolve.resolve_pointer
    monkeypatch.setattr(resolve, "resolve_pointer", lambda root, ref: followed.append(ref) or pointed(root, ref))
    defs = {f"d{i}": {key: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(20)} | {"d20": {"type": "string"}}
    for schema in ({"$defs": defs, "$ref": "#/$defs/d0"}, {"$ref": "#", key: [{"$ref": "#"}] * 2}):
        assert json.loads(json_of("5", Declared(schema))) in (5, "5")
    assert len(followed) <= 4 * resolve.MAX_STEPS  # two schemas, each asked for its types and its values


def test_odd_declarations_are_no_trouble():
    odd = [
        {},
        {"function": None},
        {"function": {"name": 3}},
        {"function": {"name": "f", "parameters": {"properties": 1}}},
    ]
    assert tool_schemas(odd).keys() == {"f"}
    assert tool_schemas(odd)["f"].get_property("a").get_kinds() == set()
    assert tool_schemas(None) == {}


@pytest.mark.parametrize(
    "inside", ["(" * 5000, "-" * 100_000 + "1", "1+" * 50_000 + "1", "'\\ud800'", "9" * 5000, "1e999", "b'x'", "{1}"]
)
def test_hostile_literals_are_text_or_values(inside):
    text = f"[add(a={inside})]"
    with warnings.catch_warnings(action="error"):
        calls, _, content, _ = told(split("pythonic", [text]))
    assert content == text or json.loads(calls[0][1])


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_what_has_been_read_is_not_looked_at_again(name):
    """What is held for the next token is shorter than a few markers, so a token costs the same late in a call as
    early."""
    text = CASES[name][0][0].replace("[2, {", "[" + "2, " * 500 + "{").replace("12", "12" * 500)
    splitter = ChannelSplitter(THINK, TOOL_FORMATS[name], declared=KNOWN)
    for char in text:
        splitter.feed(char)
        left = splitter._held if splitter._block is None else splitter._block.unread
        assert len(left) < max(128, *map(len, TOOL_FORMATS[name].marks))
    splitter.flush()
    assert splitter.calls


@pytest.mark.parametrize(
    "text",
    [
        "f(a=1.e999)",
        r"f(a=b'\xff')",
        "f(a=f'{x}')",
        "f(a={f'{x}': 1})",
        "f(a={1, 2})",
        "f(a=[other])",
        "f(a={1: 2})",
        "f(a=1j)",
        "f(1)",
        "f(**a)",
    ],
)
def test_pythonic_values_that_json_does_not_know(text):
    with pytest.raises(NotACallError):
        calls_of(text)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"r'\d+'", r"\d+"),
        (r'R"\n"', r"\n"),
        ("b'x'", "x"),
        (r'b"\xc3\xa9"', "é"),
        (r"rb'\x'", r"\x"),
        (r"Br'\d'", r"\d"),
        ("u'x'", "x"),
        ("f'x {{y}}'", "x {y}"),
        ("f''", ""),
        ("r'a' f'b'", "ab"),
        (r"[r'\a', b'\t', {b'k': b'v', r'\l': f'w'}]", ["\\a", "\t", {"k": "v", "\\l": "w"}]),
        ("b'''it's ok'''", "it's ok"),
    ],
)
def test_pythonic_strings_with_prefixes_are_texts(literal, value):
    for name in ("pythonic", "lfm2", "olmo3"):
        text = written(name, [("add", {"s": 77})]).replace("77", literal)
        for pieces in ([text], list(text)):
            [(called, arguments)] = calls_in(split(name, pieces))
            assert (called, json.loads(arguments)) == ("add", {"s": value})


def test_pythonic_values_that_json_knows():
    [(name, arguments)] = calls_of("f(a=[1, (2.5, 'x')], b={'k': None}, c=true, d=-1e999, e=0x10)")
    assert (name, arguments) == ("f", {"a": '[1,[2.5,"x"]]', "b": '{"k":null}', "c": "true", "d": "-1e999", "e": "16"})
