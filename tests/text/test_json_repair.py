"""JSON of a call: valid JSON leaves as it is written, usual mistakes leave repaired, and finished calls have objects as
arguments, in every format and in any chunks."""

from __future__ import annotations

import json
import random
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.tool_parsers import TOOL_FORMATS, tool_schemas
from tailrace.text.tool_parsers.json_repair import object_of
from tailrace.text.tool_parsers.trees import Gemma
from tool_examples import STREAMED, UNQUOTED, WRITERS, of_shape, plain

ASKED = [
    {"type": "function", "function": {"name": "add", "parameters": {"properties": {"s": {"type": "string"}, "n": {}}}}}
]
PIECES = (*"ab \"'\\/\n\t{}[]:,<#é😀-_0`“”", "</tool_call>", "<tool_call>", "```", '", "k": ', "'''", '" + "', "}}\n")
TEXT = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
KINDS = ["object", "array"]
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)


def read(form: str, pieces: list[str], limit: bool = False) -> tuple[list[tuple[str, str]], str, bool]:
    """The calls, what else is content, and whether a call was cut. limit: a limit ends the text."""
    splitter = ChannelSplitter(None, TOOL_FORMATS[form], "unknown", tool_schemas(ASKED))
    segments = [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush(limit)
    calls: list[tuple[str, str]] = []
    for call in (segment.call for segment in segments if segment.call is not None):
        calls = [*calls, (call.name, "")] if call.name else calls
        calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    return calls, "".join(s.text for s in segments if s.channel == "content"), splitter.cut_call


def read_both(form: str, text: str) -> tuple[list[tuple[str, str]], str, bool]:
    whole = read(form, [text])
    assert read(form, list(text)) == whole
    return whole


@settings(max_examples=examples(400), deadline=None)
@given(value=OBJECTS, indent=st.sampled_from([None, 0, 2]), ascii=st.booleans())
def test_valid_json_leaves_as_it_is_written(value, indent, ascii):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    assert object_of(text) == text
    calls, said, cut = read_both("hermes", f'<tool_call>{{"name": "add", "arguments": {text}}}</tool_call>')
    assert (calls, said, cut) == ([("add", text)], "", False)


@settings(max_examples=examples(400), deadline=None)
@given(value=OBJECTS)
def test_literals_of_python_leave_as_json(value):
    assert json.loads(object_of(repr(value)) or "") == value


REPAIRED: list[tuple[str, typing.Any]] = [
    ('{"a": 1,}', {"a": 1}),
    ('{"a": [1, 2, ] , }', {"a": [1, 2]}),
    ('{,"a": 1,, "b": 2}', {"a": 1, "b": 2}),
    ('{"a": 1 "b": "x" "c": 2}', {"a": 1, "b": "x", "c": 2}),
    ("{'a': 'x', \"b\": 'it\\'s \"so\"'}", {"a": "x", "b": 'it\'s "so"'}),
    ("{'a': 'it's'}", {"a": "it's"}),
    ('{"a": "echo "hi" to"}', {"a": 'echo "hi" to'}),
    ('{"a": "echo "hi""}', {"a": 'echo "hi"'}),
    ('{"a": "echo \\\'hi\\\'"}', {"a": "echo 'hi'"}),
    ("{'a': True, 'b': None, 'c': (1, False), 'd': ()}", {"a": True, "b": None, "c": [1, False], "d": []}),
    ("{a: 1, b_2: [x, two words], c-d: null}", {"a": 1, "b_2": ["x", "two words"], "c-d": None}),
    ('{"a": NaN, "b": -Infinity, "c": [nan, inf, undefined]}', {"a": None, "b": None, "c": [None] * 3}),
    (
        '{"a": +1, "b": .5, "c": 1., "d": 0x10, "e": 1_000, "f": 007}',
        {"a": 1, "b": 0.5, "c": 1.0, "d": 16, "e": 1000} | {"f": "007"},
    ),
    (
        '{"a": 1, // one\n "b": /* two */ 2, # three\n "c": "http://x#y" /* four **/}',
        {"a": 1, "b": 2, "c": "http://x#y"},
    ),
    ('{"a": "x\ny\tz\x01", "b": "\\d \\x41 \\u00e9 \\u12"}', {"a": "x\ny\tz\x01", "b": "\\d \\x41 é \\u12"}),
    ('{"a": """x "y"\n z"""}', {"a": 'x "y"\n z'}),
    ('{"a": {"b": [1, 2}', {"a": {"b": [1, 2]}}),
    ('{"a": "", "b": \'\'}', {"a": "", "b": ""}),
    ('{\xa0"a"\u2003: 1}', {"a": 1}),
    ('{"a": , "b": }', {"a": None, "b": None}),
    ('{"a" "x"}', {"a": "x"}),
    ('{"a"="x", b => 2}', {"a": "x", "b": 2}),
    ('{"a":: "x"，"b"： [1]， "c"："y"}', {"a": "x", "b": [1], "c": "y"}),
    ('{"a": ["x"，"y"], "b": "say "hi"，then go", "c": 1}', {"a": ["x", "y"], "b": 'say "hi"，then go', "c": 1}),
    ('{"a": "x"; "b": 1; c: "y";}', {"a": "x", "b": 1, "c": "y"}),
    ('{"a": "x; y"z"; w"}', {"a": 'x; y"z"; w'}),
    ("{a: ls; pwd}", {"a": "ls; pwd"}),
    # other quotes, with other quotes in the text
    ("""{“a”: “x”, ‘b’: ‘it’s "so"’, `c`: `echo 'hi' "ho"`}""", {"a": "x", "b": 'it’s "so"', "c": "echo 'hi' \"ho\""}),
    ("{“a”: “say “hi” to me”}", {"a": "say “hi” to me"}),
    ('{"a": “x", ”b”: 1}', {"a": "x", "b": 1}),
    # joined texts
    ('{"a": "x" + "y", "b": [\'it\\\'s\' + "z"]}', {"a": "xy", "b": ["it's" + "z"]}),
    ('{"a": "x\\n" +\n  "y" +\n  """z"""}', {"a": "x\nyz"}),
    ('{"a": "x"\n  "y", "b": 1}', {"a": "xy", "b": 1}),
    ('{"a": "f("x" + "y")"}', {"a": 'f("x" + "y")'}),
    # a quote too few
    ('{"a": "x, "b": "y"}', {"a": "x", "b": "y"}),
    ('{"a": "x,\n "b": "y}', {"a": "x", "b": "y"}),
    ('{"a": "x}', {"a": "x"}),
    ('{"a": [1, "x]}', {"a": [1, "x"]}),
    ('{"a": "f() { x }}', {"a": "f() { x }"}),
    ('{a": "x"}', {"a": "x"}),
    # quotes of a text, also before what ends texts elsewhere
    ('{"a": "say "hi", then go", "b": 1}', {"a": 'say "hi", then go', "b": 1}),
    ('{"a": "12" wide", "b": "it"s"}', {"a": '12" wide', "b": 'it"s'}),
    ('{"a": "say {"hi"} to me"}', {"a": 'say {"hi"} to me'}),
    ('{"a": "{"k": "v", "l": [1, "w"]}", "b": 1}', {"a": '{"k": "v", "l": [1, "w"]}', "b": 1}),
    ('{"a": "x", y"}', {"a": 'x", y'}),
    # triple quotes
    ('{"""a""": \'\'\'\'x\' y\'\'\'\', "b": """"x""""}', {"a": "'x' y'", "b": '"x"'}),
    ('{"a": """say "hi", {"k": 1}"""}', {"a": 'say "hi", {"k": 1}'}),
    # doubled braces
    ('{{"a": {{"b": 1}}, "c": {{}}}}', {"a": {"b": 1}, "c": {}}),
    ("{}", {}),
]


@pytest.mark.parametrize(("text", "value"), REPAIRED)
@pytest.mark.parametrize("form", ["hermes", "kimi_k2", "mistral", "nemotron", "apertus"])
def test_usual_mistakes_are_repaired_in_the_stream(form, text, value):
    written = WRITERS[form](None, [("add", {"k": 5})], plain).replace('{"k": 5}', text)
    calls, said, cut = read_both(form, written)
    assert ([(name, json.loads(arguments)) for name, arguments in calls], said, cut) == ([("add", value)], "", False)


WRAPPED: list[tuple[str, str, typing.Any, str]] = [
    ("hermes", "<tool_call>{'name': 'add', 'arguments': {'a': 1}}</tool_call>.", {"a": 1}, "."),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1},}</tool_call>', {"a": 1}, ""),
    ("hermes", '<tool_call>{name: "add", arguments: {"a": 1}}</tool_call>', {"a": 1}, ""),
    ("hermes", '<tool_call>{{"name": "add", "arguments": {"a": 1}}}</tool_call>.', {"a": 1}, "."),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}}}}</tool_call>.', {"a": 1}, "."),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": [1}</tool_call>.', {"a": [1]}, "."),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1</tool_call>.', {"a": 1}, "."),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1,\n</tool_call>.', {"a": 1}, "."),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}\n<tool_call>?', {"a": 1}, "<tool_call>?"),
    ("hermes", '<tool_call>{"name": "add", "arguments": null}</tool_call>', {}, ""),
    ("hermes", '<tool_call>{"name": "add", "arguments": ""}</tool_call>', {}, ""),
    ("hermes", '<tool_call>{"name": "add", "arguments": []}</tool_call>', {}, ""),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\'a\': 1,}"}</tool_call>', {"a": 1}, ""),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}', {"a": 1}, ""),
    ("nemotron", '<TOOLCALL>[{"name": "add", "arguments": {"a": 1}},]</TOOLCALL>', {"a": 1}, ""),
    ("nemotron", '<TOOLCALL>[{"name": "add", "arguments": {"a": 1}</TOOLCALL>.', {"a": 1}, "."),
    ("nemotron", '<TOOLCALL>[{"name": "add", "arguments": {"a": 1}}</TOOLCALL>.', {"a": 1}, "."),
    ("apertus", "<|tools_prefix|>[{'add': {'a': 1}<|tools_suffix|>.", {"a": 1}, "."),
    ("mistral", "[TOOL_CALLS]add[ARGS]{'a': 1}", {"a": 1}, ""),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1}}', {"a": 1}, ""),
    ("mistral", '[TOOL_CALLS]add[ARGS]"{\\"a\\": 1}"', {"a": 1}, ""),
    ("mistral", '[TOOL_CALLS]call_1[ARGS]{"name": "add", "arguments": {"a": 1}}', {"a": 1}, ""),
    ("llama3_json", "{'name': 'add', 'parameters': {'a': 1}}", {"a": 1}, ""),
    ("llama3_json", '{"name": "add", "parameters": {"a": 1}}}', {"a": 1}, ""),
]
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
WRAPPED += [
    ("kimi_k2", KIMI.format(id, text) + "<|tool_calls_section_end|>", value, "")
    for id, text, value in [
        ("call_0a1b2c", '{"name": "add", "arguments": {"a": 1}}', {"a": 1}),
        ("call_0a1b2c", '{"name": "add", "arguments": "{\\"a\\": 1}"}', {"a": 1}),
        ("call_0a1b2c", '{"arguments": {"a": 1}, "name": "add"}', {"a": 1}),
        ("functions.add:0", '"{\\"a\\": 1}"', {"a": 1}),
        ("functions.add:0", "", {}),
        ("functions.add:0", '{"a": 1', {"a": 1}),
        ("functions.add:0", '{"name": "x", "arguments": 1}', {"name": "x", "arguments": 1}),
    ]
]
DS = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
WRAPPED += [
    ("deepseek_v3", DS.format(text), {"a": 1}, "")
    for text in (
        'function<｜tool▁sep｜>{"name": "add", "arguments": {"a": 1}}',
        "function<｜tool▁sep｜>add\n```json\n{'a': 1,}\n```",
        'add<｜tool▁sep｜>{"a": 1}}',
        'function<｜tool▁sep｜>add\n```json\n{"a": 1\n```',
    )
]


