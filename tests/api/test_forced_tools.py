"""Forced tool calls: each format as a grammar, against its own parser; and what tool_choice makes of them."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema
import llguidance
import msgspec
import pytest
import tokenizers
from llguidance import TokenizerWrapper

from api.harness import LocalClient, byte_names, events, front_of, saying
from api.submitted import asked, refusal
from tailrace.config import ServerConfig
from tailrace.errors import ParameterError
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.llguidance_sources import rewrite_lark
from tailrace.request.options import Grammar
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tool_parsers import TOOL_FORMATS, tool_schemas
from tailrace.text.tool_parsers.functions import functions_of
from tailrace.text.tool_parsers.grammar import forced_grammar, optional_grammar
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter
from tailrace.wire.messages import Submit
from tool_examples import ALWAYS, DS, ends_of, tokens, written

EOS = 256
ENDS = ('"',)  # of free text; chance alone would hardly find them


def tool(name: Any, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters} | more}


COLOURS = {"type": "string", "enum": ["red", "pale blue"]}
PAINT = {
    "type": "object",
    "properties": {
        "where": {"type": "string"},
        "colour": COLOURS,
        "coats": {"type": "integer", "minimum": 1, "maximum": 9},
        "dry": {"type": "boolean"},
        "note": {"type": ["string", "null"], "maxLength": 5},
        "rooms": {"type": "array", "items": {"$ref": "#/$defs/room"}, "maxItems": 2},
    },
    "required": ["where", "coats", "rooms"],
    "$defs": {"room": {"type": "object", "properties": {"n": {"type": "number"}}, "additionalProperties": False}},
}
ASKED = [
    tool("paint", PAINT),
    tool("stop", None),
    tool("code", {"properties": {"id": {"type": "string", "pattern": "^[A-C]{2}/\\d$"}}}),
]
SCHEMAS = {function.name: function.parameters for function in functions_of(ASKED)}
MARKS = {name: list(tokens(name)) for name in TOOL_FORMATS}


class Vocabulary:
    """Bytes, an EOS, and markers that are one token each, special or not."""

    def __init__(self, marks: tuple[str, ...], special: bool, template: str) -> None:
        backend = tokenizers.Tokenizer(
            tokenizers.models.BPE(vocab={name: i for i, name in enumerate(byte_names())}, merges=[])
        )
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = tokenizers.decoders.ByteLevel()
        backend.add_special_tokens(["<eos>"])
        backend.add_tokens([tokenizers.AddedToken(mark, special=special, normalized=False) for mark in marks])
        self.tokenizer = Tokenizer(backend, template)
        self.ends: tuple[str, ...] = ENDS
        self.spelt = [bytes([i]) for i in range(256)] + [b"<eos>", *(mark.encode() for mark in marks)]

        class Plain:
            eos_token_id, bos_token_id, tokens = EOS, None, self.spelt
            special_token_ids = (EOS, *(range(257, 257 + len(marks)) if special else ()))

            def __call__(self, text: bytes | str) -> list[int]:
                return list(text if isinstance(text, bytes) else text.encode())

        self.ll = llguidance.LLTokenizer(TokenizerWrapper(Plain()))

    def text(self, ids: list[int]) -> str:
        return b"".join(self.spelt[id] for id in ids).decode()

    def accepts(self, grammar: str, text: str) -> bool:
        """The whole text, in the tokenizer's own token_bytes."""
        matcher = llguidance.LLMatcher(self.ll, rewrite_lark(grammar))
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        taken = matcher.try_consume_tokens(ids)
        assert not matcher.is_error(), matcher.get_error()
        return taken == len(ids) and matcher.is_accepting()

    def walk(self, grammar: str, seed: int, ends: tuple[str, ...] = ()) -> str:
        """A text of the grammar, drawn token by token from its masks; the longer, the more it hurries to an end. ends:
        what it also tries to say."""
        matcher, rng, ids = llguidance.LLMatcher(self.ll, rewrite_lark(grammar)), random.Random(seed), list[int]()
        while len(ids) < 4000:
            mask = matcher.compute_logit_bias()
            assert not matcher.is_error(), matcher.get_error()
            if matcher.is_stopped() or (len(ids) > 500 and mask[EOS]):
                return self.text(ids)
            end = self.tokenizer.encode(rng.choice(ends or self.ends), add_special_tokens=False)
            if rng.random() < 0.1 and matcher.validate_tokens(end) == len(end):
                step = end
            else:
                allowed = [i for i in range(len(self.spelt)) if mask[i]]
                hurry = 1 if len(ids) < 30 else 8
                step = rng.choices(allowed, [hurry if chr(i) in '"}])/' or i > EOS else 1 for i in allowed])[:1]
            if step == [EOS]:
                return self.text(ids)
            if not matcher.consume_tokens(step) and "too many expressions" in matcher.get_error():
                raise UnsupportedError("a limit of the library (docs/tools.md)")
            assert not matcher.is_error(), matcher.get_error()
            ids += step
        raise AssertionError("no end")


