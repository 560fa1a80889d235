"""Values that hold the tags of their own format, whole calls, markers of thoughts: read back to themselves in every
format, in any chunks. A closing tag counts if the next parameter or the end of the call follows."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.reasoning import REASONING_FORMATS
from tailrace.text.tool_parsers import TOOL_FORMATS, tool_schemas
from tailrace.text.tool_parsers.addressed import Addressed, Headed
from tailrace.text.tool_parsers.horizon import Horizon
from tailrace.text.tool_parsers.sections import Sectioned
from tailrace.text.tool_parsers.tag_tree import TagTree
from tailrace.text.tool_parsers.tagged import InChannels, Tagged
from tailrace.text.tool_parsers.trees import Gemma
from tool_examples import ALONE, TAGGED, UNQUOTED, WRITERS, of_shape, plain, written

ASKED = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"properties": {"s": {"type": "string"}, "t": {"type": "string"}, "n": {}}},
        },
    }
    for name in ("add", "other")
]
FORMS = list(TOOL_FORMATS)
IN_TAGS = of_shape(Tagged, InChannels)


def read(form: str, pieces: list[str], cut: bool = False) -> tuple[list[tuple[str, str]], str, bool]:
    """The calls, what else is content, and whether a call was cut."""
    splitter = ChannelSplitter(REASONING_FORMATS["think"], TOOL_FORMATS[form], "closed", tool_schemas(ASKED))
    segments = [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush(cut)
    calls: list[tuple[str, str]] = []
    for call in (segment.call for segment in segments if segment.call is not None):
        calls = [*calls, (call.name, "")] if call.name else calls
        calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    return calls, "".join(s.text for s in segments if s.channel in ("content", "reasoning")), splitter.cut_call


def read_all(form: str, text: str, cut: bool = False) -> tuple[list[tuple[str, Any]], str]:
    """The calls as values, and the content: whole, by characters and in random pieces."""
    whole = read(form, [text], cut)
    rng = random.Random(text)
    for _ in range(3):
        cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randint(1, 9))))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(form, pieces, cut) == whole, pieces
    assert read(form, list(text), cut) == whole
    calls, said, unfinished = whole
    assert not unfinished
    return [(name, json.loads(arguments)) for name, arguments in calls], said


def tags(form: str) -> dict[str, str]:
    """The tags of a format: what closes a value, ends a call, ends and opens the block, and opens a parameter."""
    match TOOL_FORMATS[form].shape:
        case InChannels(calls=shape) | (Tagged() as shape):
            found = {"close": shape.close, "end": shape.end, "closing": shape.closing, "opening": shape.opening}
            return found | {"head": shape.parameter.replace("KEY", "zzz").replace("TYPE", "string")}
        case Gemma() as shape:
            return {
                "close": shape.quote,
                "end": "}",
                "closing": shape.closing,
                "opening": shape.opening,
                "head": "zzz:",
            }
        case TagTree() as shape:
            found = {"close": f"{shape.mark}</s>", "end": f"{shape.mark}</invoke>", "head": f"{shape.mark}<zzz>"}
            return found | {"closing": shape.closing, "opening": shape.opening}
    opening, closing = TOOL_FORMATS[form].markers[0]
    return {"close": '"', "end": "}", "closing": closing or "]", "opening": opening, "head": '"zzz": '}


def values(form: str) -> list[str]:
    one = tags(form)
    close, end, closing, opening, head = (one[name] for name in ("close", "end", "closing", "opening", "head"))
    call = written(form, [("other", {"s": "x", "n": 1})])
    found = [
        f'x = "{close}"',
        f"{close}.",
        f"a {closing} b",
        f"a{closing}",
        f"{end} b",
        f"{opening}",
        f"{head}",
        f"{head} b",
        f"<div>{close} <p>{end}</p>",
        f"if tag == '{close}': pass\nelse: '{end}' + '{closing}'",
        f"{end}{closing} and so on",
        f"{close}{close} twice",
        "<think> no </think>",
        "<|im_end|>",
        "[TOOL_CALLS] <tool_call> </tool_call> </function> </parameter> </arg_value> }",
        f"See:\n{call}\nDone.",
        f"{call} and {call}.",
    ]
    if form in of_shape(Gemma):  # a quote before a brace ends the value, also of a call in a text
        found = [value for value in found if call not in value]
    if form in of_shape(TagTree):
        found = [value for value in found if f"{close}{close}" not in value]
    return found


@pytest.mark.few(60)
@pytest.mark.parametrize(("form", "value"), [(form, value) for form in FORMS for value in values(form)])
def test_a_value_may_hold_any_text_of_its_format(form, value):
    for arguments in ({"s": value}, {"s": value, "t": "x"}, {"t": "x", "s": value}, {"s": value, "t": value}):
        for calls in ([("add", arguments)], [("add", arguments), ("add", {"s": "y"})], [("add", arguments)] * 2):
            text = WRITERS[form](None, calls, plain)
            assert read_all(form, text) == (calls, ""), text
    if form in UNQUOTED:  # the call ends the text, whatever cut it
        assert read_all(form, WRITERS[form](None, [("add", {"s": value})], plain), cut=True)[0]


def shape_of(form: str) -> Tagged:
    """The tags of a format."""
    match TOOL_FORMATS[form].shape:
        case InChannels(calls=shape) | Addressed(calls=shape) | Horizon(plain=shape) | (Tagged() as shape):
            return shape
    raise AssertionError(form)


def pair_of(form: str, key: str, value: str) -> str:
    """A parameter as the format writes it."""
    shape = shape_of(form)
    head = re.escape(shape.parameter).replace("KEY", key).replace("TYPE", "[a-z]+").replace("\\\n", r"\s*")
    pattern = rf"{head}\s*{re.escape(value)}\s*{re.escape(shape.close)}"
    return next(iter(re.findall(pattern, written(form, [("add", {key: value})]))))


def in_lines(line: str, value: str) -> str:
    return line.join(
        ("<tool_call>", "<function=add>", "<parameter=s>", value, "</parameter>", "</function>", "</tool_call>")
    )


M3 = "]<]minimax[>["
ODD_NAMES = {"from": "a", "in": [1], "max-length": [2], "$x": None}
TRIPLE = """add(s='''it's "( ]''', t=\"""\n(\""")"""
TOLERATED: list[tuple[str, str, list[tuple[str, Any]], str]] = [
    # without the last tags
    (
        "qwen3_coder",
        "<tool_call>\n<function=add>\n<parameter=s>\nx\n</parameter>\n</tool_call>.",
        [("add", {"s": "x"})],
        ".",
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=add>\n<parameter=s>\nx\n</parameter>\n</function>",
        [("add", {"s": "x"})],
        "",
    ),
    ("qwen3_coder", "<tool_call>\n<function=add>\n<parameter=s>\nx\n</parameter>\n", [("add", {"s": "x"})], ""),
    (
        "qwen3_coder",
        "<tool_call>\n<function=add>\n<parameter=s>\nx\n</function>\n</tool_call>\n",
        [("add", {"s": "x"})],
        "",
    ),
    ("qwen3_coder", "<tool_call>\n<function=add>\n</tool_call>", [("add", {})], ""),
    ("glm4", "<tool_call>add\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n", [("add", {"s": "x"})], ""),
    ("glm4", "<tool_call>add\n<arg_key>s</arg_key>\n<arg_value>x</tool_call>", [("add", {"s": "x"})], ""),
    (
        "glm4",
        "<tool_call>add\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n<tool_call>other\n</tool_call>",
        [("add", {"s": "x"}), ("other", {})],
        "",
    ),
    ("glm4", "<tool_call>add", [("add", {})], ""),
    ("glm4", "<tool_call>unknown", [], "<tool_call>unknown"),
    # doubled
    (
        "glm4",
        "<tool_call>add\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n</tool_call>\n</tool_call>.",
        [("add", {"s": "x"})],
        ".",
    ),
    ("hermes", '<tool_call>{"name": "add", "arguments": {}}</tool_call></tool_call>', [("add", {})], ""),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {}}</tool_call> so </tool_call>',
        [("add", {})],
        " so </tool_call>",
    ),
    # Gemma's values in Python's and JSON's quotes, without quotes, with a comma or a brace too many or too few
    *(
        ("gemma4", f"<|tool_call>call:add{arguments}<tool_call|>.", [("add", value)], ".")
        for arguments, value in [
            ("{n:['ds_1']}", {"n": ["ds_1"]}),
            ("{'n':{'k':'v',\"l\":True,m:None}}", {"n": {"k": "v", "l": True, "m": None}}),
            ("{s:New York, NY,n:1}", {"s": "New York, NY", "n": 1}),
            ("{s:it's,n:[a, b],}", {"s": "it's", "n": ["a", "b"]}),
            ("{n:[1,2,],}", {"n": [1, 2]}),
            ("{n:[1,,2]}", {"n": [1, 2]}),
            ("{n:[,1,\n, 2,,],,}", {"n": [1, 2]}),
            ("{,n:{k:1,,l:2},,s:'x',,t:y,}", {"n": {"k": 1, "l": 2}, "s": "x", "t": "y"}),
            ('{s:<|"|>x<|"|>,,t:<|"|>y<|"|>,,}', {"s": "x", "t": "y"}),
            ('{s:<|"|>x<|"|>, ,<|"|>t<|"|>:<|"|>a,,b<|"|>}', {"s": "x", "t": "a,,b"}),
            ("{s:New York,,n:1}", {"s": "New York", "n": 1}),
            ("{s:a,,b,n:1}", {"s": "a,,b", "n": 1}),
            ("{n:[,]}", {"n": []}),
            ("{,}", {}),
            ("{s:“it’s” , ‘t’:`y`}", {"s": "it’s", "t": "y"}),
            ("{s:'x}", {"s": "x"}),
            ("{n:['x]}", {"n": ["x"]}),
            ("{s:\"x\" + 'y',n:1}", {"s": "xy", "n": 1}),
            ("{n:1}}", {"n": 1}),
            ("{n:{k:[1,2", {"n": {"k": [1, 2]}}),
            ('{s:<|"|>x<|"|>', {"s": "x"}),
        ]
    ),
    ("gemma4", '<|tool_call>call:add{s:<|"|>x<|"|>}', [("add", {"s": "x"})], ""),
    ("lfm2", "<|tool_call_start|>[add(n=1)<|tool_call_end|>.", [("add", {"n": 1})], "."),
    (
        "lfm2",
        "<|tool_call_start|>[add(n=1,, s='x',),, other()]<|tool_call_end|>.",
        [("add", {"n": 1, "s": "x"}), ("other", {})],
        ".",
    ),
    ("olmo3", "<function_calls>add(n=1)\nother()", [("add", {"n": 1}), ("other", {})], ""),
    ("olmo3", "<function_calls>add(n=1)\n<function_calls>other()", [("add", {"n": 1}), ("other", {})], ""),
    # names and keywords that are none in Python
    *(
        (form, text.format("add-to.2(from='a', in=[1], max-length=(2,), $x=nan)"), [("add-to.2", ODD_NAMES)], "")
        for form, text in (
            ("lfm2", "<|tool_call_start|>[{}]<|tool_call_end|>"),
            ("olmo3", "<function_calls>{}</function_calls>"),
        )
    ),
    # lines of Windows
    ("qwen3_coder", in_lines("\r\n", "x\r\n y"), [("add", {"s": "x\r\n y"})], ""),
    # an opening marker in the place of the closing one
    ("hermes", '<tool_call>{"name": "add", "arguments": {}}<tool_call>', [("add", {})], ""),
    ("hermes", '<tool_call>{"name": "add", "arguments": {}}\n<tool_call>\n', [("add", {})], ""),
    ("hermes", '<tool_call>{"name": "add", "arguments": {}}</tool_call><tool_call>', [("add", {})], "<tool_call>"),
    ("glm4", "<tool_call>add\n<tool_call>", [("add", {})], ""),
    # tags in tags
    *(
        ("minimax_m3", f'{M3}<tool_call>\n{M3}<invoke name="add">{text}\n{M3}</tool_call>.', calls, ".")
        for text, calls in [
            (f"{M3}<s>x{M3}<n>1{M3}</n>{M3}</invoke>", [("add", {"s": "x", "n": 1})]),
            (f"{M3}<n>1{M3}</n>{M3}<s>x{M3}</invoke>", [("add", {"n": 1, "s": "x"})]),
            (f"{M3}<s>x{M3}</s>", [("add", {"s": "x"})]),
            (f"{M3}<s>x", [("add", {"s": "x"})]),
            (f"{M3}<s>x{M3}</s>{M3}</invoke>{M3}</invoke>", [("add", {"s": "x"})]),
            (
                f'{M3}<s>x{M3}</s>\n{M3}<invoke name="other">{M3}<n>1{M3}</n>{M3}</invoke>',
                [("add", {"s": "x"}), ("other", {"n": 1})],
            ),
        ]
    ),
    *(
        (form, text.format(TRIPLE), [("add", {"s": "it's \"( ]", "t": "\n("})], "")
        for form, text in (("lfm2", "<|tool_call_start|>[{}]<|tool_call_end|>"), ("pythonic", "[{}]"))
    ),
    # calls without markers, behind a sentence
    ("llama3_json", 'Sure: {"name": "add", "parameters": {"n": 1}}', [("add", {"n": 1})], "Sure: "),
    ("llama3_json", 'So {x} {"name": "add", "parameters": {"n": 1}} ok.', [("add", {"n": 1})], "So {x}  ok."),
    ("llama3_json", 'So {"name": "Bob", "parameters": {"n": 1}}', [], 'So {"name": "Bob", "parameters": {"n": 1}}'),
    (
        "llama3_json",
        'So {"type": "object", "properties": {"name": {}}}',
        [],
        'So {"type": "object", "properties": {"name": {}}}',
    ),
    ("llama3_json", 'A: {"name": "add"}; {"name": "other"} {', [("add", {}), ("other", {})], "A: {"),
    ("xlam", 'Sure: [{"name": "add", "arguments": {"n": 1}}] [1]', [("add", {"n": 1})], "Sure:  [1]"),
    (
        "pythonic",
        "Sure [1]: [add(n=1), other()]\nDone [x](y).",
        [("add", {"n": 1}), ("other", {})],
        "Sure [1]: \nDone [x](y).",
    ),
    ("pythonic", "Sure: [unknown(n=1)]", [], "Sure: [unknown(n=1)]"),
    # JSON between the tags
    *(
        (
            form,
            f'{tags(form)["opening"]}\n{{"name": "add", "arguments": {{"s": "x"}}}}\n{tags(form)["closing"]}.',
            [("add", {"s": "x"})],
            ".",
        )
        for form in of_shape(Tagged)
    ),
]