FENCED = '```json\n{"name": "add", "arguments": {"a": 1}}\n```'
WRAPPED += [
    # blocks of code
    ("hermes", f"<tool_call>\n{FENCED}\n</tool_call>.", {"a": 1}, "."),
    ("hermes", f"<tool_call>{FENCED.replace('json', '')}</tool_call>.", {"a": 1}, "."),
    ("hermes", '<tool_call>{"name": "add", "arguments": ```json\n{"a": 1}\n```}</tool_call>.', {"a": 1}, "."),
    ("qwen3_coder", f"<tool_call>\n{FENCED}\n</tool_call>.", {"a": 1}, "."),
    ("mistral", '[TOOL_CALLS]add[ARGS]```json\n{"a": 1}\n```', {"a": 1}, ""),
    ("kimi_k2", KIMI.format("functions.add:0", '```json\n{"a": 1}\n```'), {"a": 1}, ""),
    ("deepseek_v3", DS.format('add<｜tool▁sep｜>```json\n{"a": 1}\n```'), {"a": 1}, ""),
    # arguments as a text that ends too early
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": [1, 2"}</tool_call>.', {"a": [1, 2]}, "."),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}}</tool_call>.', {"a": 1}, "."),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}\n</tool_call>.', {"a": 1}, "."),
    # other keys in the place of arguments
    ("hermes", '<tool_call>{"name": "add", "s": "ls", "n": [1]}</tool_call>.', {"s": "ls", "n": [1]}, "."),
    ("hermes", '<tool_call>{"s": "ls", "id": "7", "name": "add"</tool_call>.', {"s": "ls"}, "."),
    (
        "hermes",
        '<tool_call>{"name": "add", "s": "ls", "thought": "hm"}</tool_call>.',
        {"s": "ls"},
        ', "thought": "hm".',
    ),
    ("hermes", '<tool_call>{"name": "add", "input": {"s": "ls"}}</tool_call>.', {"s": "ls"}, "."),
    ("hermes", '<tool_call>{"function": {"name": "add", "s": "ls"}}</tool_call>.', {"s": "ls"}, "."),
    ("hermes", '<tool_call>{"name": "add", "x": {"y": 0}, "arguments": {}}</tool_call>.', {}, ', "x": {"y": 0}.'),
    ("hermes", '<tool_call>{"name": "add", "arguments": {}, "x": {"y": 0}}</tool_call>.', {}, ', "x": {"y": 0}.'),
    ("hermes", '<tool_call>{"name"="add", “arguments”: {"a": 1}}</tool_call>.', {"a": 1}, "."),
    ("hermes", '<tool_call>{"name"： "add"， "arguments":: {"a": 1}}</tool_call>.', {"a": 1}, "."),
    ("hermes", '<tool_call>{"name" "add" "arguments" {"a": 1}}</tool_call>.', {"a": 1}, "."),
    ("hermes", '<tool_call>{"name": add, "arguments": {"a": 1}}</tool_call>.', {"a": 1}, "."),
    ("hermes", '<tool_call>{"add": {"a": 1}}</tool_call>.', {"a": 1}, "."),
    ("nemotron", '<TOOLCALL>[{"add": {"a": 1}}]</TOOLCALL>.', {"a": 1}, "."),
]


