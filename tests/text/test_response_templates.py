"""Response templates of checkpoints: the regions are those of transformers' ResponseParser, in any chunking."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ModelLoadError
from tailrace.text.response_templates.pattern import Pattern, PatternError
from tailrace.text.response_templates.search import find_all_matches
from tailrace.text.response_templates.splitter import TemplateSplitter
from tailrace.text.response_templates.template import UnsupportedTemplateError, load_template
from tailrace.text.splitter import Segment
from tailrace.text.tool_parsers import tool_schemas

chat_parsing = pytest.importorskip("transformers.utils.chat_parsing")

NAMED: dict[str, Any] = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
XML = {"content": "xml-inline", "content_args": {"tag_pattern": r"<p=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</p>"}}
TOOLS: dict[str, dict[str, Any]] = {
    "json": {
        "open_pattern": r"\s*<tool_call>",
        "close": "</tool_call>",
        "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    },
    "xml": {"open_pattern": r"\s*<tool_call>\s*<f=(?P<name>[^>]+)>", "close_pattern": r"</f>\s*</tool_call>", **XML}
    | {"transform": NAMED},
    "lax": {
        "open_pattern": r"<tool_call>call:(?P<name>\w+)",
        "close": "</tool_call>",
        "content": "json",
        "content_args": {"unquoted_keys": True, "string_delims": [["<q>", "<q>"]]},
        "transform": NAMED,
    },
    "lines": {
        "open_pattern": r"<tool_call>(?P<name>\w+)\n",
        "close": ["</tool_call>", "</tool_call>\n", "<|im_end|>"],
        "content": "kv-lines",
        "content_args": {"value_parser": {"name": "json", "args": {"allow_non_json": True}}},
        "transform": NAMED,
    },
    "list": {
        "open": "<tool_call>",
        "close": "</tool_call>",
        "content": "json",
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
        "transform_each": True,
    },
}
CONTENT: dict[str, dict[str, Any]] = {
    "implicit": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|end\|>)"},
    "joined": {"close": "<|im_end|>", "repeats": True, "join": "\n\n"},
    "explicit": {"open": "<answer>", "close": ["</answer>", "<|im_end|>"]},
    "exact": {"content_args": {"strip": False}},
}
SPECS = {
    f"{tool}-{content}": {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": {"open": "<think>", "close": ["</think>", "</think>!"]},
            "tool_calls": {"repeats": True, **TOOLS[tool]},
            "content": CONTENT[content],
        },
    }
    for tool in TOOLS
    for content in CONTENT
}
FRAGMENTS = [
    *(
        "<think>",
        "</think>",
        "</think>!",
        "<answer>",
        "</answer>",
        "<|im_end|>",
        "<|im",
        "\n",
        "\n\n",
        " ",
        "a < b",
        "Hi",
    ),
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
    '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]</tool_call>',
    "<tool_call>\n<f=g><p=a>\n1\n</p><p=b> x </p></f>\n</tool_call>",
    "<tool_call>call:f{a:1,b:<q>x, y:<q>}</tool_call>",
    "<tool_call>f\na: 1\nb: x\n</tool_call>\n",
    *("<tool_call>", "</tool_call>", '{"name": "f"', "</f>", "<f=h>"),
]


def split(spec: dict[str, Any], pieces: list[str], prefix: str = "", **how: Any) -> dict[str, Any]:
    """The channels of a text that arrives in pieces."""
    splitter = TemplateSplitter(load_template(spec, "template"), prefix, **how)
    segments = [segment for piece in pieces for segment in splitter.feed(piece)]
    return gather(segments + splitter.flush())


def gather(segments: list[Segment]) -> dict[str, Any]:
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for channel, text, call in segments:
        if call is None:
            found[channel] += text
        elif call.name:
            found["calls"].append([call.name, ""])
        else:
            found["calls"][call.place][1] += call.arguments
    return found


def cut_text(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    places = sorted(chance.sample(range(len(text) + 1), min(len(text), chance.randint(0, 9))))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


def ask_oracle(spec: dict[str, Any], text: str, prefix: str) -> dict[str, list[Any]] | None:
    """The values of all regions, as transformers reads the whole text. None if it raises an error."""
    parser = chat_parsing.ResponseParser(spec, prefix=prefix)
    try:
        events = (parser.initial_events and []) or parser.feed(text)
        events += parser.finalize()[1]
    except (ValueError, KeyError):
        return None
    found: dict[str, list[Any]] = {"content": [], "reasoning_content": [], "tool_calls": []}
    for event in events:
        if event["type"] == "region_close":
            found[event["field"]].append(event["value"])
    return found


def squeeze(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("name", SPECS)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join), st.integers(0, 9))
def test_regions_are_those_of_transformers_in_any_chunking(name: str, text: str, seed: int) -> None:
    spec = SPECS[name]
    ours = split(spec, [text])
    assert split(spec, list(text)) == ours
    assert split(spec, cut_text(text, seed)) == ours
    theirs = ask_oracle(spec, text, "")
    if theirs is None:  # a damaged region: for us content
        return
    calls = [one for value in theirs["tool_calls"] for one in (value if isinstance(value, list) else [value])]
    if not all(isinstance(call["function"], dict) and "name" in call["function"] for call in calls):
        return
    functions = [call["function"] for call in calls]
    assert [[name, json.loads(text)] for name, text in ours["calls"]] == [
        [function["name"], function.get("arguments", {})] for function in functions
    ]
    assert squeeze(ours["content"]) == squeeze("".join(theirs["content"]))
    assert squeeze(ours["reasoning"]) == squeeze("".join(theirs["reasoning_content"]))
    assert all(value in ours["content"] for value in theirs["content"])


def test_damaged_region_is_content() -> None:
    spec = SPECS["json-implicit"]
    text = 'So <tool_call>{bad</tool_call> and <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert split(spec, [text]) == {
        "content": "So <tool_call>{bad</tool_call> and",
        "reasoning": "",
        "calls": [["f", "{}"]],
    }
    assert ask_oracle(spec, text, "") is None


def test_closing_marker_within_a_string_closes_nothing() -> None:
    found = split(
        SPECS["json-implicit"], list('<tool_call>{"name": "f", "arguments": {"a": "\\"</tool_call>"}}</tool_call>')
    )
    assert found["calls"] == [["f", '{"a": "\\"</tool_call>"}']]


def test_regions_are_joined_as_the_template_says() -> None:
    text = "A \n<|im_end|> B<|im_end|>"
    assert split(SPECS["json-joined"], list(text))["content"] == "A\n\nB"
    assert split(SPECS["json-implicit"], list(text))["content"] == "A B"


def test_prompt_may_open_a_thought() -> None:
    prompt = "<think>user's<|im_start|>assistant\n<think>\n"
    assert split(SPECS["json-implicit"], ["hm</thi", "nk>Hi"], prompt) == {
        "content": "Hi",
        "reasoning": "hm",
        "calls": [],
    }
    assert split(SPECS["json-implicit"], ["hm"], "<think>user's")["content"] == "hm"  # without an anchor


def test_channels_that_are_off_stay_in_the_content() -> None:
    text = '<think>hm</think><tool_call>{"name": "f"}</tool_call>'
    assert split(SPECS["json-implicit"], [text], separate=False, calls=False)["content"] == text


def test_arguments_have_the_declared_types() -> None:
    tools = [
        {
            "type": "function",
            "function": {"name": "g", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        }
    ]
    text = "<tool_call><f=g><p=a>1</p><p=b>1</p></f></tool_call>"
    assert split(SPECS["xml-implicit"], [text], declared=tool_schemas(tools))["calls"] == [["g", '{"a": 1, "b": "1"}']]


PARTS = st.recursive(
    st.sampled_from(["a", "b", ".", "[^a]", r"\s", r"\w", "[ab]", "<"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{1,2}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@given(PARTS, st.text("ab< \n", max_size=12))
def test_matches_are_those_of_re(inner: str, text: str) -> None:
    source = f"<(?P<key>{inner})b"
    found = [(one.start, one.end, groups) for one, groups in find_all_matches(Pattern(source), text)]
    assert found == [(one.start(), one.end(), one.groupdict()) for one in re.finditer(source, text, re.DOTALL)]


@pytest.mark.parametrize("source", ["(?=a)b", r"(a)\1", "(?<!a)b", "a*", "(", "a{5000}"])
def test_patterns_without_a_bound_are_refused(source: str) -> None:
    with pytest.raises(PatternError):
        Pattern(source)


def test_nested_repeats_do_not_backtrack() -> None:
    assert list(find_all_matches(Pattern("(?:(?:a*)*)*b"), "a" * 2000)) == []  # years with backtracking


FIELDS: dict[str, Any] = {"content": {}}


@pytest.mark.parametrize(
    ("change", "says", "kind"),
    [
        ({"version": 2}, r"template.version 2 is not supported", UnsupportedTemplateError),
        ({"later": 1}, "later", UnsupportedTemplateError),
        ({"fields": {"content": {"content": "yaml"}}}, r"fields.content.content 'yaml'", UnsupportedTemplateError),
        ({"fields": {"content": {"open_pattern": "(?=a)"}}}, r"fields.content.open_pattern", UnsupportedTemplateError),
        ({"fields": []}, r"template.fields should", ModelLoadError),
        ({"fields": {"content": {}, "thinking": {}}}, "content, thinking", ModelLoadError),
        ({"fields": {"content": {"open": ""}}}, r"fields.content.open should", ModelLoadError),
        ({"fields": {"content": {"join": "x"}}}, "repeats", ModelLoadError),
        ({"fields": {"x": {"transform": "a {content}"}}}, "mixes", ModelLoadError),
        ({"start_anchor": None}, "start_anchor", ModelLoadError),
    ],
)
def test_damaged_template_is_refused_with_its_field(change: dict[str, Any], says: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=says):
        load_template({"start_anchor": "x", "fields": FIELDS, **change}, "template")


def test_formats_for_budgets_and_grammars_follow() -> None:
    template = load_template(SPECS["json-implicit"], "template")
    form, tools = template.make_reasoning(), template.make_tools()
    assert form is not None
    assert (form.opening, form.closing) == ("<think>", "</think>")
    assert tools is not None
    assert tools.markers == (("<tool_call>", "</tool_call>"),)
    assert load_template(SPECS["lines-implicit"], "template").make_tools() is None