@pytest.mark.parametrize(("form", "text", "calls", "content"), TOLERATED)
def test_tags_that_are_missing_doubled_or_foreign(form, text, calls, content):
    assert read_all(form, text) == (calls, content)


def in_place(form: str, text: str, calls: int = 1) -> str:
    """Calls with a text in the place of their parameters."""
    whole = written(form, [("add", {"s": "x"})] * calls)
    if form in of_shape(TagTree):
        return re.sub(r"\]<\]minimax\[>\[<s>.*?</s>", lambda _: text, whole)
    match TOOL_FORMATS[form].shape:
        case InChannels(calls=shape) | Addressed(calls=shape) | Horizon(plain=shape) | (Tagged() as shape):
            head, close = re.escape(shape.parameter), re.escape(shape.close)
            head = head.replace("KEY", "s").replace("TYPE", "[a-z]+").replace(re.escape("\n"), r"\s*")
            return re.sub(rf"{head}\s*x\s*{close}", lambda _: text, whole)
    raise AssertionError(form)


WITH_TAGS = [form for form in UNQUOTED if form not in of_shape(Gemma)]
IN_PAIRS = [form for form in WITH_TAGS if form not in of_shape(TagTree)]


@pytest.mark.parametrize("form", IN_PAIRS)
def test_a_value_may_be_a_parameter_that_the_function_declares(form):
    """One closing tag too many shows that the parameter before it belongs to the text."""
    one, two = pair_of(form, "t", "x"), pair_of(form, "n", "y")
    for value in (one, one + two, f"{one}\n{two}", f"See:\n{one}\nDone.", f"{one} {pair_of(form, 's', one)}"):
        for arguments in ({"s": value}, {"t": "x", "s": value}, {"s": value, "t": value, "n": 1}):
            for calls in ([("add", arguments)], [("add", arguments), ("other", {"s": "y"})], [("add", arguments)] * 2):
                assert read_all(form, written(form, calls)) == (calls, "")