@cache
def vocabulary(form: str, how: str) -> Vocabulary:
    """The format's markers as text alone, as tokens, or as special tokens. A model with text alone shows some of it in
    its template."""
    marks = tuple(MARKS[form])
    template = {"qwen3_coder": "<tool_call>\n<function=", "glm4": "<tool_call><arg_key>"}.get(
        form, "".join(marks) or TOOL_FORMATS[form].markers[0][0]
    )
    words = Vocabulary(marks if how != "text" or form in ALWAYS else (), how == "special", template)
    words.ends = ends_of(form)
    return words


HOW = ("text", "token", "special")


def script_of(form: str, how: str = "text", asked: list[dict] = ASKED, **options: Any) -> GrammarWriter:
    return GrammarWriter(functions_of(asked), vocabulary(form, how).tokenizer, **options)


def read(form: str, text: str, asked: list[dict] = ASKED) -> tuple[list[tuple[str, Any]], str]:
    """The calls that our own parser finds, and the content besides."""
    splitter = ChannelSplitter(None, TOOL_FORMATS[form], "unknown", tool_schemas(asked))
    segments = splitter.feed(text) + splitter.flush()
    assert not splitter.cut_call
    calls: list[list[str]] = []
    for call in [segment.call for segment in segments if segment.call is not None]:
        if call.name:
            calls.append([call.name, ""])
        calls[-1][1] += call.arguments
    said = "".join(segment.text for segment in segments if segment.channel == "content")
    return [(name, json.loads(arguments)) for name, arguments in calls], said


WALKED = [  # each form in one of the ways, others for the next; the rest with the long tests
    pytest.param(form, how, marks=[] if i % len(HOW) == j else pytest.mark.long)
    for i, form in enumerate(TOOL_FORMATS)
    for j, how in enumerate(HOW)
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("form", "how"), WALKED)
def test_every_text_of_the_grammar_is_read_as_calls_that_fit(form, how):
    """Random texts out of the grammar's own masks."""
    words, most = vocabulary(form, how), 0
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, how))
    for seed in range(60):
        if seed >= 12 and most > 1:
            break
        text = words.walk(source, seed)
        calls, said = read(form, text)
        assert calls, text
        assert not said.strip(), text
        most = max(most, len(calls))
        for name, arguments in calls:
            jsonschema.validate(arguments, dict(SCHEMAS[name]))
    assert most > 1, "several calls never came"
    single = forced_grammar(TOOL_FORMATS[form], script_of(form, how, many=False))
    assert {len(read(form, words.walk(single, seed))[0]) for seed in range(6)} == {1}


CALLED = ("paint", {"where": "a", "coats": 2, "rooms": []})
WRITTEN = {name: written(name, [CALLED]) for name in TOOL_FORMATS}