def test_parameters_beside_arguments_are_content_and_the_call_counts_as_cut():
    for beside in ('"s": "ls", "arguments": {}', '"arguments": {}, "s": "ls"'):
        calls, said, cut = read_both("hermes", f'<tool_call>{{"name": "add", {beside}}}</tool_call>.')
        assert (calls, said, cut) == ([("add", "{}")], ', "s": "ls".', True)
    calls, said, cut = read_both("mistral", '[TOOL_CALLS]add[ARGS]{"n": 1}, "s": "ls"}')
    assert (calls, said, cut) == ([("add", '{"n": 1}')], ', "s": "ls"}', True)


UNCLEAR = [
    ('{"name": "add", "argments": {"a": 1}}', [], None),
    ('{"name": other, "arguments": {"a": 1}}', [], None),
    ('{"other": {"a": 1}}', [], None),
    ('{"name": "add"}, "arguments": {"a": 1}}', [], None),
    ('{"name": "add", "arguments": "{\\"s\\": \\"x"}', [], None),
    ('{"name": "add", "arguments": "{\\"s\\": \\"x\n', [], None),
    ('{"name": "add", "arguments": {"a": f"x{y}"}}', ["{}"], '"a": f"x{y}"}}'),
    ('{"name": "add", "arguments": {"n": 1, "a": r"\\d"}}', ['{"n": 1}'], ', "a": r"\\d"}}'),
    ('{"name": "add", "arguments": {"n": 1, ...}}', ['{"n": 1}'], ", ...}}"),
    ('{"name": "add", "arguments": {"n": 1, "a" : ```x```}}', ['{"n": 1}'], ', "a" : ```x```}}'),
    ('{"name": "add", "arguments": {"s: "x"}}', ["{}"], '"s: "x"}}'),
    ('{"name": "add", "arguments": {"s"": "x"}}', ["{}"], '"s"": "x"}}'),
    ('{"name": "add", "arguments": {"s": x"}}', ["{}"], '"s": x"}}'),
    ('{"name": "add", "arguments": {"ls"}}', ["{}"], '"ls"}}'),
    ('{"name": "add", "arguments": {"s": "x" * 3}}', ['{"s": "x\\" * 3"}'], "}}"),
    *(
        (f'{{"name": "add", "arguments": {{"n": ["x" {sign} "y"]}}}}', [f'{{"n": ["x\\" {sign} \\"y"]}}'], '"]}}')
        for sign in ("-", "if y else", "| cut |")
    ),
    ('{"name": "add", "arguments": {"n": ["x, "y"]}}', ['{"n": ["x, \\"y"]}'], '"]}}'),
    ('{"name": "add", "arguments": {"o": {"s": "x}, "n": 1}}', ['{"o": {"s": "x}"}}'], ', "n": 1}}'),
    ('{"name": "add", "arguments": {"s": [1].join(",")}}', ['{"s": [1]}'], '.join(",")}}'),
    ('{"name": "add", "arguments": {"s": "x”, "t": 1}}', ['{"s": "x”"}'], ', "t": 1}}'),
    ('{"name": "add", "arguments": {"s": \' "x", "n": 1}}', ['{"s": " \\"x\\", \\"n\\": 1"}'], "}}"),
]