@pytest.mark.parametrize("form", IN_PAIRS)
def test_a_value_may_hold_the_end_of_its_call(form):
    """An end behind which more tags of the call follow is none."""
    shape = shape_of(form)
    for end in dict.fromkeys(
        ["\n".join(filter(None, (shape.close, shape.end, shape.closing))), shape.close + shape.closing]
    ):
        for value in (
            f"a{end} b",
            f"a{end} b{end} c",
            end,
            f'x = "{end}"\n\ny',
            f"{shape.opening} a{end}{shape.close}b",
        ):
            for arguments in ({"s": value}, {"t": "x", "s": value}, {"s": value, "t": value, "n": 1}):
                for calls in (
                    [("add", arguments)],
                    [("add", arguments), ("other", {"s": "y"})],
                    [("add", arguments)] * 2,
                ):
                    if len(calls) > 1 and form in of_shape(Addressed):
                        continue  # a message of its own begins between two blocks
                    assert read_all(form, written(form, calls)) == (calls, "")


@pytest.mark.parametrize("form", of_shape(Gemma, TagTree))
def test_a_nested_format_s_value_may_hold_the_end_of_its_call(form):
    one = tags(form)
    end = "".join(one[name] for name in ("close", "end", "closing"))
    for value in (f"a{end} b", f"a{end}", f"a{end} b{end} c", end, f'x = "{end}"\n'):
        for arguments in ({"s": value}, {"t": "x", "s": value}, {"s": value, "t": value, "n": 1}):
            for calls in ([("add", arguments)], [("add", arguments), ("other", {"s": "y"})], [("add", arguments)] * 2):
                if form in of_shape(TagTree):  # a tag has the name of its key
                    arguments.pop("t", None)
                assert read_all(form, written(form, calls)) == (calls, "")