@pytest.mark.few(7)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_a_call_as_a_model_writes_it_and_nothing_else(form, how):
    words, text = vocabulary(form, how), WRITTEN[form]
    assert read(form, text) == ([CALLED], "")
    source = forced_grammar(TOOL_FORMATS[form], script_of(form, how))
    assert words.accepts(source, text)
    for other in (
        "",
        "So: " + text,
        text + " Done.",
        text[:-1],
        text.replace("paint", "drive"),
        text.replace("2", "10"),
        text.replace("where", "there"),
        text.replace("[]", "[{}, {}, {}]"),
        '{"a": 1}',
    ):
        assert other == text or not words.accepts(source, other), other


@pytest.mark.few(7)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_free_text_and_calls_that_fit(form, how):
    """As with tool_choice "auto": any text, but what begins as a call must be one."""
    words, text = vocabulary(form, how), WRITTEN[form]
    source = optional_grammar(TOOL_FORMATS[form], script_of(form, how))
    for said in ("", "Hello {x} [y] <b>\n", "<tool", "é"):
        assert words.accepts(source, said), said
    assert words.accepts(source, text)
    assert not words.accepts(source, text.replace("2", "10"))
    assert not words.accepts(source, text.replace("paint", "drive"))
    if not TOOL_FORMATS[form].bare:
        assert words.accepts(source, "Well. " + text)
        assert read(form, "Well. " + text) == ([CALLED], "Well. ")


@pytest.mark.few(10)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_calls_or_json(form, how):
    content = {
        "type": "object",
        "properties": {"q": {"type": "integer"}},
        "required": ["q"],
        "additionalProperties": False,
    }
    words, script = vocabulary(form, how), script_of(form, how)
    if TOOL_FORMATS[form].bare:
        with pytest.raises(ParameterError, match="can't be told"):
            optional_grammar(TOOL_FORMATS[form], script, content)
        return
    source = optional_grammar(TOOL_FORMATS[form], script, content)
    assert words.accepts(source, WRITTEN[form])
    assert words.accepts(source, '{"q": 1}')
    for other in ('{"q": "1"}', "hi", '{"where": "a"}'):
        assert not words.accepts(source, other)


def test_a_mistral_of_before_and_a_fenced_deepseek():
    words = Vocabulary((), False, "[TOOL_CALLS]")
    source = forced_grammar(TOOL_FORMATS["mistral"], GrammarWriter(functions_of(ASKED), words.tokenizer))
    text = '[TOOL_CALLS] [{"name": "stop", "arguments": {}}, {"name": "stop", "arguments": {}}]'
    assert words.accepts(source, text)
    assert read("mistral", text) == ([("stop", {}), ("stop", {})], "")
    words = Vocabulary((), False, "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>```json")
    source = forced_grammar(TOOL_FORMATS["deepseek_v3"], GrammarWriter(functions_of(ASKED), words.tokenizer))
    begin, separator, end = DS[1:4]
    one = f"{begin}function{separator}stop\n```json\n{{}}\n```{end}"
    text = f"<｜tool▁calls▁begin｜>{one}\n{one}<｜tool▁calls▁end｜>"
    assert words.accepts(source, text)
    assert read("deepseek_v3", text) == ([("stop", {}), ("stop", {})], "")


@pytest.mark.parametrize("whitespace", [0, 2])
def test_white_space_is_bounded(whitespace):
    words = vocabulary("hermes", "text")
    source = forced_grammar(TOOL_FORMATS["hermes"], script_of("hermes", whitespace=whitespace))
    for count in range(5):
        text = (
            WRITTEN["hermes"]
            .replace(": []", ":" + " " * count + "[]")
            .replace('"coats": 2', '"coats":2')
            .replace(": {", ": {")
        )
        text = text.replace(", ", ",").replace('"paint",', '"paint", ').replace('"where": ', '"where":')
        assert words.accepts(source, text) == (count <= whitespace), count