@pytest.mark.parametrize(("text", "arguments", "content"), UNCLEAR)
def test_what_is_not_clear_is_content_and_a_call_that_has_begun_counts_as_cut(text, arguments, content):
    """The next call is read all the same."""
    for more in ("", '\n<tool_call>{"name": "add", "arguments": {"s": "y"}}</tool_call>'):
        calls, said, cut = read_both("hermes", f"<tool_call>{text}</tool_call>{more}")
        others = [("add", '{"s": "y"}')] if more else []
        assert calls == [*(("add", one) for one in arguments), *others]
        assert said == (f"<tool_call>{text}</tool_call>{more[:1]}" if content is None else content)
        assert cut == bool(arguments)


@pytest.mark.parametrize(
    "more", [" and so on", ' "x", "y": 1', '\n<tool_call>{"name": "add", "arguments": {}}</tool_call>']
)
@pytest.mark.parametrize("ended", ["x}}\n", "x}", "x", 'x", "n": [1, "x'])
def test_a_missing_quote_costs_no_text_behind_the_call(ended, more):
    text = f'<tool_call>{{"name": "add", "arguments": {{"s": "{ended}</tool_call>{more}'
    calls, said, cut = read_both("hermes", text)
    assert json.loads(calls[0][1]) in ({"s": "x"}, {"s": "x", "n": [1, "x"]})
    assert (len(calls), cut) == (1 + ("<" in more), False)
    assert said == ("" if "<" in more else more)