@pytest.mark.parametrize("form", [form for form in UNQUOTED if form not in of_shape(Addressed)])
def test_text_behind_a_call_may_hold_the_end_of_a_call(form):
    """Such text is content, as the answer does not end with that end of a call."""
    one = tags(form)
    end, call = "".join(one[name] for name in ("close", "end", "closing")), [("add", {"s": "x"})]
    example = written(form, [("add", {"s": "y"})])
    for text in (
        f"\nThe end is `{end}`, right?",
        f"\nends with {one['close']}{one['end']}",
        f"\n{one['opening']} and {end}",
    ):
        if one["end"] or "and" in text or "right" in text:
            calls, content = read_all(form, written(form, call) + text)
            assert (calls, content.strip()) == (call, text.strip())
    calls, _ = read_all(form, f"{written(form, call)}\nIt is\n```\n{example}\n```\nor {end} there")
    assert calls == [*call, ("add", {"s": "y"})]


@pytest.mark.parametrize("form", IN_PAIRS)
def test_closing_tags_may_be_missing_before_several_parameters(form):
    close = shape_of(form).close
    calls = [("add", {"s": "x", "t": "y", "n": "z"}), ("other", {"s": "x"})]
    for places in ([0], [1], [0, 1]):
        first, *rest = written(form, calls).split(close)
        for place, part in enumerate(rest):
            first += ("" if place in places else close) + part
        assert read_all(form, first) == (calls, "")