@pytest.mark.parametrize("form", ["qwen3_coder", "glm4", "pythonic"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {}, "anyOf": [{"minProperties": 1}]},
        {"properties": {"a< b": {"type": "string"}}},
        {"$ref": "#/$defs/x"},
    ],
)
def test_what_a_format_cannot_say_is_refused(form, parameters):
    script = script_of(form, asked=[tool("f", parameters)])
    with pytest.raises(ParameterError, match="can't be enforced") as caught:
        forced_grammar(TOOL_FORMATS[form], script)
    assert caught.value.param == "tools"
    assert forced_grammar(TOOL_FORMATS["hermes"], script_of("hermes", asked=[tool("f", parameters)]))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é<>"], ["a", "abcd"]),
        ({"type": "string", "pattern": "b+/"}, ["abb/c", "b/"], ["b", "/"]),
        ({"type": "string", "pattern": "^(x|y)$"}, ["x", "y"], ["xy", ""]),
        ({"type": "string", "pattern": "^a\\wc", "maxLength": 4}, ["abc", "abcd"], ["aéc", "abcde"]),
        ({"type": ["string", "null"], "enum": ["a", None]}, ["a", "null"], ["b"]),
        ({"anyOf": [{"type": "string", "const": "k"}, {"type": "null"}]}, ["k", "null"], ["l"]),
        (
            {"type": "string"},
            [
                "",
                "a\nb",
                "<parameter=x>",
                "</param",
                "</parameter>",
                "</parameter>\n<b>",
                "</function>",
                "</tool_call>",
            ],
            ["</parameter>\n</function>", "</parameter><parameter=x>", "</parameter>\n</tool_call>\n", "<parameter=a>"],
        ),
        ({"type": "string", "format": "int32"}, ["x"], []),
        ({"type": "integer"}, ["12"], ["x"]),
        ({"type": "string", "not": {"const": "x"}}, [], None),
        ({"type": "string", "pattern": "a|^b$"}, ["a", "b", "xay"], ["xb", "c"]),
        ({"type": "string", "pattern": "(a|^b)$"}, [], None),
        (
            {"type": "string", "pattern": "^.\\s\\S$"},
            ["a\ufeffé", "\u0085 \u0085"],
            ["\r b", "\u2028 b", "a\u0085b", "a \ufeff"],
        ),
        ({"type": "string", "pattern": "^[\\W&~]\\D$"}, ["éé", "&٣"], ["wa", "é3"]),
        ({"type": "string", "pattern": "^a\\\\$"}, ["a\\"], ["a\\$", "a"]),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "x", ""]),
        ({"type": "string", "format": "iri"}, [], None),
        ({"type": "string", "format": ["date"]}, [], None),
    ],
)
def test_bare_text_fits_its_schema(schema, good, bad):
    asked = [tool("f", {"properties": {"a": schema}, "required": ["a"]})]
    script, words = script_of("qwen3_coder", asked=asked), vocabulary("qwen3_coder", "text")
    if bad is None:
        with pytest.raises(ParameterError, match="can't be enforced"):
            forced_grammar(TOOL_FORMATS["qwen3_coder"], script)
        return
    source = forced_grammar(TOOL_FORMATS["qwen3_coder"], script)
    for value in [*good, *bad]:
        text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
        assert words.accepts(source, text) == (value in good), value
        if value in good:
            ((_, arguments),), _ = read("qwen3_coder", text, asked)
            if value.isascii():  # of others Python's patterns think otherwise than ECMA-262
                jsonschema.validate(arguments, {"properties": {"a": schema}})
            assert arguments["a"] == (None if value == "null" else 12 if value == "12" else value)


# ---- tool_choice


CONFIG = ServerConfig(tool_parser="hermes")
NAMED = {"type": "function", "function": {"name": "stop"}}
CALL = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'


@pytest.fixture
async def front(tokenizer):
    async with front_of(LocalClient(saying(CALL.encode())), tokenizer, CONFIG) as front:
        yield front


def flat(tools: list[dict]) -> list[dict]:
    """As /v1/responses has them."""
    return [{"type": "function"} | tool["function"] for tool in tools]


