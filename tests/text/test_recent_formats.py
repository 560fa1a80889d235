"""What newer model families write beside their templates' first form; answers in messages with headers; tags with a
suffix."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.harness import make_tokenizer
from tailrace.api.formats import check_parsers, choose_tools
from tailrace.api.front_end import FrontEnd
from tailrace.config import ServerConfig
from tailrace.errors import ConfigError
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.reasoning import REASONING_FORMATS, format_of
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tool_parsers import ALIASES, TOOL_FORMATS, ToolFormat, tool_schemas
from tailrace.text.tool_parsers.tool_format import add_suffix
from tool_examples import plain, written

TYPES = {"city": "string", "days": "integer", "units": "array"}
PARAMETERS = {"type": "object", "properties": {name: {"type": kind} for name, kind in TYPES.items()}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("weather", "ns.find")]
Heard = tuple[list[tuple[str, Any]], str, str]


def read(name: str | ToolFormat, pieces: list[str], thoughts: str | None = None, begun: bool = False) -> Heard:
    """The calls, the content and the thoughts of an answer. begun: the prompt ended with the format's header."""
    tools = TOOL_FORMATS[name] if isinstance(name, str) else name
    splitter = ChannelSplitter(None if thoughts is None else format_of(thoughts), tools, "unknown", tool_schemas(TOOLS))
    if begun:
        splitter.begin(tools.header)
    segments = [segment for piece in pieces for segment in splitter.feed(piece)] + splitter.flush()
    calls: list[list[str]] = []
    for call in (segment.call for segment in segments if segment.call is not None):
        if call.name:
            calls.append([call.name, ""])
        calls[-1][1] += call.arguments
    said, thought = (
        "".join(segment.text for segment in segments if segment.channel == channel)
        for channel in ("content", "reasoning")
    )
    return [(called, json.loads(arguments)) for called, arguments in calls], said, thought