@pytest.mark.parametrize("form", WITH_TAGS)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"s": "x", "n": [1, {"k": "</y>"}]}', {"s": "x", "n": [1, {"k": "</y>"}]}),
        ("\n{}\n", {}),
        ("{'s': 'x',}", {"s": "x"}),
        ('```json\n{"s": "x"}\n```', {"s": "x"}),
        ('{"name": "add", "arguments": {"s": "x"}}', {"s": "x"}),
        ('{"s": "x"', {"s": "x"}),
        ('{"s": "x}', {"s": "x"}),
        ('{"s": "x"}}', {"s": "x"}),
    ],
)
def test_json_may_stand_in_the_place_of_parameters(form, text, value):
    for calls in (1, 2):
        assert read_all(form, in_place(form, text, calls)) == ([("add", value)] * calls, "")


@pytest.mark.parametrize("form", WITH_TAGS)
def test_text_behind_json_in_the_place_of_parameters_is_content(form):
    text = in_place(form, '{"s": "x"} and')
    assert read(form, list(text)) == read(form, [text])
    calls, said, cut = read(form, [text])
    assert (calls, "and" in said, cut) == ([("add", '{"s": "x"}')], True, False)


@pytest.mark.parametrize("form", IN_TAGS)
def test_a_name_that_holds_a_tag_is_none(form):
    """A tag is torn. The text up to the next whole tag is no name."""
    text = written(form, [("add", {"s": "x", "n": 1})])
    shape = TOOL_FORMATS[form].shape
    parameter = shape.calls.parameter if isinstance(shape, InChannels) else shape.parameter  # pyright: ignore
    first, _, then = parameter.partition("KEY")
    text = text.replace(f"{first}s{then[0]}", f"{first}s", 1)
    calls, said = read_all(form, text)
    assert (calls, said) == ([], text)