@pytest.mark.parametrize("kind", ["chat", "responses"])
@pytest.mark.parametrize(
    ("choice", "accepted", "refused"),
    [
        ("required", [CALL, f"{CALL}\n{CALL}", WRITTEN["hermes"]], ["", "no", CALL[:-1]]),
        (NAMED, [CALL], ["no", WRITTEN["hermes"], f"{CALL}\n{CALL}"]),
        ({"type": "function", "name": "stop"}, [CALL], ["no", WRITTEN["hermes"]]),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
            [CALL, f"{CALL}\n{CALL}"],
            ["no", WRITTEN["hermes"]],
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "stop"}]},
            [CALL, "no"],
            [WRITTEN["hermes"]],
        ),
    ],
)
async def test_a_choice_is_a_grammar(front, kind, choice, accepted, refused):
    tools = ASKED if kind == "chat" else flat(ASKED)
    params, error = await asked(front, kind, tools=tools, tool_choice=choice)
    assert params.grammar is not None
    assert params.grammar.kind == "lark"
    assert error["param"] == "tools"
    words = vocabulary("hermes", "text")
    for text in accepted:
        assert words.accepts(params.grammar.source, text), text
    for text in refused:
        assert not words.accepts(params.grammar.source, text), text


@pytest.mark.parametrize("kind", ["chat", "responses"])
async def test_auto_is_free_but_for_strict_tools_and_single_calls(front, kind):
    words = vocabulary("hermes", "text")
    shape = (lambda tools: tools) if kind == "chat" else flat
    assert (await asked(front, kind, tools=shape(ASKED)))[0].grammar is None
    assert (await asked(front, kind, tools=shape(ASKED), tool_choice="none", parallel_tool_calls=False))[
        0
    ].grammar is None
    strict = [tool("paint", PAINT, strict=True), *ASKED[1:]]
    grammar = (await asked(front, kind, tools=shape(strict), tool_choice="auto"))[0].grammar
    assert grammar is not None
    wrong = WRITTEN["hermes"].replace("2", "10")
    loose = CALL.replace("{}", '{"x": 1}')  # of a tool that is not strict
    for text, good in (
        (CALL, True),
        ("hi", True),
        (WRITTEN["hermes"], True),
        (wrong, False),
        (loose, True),
        (f"{CALL}\n{CALL}", True),
    ):
        assert words.accepts(grammar.source, text) == good, text
    grammar = (await asked(front, kind, tools=shape(ASKED), parallel_tool_calls=False))[0].grammar
    assert grammar is not None
    for text, good in ((CALL, True), ("hi", True), (loose, True), (wrong, True), (f"{CALL}\n{CALL}", False)):
        assert words.accepts(grammar.source, text) == good, text


