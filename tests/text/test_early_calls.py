"""Calls of response templates leave as they are written, and are those of transformers' ResponseParser."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.text.response_templates.splitter import TemplateSplitter
from tailrace.text.response_templates.template import load_template
from tailrace.text.tool_parsers import tool_schemas
from text.test_response_templates import NAMED, ask_oracle, cut_text, gather

content_parsers = pytest.importorskip("transformers.utils.chat_parsing.content_parsers")

TAG = r"<p=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</p>"
LAX = {"name": "json", "args": {"allow_non_json": True}}
EACH = {"transform": {"function": {"name": "{name}", "arguments": "{arguments}"}}, "transform_each": True}
OPEN = {"open_pattern": r"<call>(?P<name>\w+)\n", "close": "</call>"}
FIELDS: dict[str, dict[str, Any]] = {
    "json": {"open": "<call>", "close": "</call>", "content": "json", "transform": {"function": "{content}"}},
    "named json": OPEN | {"content": "json", "transform": NAMED},
    "other keys": {
        "open": "<call>",
        "close": "</call>",
        "content": "json",
        "transform": {"function": {"name": "{content.a.tool}", "arguments": "{content.a.input}"}},
    },
    "no transform": {"open": "<call>", "close": "</call>", "content": "json"},
    "list": {"open": "<call>", "close": "</call>", "content": "json", **EACH},
    "dialect": OPEN
    | {"content": "json", "content_args": {"unquoted_keys": True, "string_delims": [["<q>", "<q>"]]}}
    | {"transform": NAMED},
    "text or json": OPEN | {"content": "json", "content_args": {"allow_non_json": True}, "transform": NAMED},
    "tags": OPEN | {"content": "xml-inline", "content_args": {"tag_pattern": TAG}, "transform": NAMED},
    "tags of values": OPEN
    | {"content": "xml-inline", "content_args": {"tag_pattern": TAG, "value_parser": LAX}, "transform": NAMED},
    "short tags": OPEN
    | {"content": "xml-inline", "content_args": {"tag_pattern": r"<p=(?P<key>\w+)>(?P<value>[^<]*)</p>"}}
    | {"transform": NAMED},
    "merged tags": OPEN
    | {"content": "xml-inline", "content_args": {"tag_pattern": TAG, "merge_duplicates": True}, "transform": NAMED},
    "lines": OPEN | {"content": "kv-lines", "content_args": {"value_parser": LAX}, "transform": NAMED},
    "plain lines": OPEN | {"content": "kv-lines", "content_args": {"kv_sep": "="}, "transform": NAMED},
    "python": {"open": "<call>", "close": "</call>", "content": "python-call-list", **EACH},
}
SPECS = {
    name: {"start_anchor": "assistant:", "fields": {"tool_calls": {"repeats": True, **field}, "content": {}}}
    for name, field in FIELDS.items()
}
NAMES = ("f", "text", "count", "maybe", "many", "thing", "free")
TYPES: dict[str, Any] = {"text": "string", "count": "integer", "maybe": ["string", "null"]}
TYPES |= {"many": ["string", "array", "number"], "thing": "object"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {name: {"type": kind} for name, kind in TYPES.items()}},
        },
    }
]
WORDS = st.sampled_from(
    [
        *("a", " ", "\n", "</p", "</p>", "<q>", "<", '"', "\\", "\\n", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "null"),
        *("12", "true", "[1]", "{", "}", ", b: 1", "é", "😀", "\t", ":", "=", "'", "<p=b>", "NaN", "-1.5e3", "x" * 40),
    ]
)
TEXTS = st.lists(WORDS, max_size=5).map("".join)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(-9, 99), st.booleans(), st.none(), st.sampled_from([1.5, 1e20])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
SPACES = st.sampled_from(["", " ", "\n", "  "])


def write_json(value: Any, chance: random.Random) -> str:
    separators = chance.choice([(",", ":"), (", ", ": "), ("\n,", " :\t")])
    return json.dumps(value, ensure_ascii=chance.random() < 0.5, separators=separators)


def write_dialect(value: Any) -> str:
    if isinstance(value, str) and "<q>" not in value:
        return f"<q>{value}<q>"
    if isinstance(value, dict):
        keys = {key: key if key.isidentifier() else json.dumps(key) for key in value}
        return "{" + ", ".join(f"{keys[key]}:{write_dialect(one)}" for key, one in value.items()) + "}"
    return "[" + ",".join(map(write_dialect, value)) + "]" if isinstance(value, list) else json.dumps(value)


def write_python(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {write_python(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write_python, value)) + "]"
    return repr(value) if value is None or isinstance(value, bool) else json.dumps(value)


def write_call(name: str, arguments: dict[str, Any], chance: random.Random) -> str:
    """A call as the template of this name has it, or nearly so."""
    plain = {key: one if isinstance(one, str) else write_json(one, chance) for key, one in arguments.items()}
    call = {"name": "f", "arguments": arguments}
    function = {"function": call}
    bodies: dict[str, Any] = {
        "json": lambda: write_json(call, chance),
        "named json": lambda: "f\n" + write_json(arguments, chance),
        "other keys": lambda: write_json({"b": [1], "a": {"tool": "f", "input": arguments, "c": "d"}}, chance),
        "no transform": lambda: write_json([function] if chance.random() < 0.5 else function, chance),
        "list": lambda: write_json([call, {"arguments": arguments, "name": "g"}, call][: chance.randint(0, 3)], chance),
        "dialect": lambda: "f\n" + write_dialect(arguments),
        "text or json": lambda: "f\n" + write_json(arguments, chance),
        "lines": lambda: "f\n" + "".join(f" {key} : {one}\n" for key, one in plain.items()),
        "plain lines": lambda: "f\n" + "\n".join(f"{key}={one}" for key, one in plain.items()),
        "python": lambda: f"[f({', '.join(f'{key} = {write_python(one)}' for key, one in arguments.items())})]",
    }
    bodies["tags"] = lambda: "f\n" + "\n".join(f"<p={key}>{one}</p>" for key, one in plain.items())
    return f"<call>{bodies.get(name, bodies['tags'])()}</call>"


def split_calls(spec: dict[str, Any], pieces: list[str], declared: Any, cut: bool = False) -> dict[str, Any]:
    splitter = TemplateSplitter(load_template(spec, "template"), declared=declared)
    found = gather([one for piece in pieces for one in splitter.feed(piece)] + splitter.flush(cut))
    return found | {"cut": splitter.cut_call}


@pytest.mark.parametrize("name", SPECS)
@given(
    calls=st.lists(ARGUMENTS, min_size=1, max_size=2),
    seed=st.integers(0, 99),
    damage=st.one_of(
        st.none(), st.tuples(st.floats(0, 1), st.sampled_from(["", '"', "}", "<", "]", ",", "x", "</p>"]))
    ),
    typed=st.booleans(),
    cut=st.booleans(),
)
def test_calls_are_the_same_in_any_chunking(
    name: str, calls: list[Any], seed: int, damage: Any, typed: bool, cut: bool
) -> None:
    chance = random.Random(seed)
    text = "Hi " + " and ".join(write_call(name, arguments, chance) for arguments in calls) + " end"
    if damage is not None:
        place = int(damage[0] * len(text))
        text = text[:place] + damage[1] + text[place + 1 :]
    text = text[: chance.randint(0, len(text))] if cut else text
    declared = tool_schemas(TOOLS if typed else [])
    whole = split_calls(SPECS[name], [text], declared, cut)
    assert split_calls(SPECS[name], list(text), declared, cut) == whole
    assert split_calls(SPECS[name], cut_text(text, seed), declared, cut) == whole
    if cut:
        return
    raw = name == "text or json"  # There any text is arguments.
    found = [[called, text if raw else json.loads(text)] for called, text in whole["calls"]]  # always whole JSON
    if typed or (name == "python" and "python-call-list" not in content_parsers.CONTENT_PARSERS):
        return
    theirs = ask_oracle(SPECS[name], text, "")
    if theirs is None:  # a damaged region
        assert damage or name in ("list", "dialect"), text
        return
    values = [one for value in theirs["tool_calls"] for one in (value if isinstance(value, list) else [value])]
    functions = [one["function"] for one in values if isinstance(one, dict) and isinstance(one.get("function"), dict)]
    assume(len(functions) == len(values) and all(one.get("name") for one in functions))
    expected = clean([[one["name"], one.get("arguments", {})] for one in functions])
    if raw:
        for ours, other in zip(found, expected, strict=True):
            ours[1] = json.loads(ours[1]) if isinstance(other[1], dict) else ours[1]
    if damage is None or "tags" not in name:  # A tag without its end is no argument there.
        assert found == expected


def clean(value: Any) -> Any:
    """The value without halves of surrogate pairs."""
    return json.loads(re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(value, ensure_ascii=False)))


GROWING = {
    "json": '<call>{"name": "f", "arguments": {"text": "%s", "count": 1}}</call>',
    "named json": '<call>f\n{"count": 1, "free": [{"text": "%s"}]}</call>',
    "other keys": '<call>{"a": {"tool": "f", "input": {"text": "%s"}}}</call>',
    "no transform": '<call>[{"function": {"name": "f", "arguments": {"text": "%s"}}}]</call>',
    "list": '<call>[{"name": "f", "arguments": {"text": "%s"}}]</call>',
    "dialect": "<call>f\n{count:1,text:<q>%s<q>}</call>",
    "tags": "<call>f\n<p=count>1</p>\n<p=text>\n%s\n</p></call>",
    "tags of values": "<call>f\n<p=text>%s</p></call>",
    "lines": "<call>f\ncount: 1\ntext: %s\n</call>",
    "plain lines": "<call>f\nfree=%s</call>",
    "python": "<call>[f(count=1, text='%s')]</call>",
}


@pytest.mark.parametrize("name", GROWING)
def test_a_text_leaves_as_it_is_written(name: str) -> None:
    template = load_template(SPECS[name], "template")
    splitter, words = TemplateSplitter(template, declared=tool_schemas(TOOLS)), "one two three " * 40
    before, _, after = (GROWING[name] % f"|{words}|").partition("|")
    read, sent = "", 0
    splitter.feed(before)
    for word in words.split(" "):
        read += f"{word} "
        sent += sum(len(one.call.arguments) for one in splitter.feed(f"{word} ") if one.call)
        assert len(read) - sent < 40
    assert after


@pytest.mark.parametrize("name", ["short tags", "merged tags", "text or json"])
def test_a_text_that_later_text_may_change_waits(name: str) -> None:
    splitter = TemplateSplitter(load_template(SPECS[name], "template"), declared=tool_schemas(TOOLS))
    text = '{"text": "' if name == "text or json" else "<p=text>"
    assert splitter.feed(f"<call>f\n{text}" + "word " * 100) == []


def test_a_number_waits_for_its_end_and_a_text_like_it_does_not() -> None:
    splitter = TemplateSplitter(load_template(SPECS["tags"], "template"), declared=tool_schemas(TOOLS))
    assert splitter.feed("<call>f\n<p=many>12") == []
    assert gather(splitter.feed(" apples"))["calls"] == [["f", '{"many": "12 apples']]
    assert [one.call and one.call.arguments for one in splitter.feed("</p><p=count>12")] == ['"']


def test_a_call_that_the_prompt_began_has_its_name() -> None:
    template = load_template(SPECS["json"], "template")
    splitter = TemplateSplitter(template, 'assistant:<call>{"name": "f", "arguments": {"text": "ab')
    assert gather(splitter.feed('c"}}</call>'))["calls"] == [["f", '{"text": "abc"}']]


@pytest.mark.parametrize("name", ["tags", "tags of values", "lines", "named json", "dialect", "python"])
@pytest.mark.parametrize("number", ["1e999", "9" * 5000])
def test_a_number_that_no_float_holds_ends_nothing(name: str, number: str) -> None:
    calls = (
        write_call(name, {"text": "a"}, random.Random(0))
        .replace('"a"', f"[{number}]")
        .replace("<q>a<q>", f"[{number}]")
    )
    text = calls.replace(">a<", f"><p=many>[{number}]<").replace(" : a", f" : [{number}]").replace("='a", f"={number}")
    for tools in ([], TOOLS):
        whole = split_calls(SPECS[name], [text], tool_schemas(tools))
        assert split_calls(SPECS[name], list(text), tool_schemas(tools)) == whole
        assert whole["calls"] or number in whole["content"]