def test_a_closing_tag_that_is_torn_is_no_text():
    for form in TAGGED:
        shape = TOOL_FORMATS[form].shape
        assert isinstance(shape, Tagged)
        text = written(form, [("add", {"s": "x", "t": "y"})])
        for torn in (shape.close.replace("/", "", 1), shape.close[:-1], shape.close[:5] + shape.close[6:]):
            assert read_all(form, text.replace(shape.close, torn, 1)) == ([("add", {"s": "x", "t": "y"})], "")


@pytest.mark.few(6)
@pytest.mark.parametrize("form", [form for form in UNQUOTED if form not in of_shape(Gemma, Addressed)])
def test_a_last_tag_that_is_torn_at_the_end_is_neither_content_nor_a_value(form):
    """Also where a limit cut the text, if no tag of a parameter begins like the torn tag."""
    tree = form in of_shape(TagTree)
    close = "</s>" if tree else shape_of(form).close
    first = "]<]minimax[>[</" if tree else shape_of(form).parameter.partition("KEY")[0]
    for call in (("add", {"n": "y", "s": "x"}), ("add", {"s": "x"})):
        text = written(form, [call])
        begin = text.rindex(close) + len(close)
        for size in range(begin, len(text)):
            assert read_all(form, text[:size]) == ([call], ""), text[:size]
            if not first.startswith(text[begin:size].lstrip()):
                assert read_all(form, text[:size], cut=True) == ([call], ""), text[:size]


@pytest.mark.parametrize("form", IN_PAIRS)
def test_a_tag_that_is_torn_at_the_end_may_be_the_first_of_the_last_ones(form):
    shape = shape_of(form)
    text = written(form, [("add", {"s": "x"})])
    before, _, after = text.rpartition(shape.close)
    for tag in (shape.close, shape.end, shape.closing):
        for size in range(2, len(tag)):
            assert read_all(form, f"{before}{tag[:size]}") == ([("add", {"s": "x"})], ""), tag[:size]
    assert read_all(form, before + after[:-2]) == ([("add", {"s": "x"})], "")


@pytest.mark.parametrize("form", of_shape(Gemma))
def test_a_text_without_its_last_quote_does_not_reach_into_the_next_call(form):
    text = written(form, [("add", {"s": "x", "n": 1}), ("other", {"s": "y", "n": 1})])
    first, _, second = text.rpartition(TOOL_FORMATS[form].marks[0])
    shape = TOOL_FORMATS[form].shape
    assert isinstance(shape, Gemma)
    head, _, tail = first.rpartition(shape.quote)
    text = f"{head}{tail}{shape.opening}{second}"
    whole = read(form, [text])
    assert read(form, list(text)) == whole
    [(name, arguments), other], _, unfinished = whole
    assert (name, json.loads(arguments)["s"][:1], unfinished) == ("add", "x", True)  # its text had left
    assert (other[0], json.loads(other[1])) == ("other", {"s": "y", "n": 1})