async def test_json_content_leaves_room_for_calls(front):
    form = {
        "type": "json_schema",
        "json_schema": {"schema": {"type": "object", "properties": {"q": {"type": "integer"}}}},
    }
    params, error = await asked(front, tools=ASKED, response_format=form)
    assert params.grammar is not None
    assert error["param"] == "response_format"
    for text, good in ((CALL, True), ('{"q": 1}', True), ("hi", False), ('{"q": "x"}', False)):
        assert vocabulary("hermes", "text").accepts(params.grammar.source, text) == good
    params, _ = await asked(front, tools=ASKED, tool_choice="none", response_format=form)
    assert params.grammar is not None
    assert params.grammar.kind == "json_schema"


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "required"}, "tool_choice", "there is no tool"),
    ({"tool_choice": NAMED}, "tool_choice", "there is no tool"),
    ({"tools": ASKED, "tool_choice": "any"}, "tool_choice", '"required"'),
    ({"tools": ASKED, "tool_choice": {"type": "function"}}, "tool_choice", '"required"'),
    ({"tools": ASKED, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice", '"mode"'),
    (
        {"tools": ASKED, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "x"}]}},
        "tool_choice",
        '"mode"',
    ),
    ({"tools": ASKED, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", 'no tool "x"'),
    ({"tools": ASKED, "tool_choice": "required", "guided_regex": "a"}, "guided_regex", "tool_choice"),
    ({"tools": ASKED, "guided_regex": "a"}, "guided_regex", "together with tools"),
    ({"tools": [{"type": "search"}], "tool_choice": "required"}, "tools[0].type", '"function"'),
    ({"tools": [tool("a b")], "tool_choice": "required"}, "tools[0].function.name", "letters"),
    ({"tools": [tool("a"), tool("a")], "tool_choice": "required"}, "tools[1].function.name", "already"),
    ({"tools": [tool("a", {"type": "string"})], "tool_choice": "required"}, "tools", "tools[0].function.parameters"),
    ({"tools": [tool("a", {"properties": []})], "tool_choice": "required"}, "tools", "tools[0].function.parameters"),
    ({"tools": [tool("a", [1])], "tool_choice": "required"}, "tools[0].function.parameters", "object"),
    ({"tools": [{}]}, "tools[0].type", '"function"'),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "object"),
    ({"tools": [tool(5)]}, "tools[0].function.name", "got 5"),
    ({"tools": [tool("")]}, "tools[0].function.name", 'got ""'),
    ({"tools": [tool("a" * 257)]}, "tools[0].function.name", "256"),
    ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name", "already"),
    ({"tools": [tool("a", "x")]}, "tools[0].function.parameters", 'got "x"'),
    ({"tools": [tool("a", None, strict=1)]}, "tools[0].function.strict", "true or false"),
    ({"tools": [{"type": "custom"}]}, "tools[0].custom", "object"),
    ({"tools": [{"type": "web"}]}, "tools[0].type", '"web"'),
    ({"tools": [tool("a", None, description=5)], "tool_choice": "none"}, "tools[0].function.description", "a string"),
    (
        {
            "tools": ASKED,
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
        },
        "tool_choice",
        'no tool "x"',
    ),
    ({"tools": ASKED, "parallel_tool_calls": "no"}, "parallel_tool_calls", "`bool | null`"),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD)
async def test_what_is_refused(front, fields, param, words):
    error = await refusal(front, **fields)
    assert (error["param"], words in error["message"]) == (param, True), error
    assert param in error["message"]


async def test_a_model_whose_calls_are_not_known_can_only_be_asked(tokenizer):
    async with front_of(LocalClient(saying(b"x")), tokenizer, ServerConfig(tool_parser="none")) as front:
        error = await refusal(front, tools=ASKED, tool_choice="required")
        assert (error["param"], "--tool-parser" in error["message"]) == ("tool_choice", True)
        strict = [tool("stop", None, strict=True)]
        assert (await asked(front, tools=strict, parallel_tool_calls=False))[0].grammar is None
        form = {"type": "json_object"}
        assert (await asked(front, tools=strict, response_format=form))[0].grammar == Grammar(kind="json_object")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("choice", "reason"), [(None, "tool_calls"), ("required", "tool_calls"), (NAMED, "stop")])
async def test_how_a_call_finishes(front, monkeypatch, choice, reason, stream):
    """As at OpenAI and in vLLM: "stop" where the function was named. What the engine makes of the grammar is not looked
    at here."""
    submit = front.client.engine.submit

    def bare(message: Submit) -> None:
        submit(msgspec.structs.replace(message, params=msgspec.structs.replace(message.params, grammar=None)))

    monkeypatch.setattr(front.client.engine, "submit", bare)
    answer = await front.chat(tools=ASKED, tool_choice=choice, stream=stream)
    if stream:
        *chunks, _ = events(answer.text)
        assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == reason
    else:
        found = answer.json()["choices"][0]
        assert (found["finish_reason"], found["message"]["tool_calls"][0]["function"]["name"]) == (reason, "stop")
    cut = await front.chat(tools=ASKED, tool_choice=choice, max_tokens=30)
    assert cut.json()["choices"][0]["finish_reason"] == "length"