def test_markers_in_texts_are_held_up_to_the_next_quote_only():
    splitter = ChannelSplitter(None, TOOL_FORMATS["hermes"], "unknown", tool_schemas(ASKED))
    pieces = ['<tool_call>{"name": "add", "arguments": {"s": "a', "</tool_call> b", ' \\" c', '", "n": "d', "e", '"}}']
    came = ["".join(s.call.arguments for s in splitter.feed(piece) if s.call) for piece in pieces]
    assert came[:3] == ['{"s": "a', "", ""]
    assert came[3:] == ['</tool_call> b \\" c"', ', "n": "de', '"}'] or "".join(came[3:]).endswith('e"}')
    assert json.loads("".join(came)) == {"s": 'a</tool_call> b " c', "n": "de"}


def test_the_second_marker_may_end_a_text_that_the_first_does_not_end():
    text = '<tool_call>{"name": "add", "arguments": {"s": "x", </tool_call>"n":</tool_call> 2}</tool_call> so'
    assert read_both("hermes", text) == (
        [("add", r'{"s": "x\", </tool_call>\"n\":</tool_call> 2"}')],
        "} so",
        True,
    )


@pytest.mark.parametrize(("form", "text", "value", "content"), WRAPPED)
def test_what_stands_around_arguments_is_repaired_too(form, text, value, content):
    calls, said, cut = read_both(form, text)
    assert ([(name, json.loads(arguments)) for name, arguments in calls], said, cut) == (
        [("add", value)],
        content,
        False,
    )