def test_a_call_that_was_cut_between_two_parameters_is_a_call_that_was_cut():
    mark = "]<]minimax[>["
    for size in range(len(mark) + 3):  # the tag may be that of `s`
        text = f'{mark}<tool_call>\n{mark}<invoke name="add">{mark}<s>x{f"{mark}</"[:size]}'
        calls, said, unfinished = read("minimax_m3", [text], cut=True)
        assert read("minimax_m3", list(text), cut=True) == (calls, said, unfinished)
        ends = '"' if size > len(mark) else ""  # another tag ends the text
        assert (calls, unfinished) == ([("add", '{"s": "x' + ends)], True)
        assert f"{mark}</".startswith(said)  # a torn tag is content
    for form, text in (
        ("qwen3_coder", "<tool_call>\n<function=add>\n<parameter=s>\nx\n</parameter>\n"),
        ("glm4", "<tool_call>add\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n"),
    ):
        assert read(form, [text], cut=True) == read(form, list(text), cut=True) == ([("add", '{"s": "x"')], "", True)
        assert read_all(form, text)[0] == [("add", {"s": "x"})]
    whole = "<tool_call>\n<function=add>\n<parameter=s>\nx\n</parameter>\n</function>\n"
    assert read_all("qwen3_coder", whole, cut=True) == ([("add", {"s": "x"})], "")


@pytest.mark.parametrize("form", UNQUOTED)
def test_a_call_leaves_with_its_last_tag_unless_a_text_is_its_last_value(form):
    """A text may hold the end of a call. Then the next call, or the end of the answer, shows that the call is over."""
    kinds = {"s": "string", "i": "integer", "o": "object"}
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"properties": properties}}}]
    for last, others in (("i", {"i": 1}), ("o", {"o": {"k": "v"}}), ("s", {"s": "x"})):
        waits = last == "s"
        splitter = ChannelSplitter(None, TOOL_FORMATS[form], "unknown", tool_schemas(tools))
        text = written(form, [("add", {"s": "</y>"} | others)])
        whole = json.dumps({"s": "</y>"} | others)
        came: list[str] = []
        for piece in (text, "\n" + text, " ok", None):
            segments = splitter.flush() if piece is None else splitter.feed(piece)
            came.append("".join(segment.call.arguments for segment in segments if segment.call is not None))
        assert "".join(came) == whole * 2
        assert (came[0] == whole, came[1].endswith("}")) == (not waits, not waits), last


@pytest.mark.parametrize("form", [form for form in FORMS if form not in of_shape(Addressed, Headed)])
def test_markers_may_come_twice(form):
    calls = [("add", {"s": "x", "n": 1}), ("other", {"s": "y"})]
    text, shape = written(form, calls), TOOL_FORMATS[form].shape
    opening = next(opening for opening, _ in TOOL_FORMATS[form].markers if opening in text or form in ALONE)
    for again in (opening * 2, f"{opening}\n{opening}") if opening in text else ():
        assert read_all(form, text.replace(opening, again)) == (calls, "")
    marks = {Tagged: ("end",), Sectioned: ("begin", "end")}.get(type(shape), ())
    for mark in filter(None, (getattr(shape, name) for name in marks)):
        assert read_all(form, text.replace(mark, mark * 2)) == (calls, ""), mark


@pytest.mark.parametrize("form", [form for form in IN_TAGS if form not in TAGGED])
def test_a_closing_tag_may_be_missing_where_tags_have_types(form):
    shape = TOOL_FORMATS[form].shape
    close = shape.calls.close if isinstance(shape, InChannels) else shape.close  # pyright: ignore
    text = written(form, [("add", {"s": "x", "n": 1})])
    assert read_all(form, text.replace(close, "", 1)) == ([("add", {"s": "x", "n": 1})], "")