PARIS = [("weather", {"city": "Paris", "days": 2})]
ATEM = (
    '<atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">Paris</atem:parameter>\n'
    '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)
IFM = "<ifm|tool_calls>\n<ifm|tool_call>{}</ifm|tool_call>\n</ifm|tool_calls>"
READ: list[tuple[str, str, list[tuple[str, Any]], str]] = [
    (
        "gigachat3",
        'Let me look.<|function_call|>{"name": "weather", "arguments": {"city": "Paris", "days": 2}}',
        PARIS,
        "Let me look.",
    ),
    (
        "gigachat3",
        'So<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": {}}',
        [("weather", {})],
        "So",
    ),
    (
        "gigachat3",
        'function call<|role_sep|>\n{"name": "weather", "arguments": {"days": 2, "city": "Paris"}}',
        PARIS,
        "",
    ),
    (
        "granite_20b",
        'I call <function_call> {"name": "weather", "arguments": {"city": "Paris", "days": 2}}',
        PARIS,
        "I call ",
    ),
    (
        "granite_20b",
        '<function_call> {"name": "weather", "arguments": {}}\n<function_call> {"name": "ns.find", "arguments": {}}',
        [("weather", {}), ("ns.find", {})],
        "",
    ),
    (
        "minicpm5",
        '<function name="weather"><param name="city"><![CDATA[a < b\n</param> & c]]></param>'
        '<param name="days">3</param></function>',
        [("weather", {"city": "a < b\n</param> & c", "days": 3})],
        "",
    ),
    ("minicpm5", 'Yes.\n<function name="weather"></function>', [("weather", {})], "Yes.\n"),
    (
        "mimo",
        "<tool_call><function=weather><parameter=city>\nParis\n</parameter></function></tool_call>",
        [("weather", {"city": "\nParis\n"})],
        "",
    ),
    (
        "hy_v4",
        "<tool_calls><tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call></tool_calls>",
        PARIS,
        "",
    ),
    (
        "hy_v3",
        "<tool_calls>\n<tool_call>weather<tool_sep>\n</tool_call>\n<tool_call>ns.find<tool_sep>\n</tool_call>\n</tool_calls>",
        [("weather", {}), ("ns.find", {})],
        "",
    ),
    ("k2_horizon", IFM.format('{"name": "weather", "arguments": {"city": "Paris", "days": 2}}'), PARIS, ""),
    ("k2_horizon", IFM.format("weather\n"), [("weather", {})], ""),
    (
        "k2_horizon",
        IFM.format(
            "weather\n<ifm|arg_key>city</ifm|arg_key>\n<ifm|arg_type>string</ifm|arg_type>\n<ifm|arg_value>12</ifm|arg_value>\n"
            "<ifm|arg_key>days</ifm|arg_key>\n<ifm|arg_type>integer</ifm|arg_type>\n<ifm|arg_value>2</ifm|arg_value>\n"
        ),
        [("weather", {"city": "12", "days": 2})],
        "",
    ),
    ("muse", f" to=weather<|message|>{ATEM}<|eom|>", PARIS, ""),
    ("muse", ATEM, PARIS, ""),
    ("muse", "Please translate to=fr now", [], "Please translate to=fr now"),
    (
        "inkling",
        '<|content_invoke_tool_json|>{"name":"weather","args":{"city":"Paris","days":2}}<|end_message|>',
        PARIS,
        "",
    ),
    (
        "inkling",
        '<|message_model|>weather<|content_invoke_tool_json|>{"name":"weather","args":{"city":"Paris","days":2}}<|end_message|>',
        PARIS,
        "",
    ),
    (
        "solar_open",
        "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>weather<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        [("weather", {})],
        "",
    ),
    (
        "gigachat35",
        written("gigachat35", [("weather", {"city": "2", "days": 2})]),
        [("weather", {"city": "2", "days": 2})],
        "",
    ),
    ("deepseek_v41", written("deepseek_v41", PARIS), PARIS, ""),
]


@pytest.mark.parametrize(("name", "text", "calls", "content"), READ)
def test_calls_are_read_in_any_chunks(name: str, text: str, calls: list[tuple[str, Any]], content: str):
    assert read(name, [text]) == read(name, list(text)) == (calls, content, "")


def test_ids_that_solar_writes_are_kept():
    splitter = ChannelSplitter(None, TOOL_FORMATS["solar_open"])
    [first, *_] = splitter.feed(written("solar_open", PARIS))
    assert first.call is not None
    assert first.call.id == "a1b2c3d4e0"


# names of vLLM's and SGLang's that were errors; the peers' whole tables are compared in tests/peers/tool_calls.py
CALLS = "hy_v3 hy_v4 minicpm5 muse gigachat3 dots k2_horizon inkling plamo3 deepseek_v41 trinity solar_open2 mimo ling3"
CALLS += " poolside_v1 spark25 ernie45 hunyuan gigachat35 iquest_q1 step5 muse_glimmer musespark1x granite-20b-fc"
THOUGHTS = (
    "deepseek_v41 ling3 granite_thinking_parser hy_v4 k2_horizon minicpmv plamo3 muse muse_glimmer musespark1x step5"
)
THOUGHTS += (
    " inkling deepseek-r1 deepseek-v3 deepseek-v4 deepseek-v41 dots minimax nanbeige nemotron_3 interns1 gigachat35"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("name", CALLS.split())
def test_the_peers_names_of_calls_are_known(name: str, tokenizer: Tokenizer):
    check_parsers(ServerConfig(tool_parser=name))
    assert choose_tools(name, None, tokenizer) is TOOL_FORMATS[ALIASES.get(name, name)]


@pytest.mark.parametrize("name", THOUGHTS.split())
def test_the_peers_names_of_thoughts_are_known(name: str):
    check_parsers(ServerConfig(reasoning_parser=name))
    assert format_of(name) is not None


@pytest.mark.parametrize("field", ["tool_parser", "reasoning_parser"])
def test_an_unknown_name_is_refused_with_the_known_ones(field: str):
    flag = "--" + field.replace("_", "-")
    with pytest.raises(
        ConfigError,
        match=rf"server\.{field} 'hermse' \({flag}\) is not known; use one of auto, response_template, none, ",
    ):
        FrontEnd(ServerConfig(**{field: "hermse"}))
    for name in ("auto", "none", "gpt-oss"):
        FrontEnd(ServerConfig(**{field: name}))


START = "<|start|>assistant"
ANSWERS: list[tuple[str, str, list[tuple[str, Any]], str, str]] = [
    ("muse", f" to=self<|message|>Hm, to=x?<|eom|>{START} to=user<|message|>Hi.<|eot|>", [], "Hi.", "Hm, to=x?"),
    ("muse", " to=user<|message|>Hi.<|eot|>", [], "Hi.", ""),
    ("muse", "<|message|>Hi.<|eot|>", [], "Hi.", ""),
    (
        "muse",
        f" to=self<|message|>a<|eom|>{START} to=commentary<|message|>Wait.<|eom|>{START} to=self<|message|>b<|eom|>"
        f"{START} to=weather<|message|>{ATEM}<|eom|>{START} to=weather<|message|>{ATEM}<|eot|>",
        [*PARIS, *PARIS],
        "Wait.",
        "ab",
    ),
    ("muse", f" to=weather<|message|>{ATEM} to=weather<|message|>{ATEM}", [*PARIS, *PARIS], "", ""),
    ("muse", f" to=self<|message|>{ATEM}<|eom|>{START} to=user<|message|>Hi<|eot|>", PARIS, "Hi", ""),
    (
        "inkling",
        "<|content_thinking|>Hm<|end_message|><|message_model|><|content_text|>Hi.<|end_message|><|content_model_end_sampling|>",
        [],
        "Hi.",
        "Hm",
    ),
    (
        "inkling",
        "<|content_thinking|>Hm<|end_message|><|message_model|>weather<|content_invoke_tool_json|>"
        '{"name":"weather","args":{"city":"Paris","days":2}}<|end_message|>',
        PARIS,
        "",
        "Hm",
    ),
]


@pytest.mark.parametrize(("name", "text", "calls", "content", "thoughts"), ANSWERS)
def test_answers_of_messages_are_split_in_any_chunks(
    name: str, text: str, calls: list[tuple[str, Any]], content: str, thoughts: str
):
    heard = read(name, [text], name)
    assert heard == read(name, list(text), name)
    if "to=self<|message|><atem" not in text:  # a thought that holds a whole call is a call, as in other formats
        assert heard == (calls, content, thoughts)
    assert "<|" not in heard[1] + heard[2]


@pytest.mark.parametrize(
    ("text", "calls", "content", "thoughts"),
    [
        ('weather<|content_invoke_tool_json|>{"name":"weather","args":{}}<|end_message|>', [("weather", {})], "", ""),
        ('<|content_invoke_tool_json|>{"name":"weather","args":{}}<|end_message|>', [("weather", {})], "", ""),
        ("<|content_text|>Hi there<|end_message|>", [], "Hi there", ""),
        ("<|content_thinking|>Hm<|end_message|><|message_model|><|content_text|>Hi<|end_message|>", [], "Hi", "Hm"),
        ("Hi there", [], "Hi there", ""),
        ("", [], "", ""),
    ],
)
def test_an_answer_may_begin_within_the_prompts_header(text: str, calls: Any, content: str, thoughts: str):
    for pieces in ([text], list(text)):
        assert read("inkling", pieces, "inkling", begun=True) == (calls, content, thoughts)


@pytest.mark.parametrize("name", ["hy_v3", "hy_v4"])
@pytest.mark.parametrize("suffix", ["", ":opensource", ":6124c78e"])
def test_tags_have_the_suffix_of_the_vocabulary(name: str, suffix: str):
    vocabulary = ["a", f"<tool_calls{suffix}>", f"<think{suffix}>"]
    fitted = TOOL_FORMATS[name].fitted(vocabulary)
    assert fitted.markers == ((f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"),)
    text = add_suffix(written(name, PARIS), suffix, fitted.suffixed)
    assert read(fitted, [text]) == (PARIS, "", "")
    thoughts = REASONING_FORMATS["hy_v3"].fitted(vocabulary)
    assert (thoughts.opening, thoughts.closing) == (f"<think{suffix}>", f"</think{suffix}>")
    assert TOOL_FORMATS["hermes"].fitted(vocabulary) is TOOL_FORMATS["hermes"]
    assert plain("", "", suffix) == suffix