@pytest.mark.parametrize("arguments", ["no", '"no"', "5", "[1]", "[[]]", "True", "?"])
@pytest.mark.parametrize("form", STREAMED)
def test_arguments_that_are_no_object_are_content(form, arguments):
    text = WRITERS[form](None, [("add", {"k": 5})], plain).replace('{"k": 5}', arguments)
    assert read_both(form, text) == ([], text, False)


def test_a_call_id_that_the_model_wrote_is_kept():
    splitter = ChannelSplitter(None, TOOL_FORMATS["kimi_k2"], "unknown", tool_schemas(ASKED))
    segments = splitter.feed(KIMI.format("call_0a1b2c", '{"name": "add", "arguments": {}}'))
    assert [s.call.id for s in segments if s.call is not None and s.call.name] == ["call_0a1b2c"]


HEADS = {
    "hermes": '<tool_call>{"name": "add", "arguments": ',
    "mistral": "[TOOL_CALLS]add[ARGS]",
    "llama3_json": '{"name": "add", "parameters": ',
    "granite": '<|tool_call|>[{"name": "add", "arguments": ',
    "inkling": '<|content_invoke_tool_json|>{"name": "add", "args": ',
    "nemotron": '<TOOLCALL>[{"name": "add", "arguments": ',
}
# the arguments so far, what leaves if the model ends here, whether the call is whole then, what leaves at a limit
BEGUN = [
    ('{"s": "x"', '{"s": "x"}', True, '{"s": "x"'),
    ('{"s": [12', '{"s": [12]}', True, '{"s": [12'),
    ('{"s": tru', '{"s": "tru"}', True, '{"s": tru'),
    ('{"s": "x', '{"s": "x"}', False, '{"s": "x'),
    ('{"s', "{}", False, '{"s'),
    ('{"s":', "{}", False, '{"s":'),
]


@pytest.mark.parametrize("form", HEADS)
@pytest.mark.parametrize(("begun", "ended", "whole", "limited"), BEGUN)
def test_the_models_end_closes_what_is_open_and_a_limit_does_not(form, begun, ended, whole, limited):
    calls, said, cut = read_both(form, HEADS[form] + begun)
    assert (calls, cut) == ([("add", ended)], not whole)
    assert said == ("" if ended != "{}" else begun[1:])
    assert read(form, list(HEADS[form] + begun), limit=True)[0] == [("add", limited)]


@pytest.mark.parametrize("form", HEADS)
@pytest.mark.parametrize("text", ['{"s": "x", ?}', '{"s": [? 1]}', '{"s": x: -l "y"}'])
def test_what_can_not_be_repaired_is_closed(form, text):
    calls, _, cut = read_both(form, HEADS[form] + text)
    assert cut
    assert [type(parsed(arguments)) for _, arguments in calls] == [dict]


@pytest.mark.parametrize("form", ["hermes", "inkling", "nemotron"])
def test_a_call_that_ends_before_its_arguments_has_none(form):
    for text in (HEADS[form][:-3], HEADS[form][:-1], HEADS[form].partition(",")[0]):
        assert read_both(form, text)[0] == [("add", "{}")]
        assert read(form, [text], limit=True)[0] == [("add", "")]


MUTANTS = (
    ",",
    "'",
    '"',
    "{",
    "}",
    "[",
    "]",
    ":",
    "\\",
    "//",
    "True",
    "NaN",
    " x ",
    "\n",
    "\\u1",
    "#",
    "(",
    ")",
    "'''",
    '"""',
    '" + "',
    "“",
    "’",
    "`",
    "```",
    "{{",
    "：",
    "，",
    "<tool_call>",
    "</tool_call>",
)


@pytest.mark.few(10)
@pytest.mark.parametrize("form", TOOL_FORMATS)
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), value=OBJECTS, seed=st.integers(0, 1000))
def test_calls_have_objects_as_arguments(form, data, value, seed):
    """Mutated calls, or their beginnings: the arguments of all calls are objects, unless a limit cut the text."""
    try:
        text = WRITERS[form](random.Random(seed), [("add", value), ("add", {"s": "x", "n": [1, {"k": True}]})], plain)
    except UnicodeError:
        return
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(st.sampled_from(("", *MUTANTS, *TOOL_FORMATS[form].marks)))
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 2)) :]
    text = text[: data.draw(st.none() | st.integers(0, len(text)))]
    calls, _, _ = read_both(form, text)
    kinds = {type(parsed(arguments)) for _, arguments in calls}
    assert kinds <= {dict}, calls


def parsed(text: str) -> typing.Any:
    """The value; the text itself if it is no JSON."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except ValueError:
        return text


@pytest.mark.parametrize("form", ["hermes", "llama3_json"])
@pytest.mark.parametrize("where", ['{{"a": "{}"}}', '{{"{}": 1}}', '{{"a": ["{}", "b"]}}'])
@pytest.mark.parametrize(
    ("written", "left"),
    [
        (r"\ud83d", r"\ufffd"),
        (r"x\uDE00y", r"x\ufffdy"),
        (r"\ud83d\ud83d\ude00", r"\ufffd\ud83d\ude00"),
        (r"\ud83d\u0041", r"\ufffd\u0041"),
        (r"\ud83d\n\ude00", r"\ufffd\n\ufffd"),
        (r"\ude00\ud83d", r"\ufffd\ufffd"),
        (r"\uD83D\uDE00", r"\uD83D\uDE00"),
        (r"\ud83dude00", r"\ufffdude00"),
        (r"\\ud83d", r"\\ud83d"),
    ],
)
def test_half_of_a_surrogate_pair_leaves_as_the_replacement(form, where, written, left):
    before, after = ("<tool_call>", "</tool_call>") if form == "hermes" else ("", "")
    key = "arguments" if form == "hermes" else "parameters"
    calls, said, cut = read_both(form, f'{before}{{"name": "add", "{key}": {where.format(written)}}}{after}')
    assert (calls, said, cut) == ([("add", where.format(left))], "", False)


@pytest.mark.parametrize("form", [form for form in UNQUOTED if form != "gigachat35" and form not in of_shape(Gemma)])
@pytest.mark.parametrize(
    ("written", "left"),
    [
        (r'["\ud83d", "\uD83D\uDE00"]', ["\ufffd", "😀"]),
        (r'{"\ude00": "\\ud83d"}', {"\ufffd": r"\ud83d"}),
        (r"['\ud83d', '\ud83d\ude00']", ["\ufffd", "😀"]),
    ],
)
def test_values_between_tags_hold_no_half_of_a_surrogate_pair(form, written, left):
    asked = [{"type": "function", "function": {"name": "add", "parameters": {"properties": {"n": {"type": KINDS}}}}}]
    text = WRITERS[form](None, [("add", {"n": [7]})], plain).replace("[7]", written)
    if text == WRITERS[form](None, [("add", {"n": [7]})], plain):  # lists are written as tags
        return
    splitter = ChannelSplitter(None, TOOL_FORMATS[form], "unknown", tool_schemas(asked))
    segments = splitter.feed(text) + splitter.flush()
    assert json.loads("".join(s.call.arguments for s in segments if s.call is not None)) == {"n": left}
