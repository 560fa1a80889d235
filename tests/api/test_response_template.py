"""The checkpoint's response template behind the endpoints: which parser applies, answers, streams and forced calls."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from api.harness import Front, LocalClient, front_of, make_tokenizer, saying
from api.test_forced_tools import ASKED, SCHEMAS, Vocabulary
from tailrace.api.response_template import choose_template
from tailrace.config import ServerConfig
from tailrace.errors import ConfigError, ModelLoadError
from tailrace.text.response_templates.splitter import TemplateSplitter
from tailrace.text.response_templates.template import load_template
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tool_parsers import TOOL_FORMATS, tool_schemas
from tailrace.text.tool_parsers.functions import functions_of
from tailrace.text.tool_parsers.grammar import forced_grammar, optional_grammar
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter
from text.test_response_templates import gather

SPEC: dict[str, Any] = {
    "start_anchor": "assistant:",
    "fields": {
        "thinking": {"open": "[[think", "close": "think]]"},
        "tool_calls": {
            "open": "[[call",
            "close": "call]]",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {},
    },
}
NAMED = SPEC | {
    "fields": SPEC["fields"]
    | {
        "tool_calls": {
            "open_pattern": r"\[\[(?P<name>\w+) ",
            "close": "]]",
            "content": "json",
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        }
    }
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
CALL = '[[call {"name": "f", "arguments": {"a": 1}} call]]'
TEXT = f"[[think hm think]] Hi {CALL}".encode()


def no_formats(tokenizer: Tokenizer) -> tuple[None, None]:
    """The tables do not know the model."""
    return None, None


def with_template(tokenizer: Tokenizer, spec: Any) -> Tokenizer:
    """The tokenizer of a checkpoint with this template."""
    other = copy.copy(tokenizer)
    other.response_template = spec
    return other


async def ask(front: Front, **fields: Any) -> Any:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "tools": [TOOL]}
    return await front.http.post("/v1/chat/completions", json=body | fields)


async def test_answer_is_read_by_the_template_whole_and_streamed(tokenizer: Tokenizer) -> None:
    async with front_of(LocalClient(saying(TEXT)), with_template(tokenizer, SPEC)) as front:
        choice = (await ask(front)).json()["choices"][0]
        message = choice["message"]
        assert (message["reasoning_content"], message["content"], choice["finish_reason"]) == ("hm", "Hi", "tool_calls")
        function = message["tool_calls"][0]["function"]
        assert (function["name"], json.loads(function["arguments"])) == ("f", {"a": 1})
        lines = (await ask(front, stream=True)).text.split("data: ")[1:-1]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines if json.loads(line)["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Hi"
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "hm"
        parts = [part["function"] for delta in deltas for part in delta.get("tool_calls") or ()]
        assert "".join(part.get("arguments") or "" for part in parts) == function["arguments"]


async def test_calls_are_content_without_tools(tokenizer: Tokenizer) -> None:
    async with front_of(LocalClient(saying(TEXT)), with_template(tokenizer, SPEC)) as front:
        assert (await ask(front, tool_choice="none")).json()["choices"][0]["message"]["content"] == f"Hi {CALL}"


def without_grammar() -> dict[str, Any]:
    """A template from which no grammar of calls follows."""
    calls = NAMED["fields"]["tool_calls"] | {"open_pattern": r"\[\[(?P<name>.+) "}
    return NAMED | {"fields": NAMED["fields"] | {"tool_calls": calls}}


async def test_strict_tools_without_a_grammar_are_served_with_a_warning(tokenizer: Tokenizer) -> None:
    """Clients such as openai-agents make every tool strict, unless their user says otherwise."""
    strict = {"type": "function", "function": TOOL["function"] | {"name": "g", "strict": True}}
    async with front_of(LocalClient(saying(b"Hi")), with_template(tokenizer, without_grammar())) as front:
        for tools, warned in (([TOOL, strict], True), ([TOOL], False)):
            for stream in (False, True):
                answer = await ask(front, tools=tools, stream=stream)
                assert answer.status_code == 200, answer.text
                assert ("strict has no effect" in answer.headers.get("warning", "")) is warned
        answer = await ask(front, tools=[strict], response_format={"type": "json_object"})
        assert answer.status_code == 400


@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {"parallel_tool_calls": False}])
async def test_forced_call_needs_a_grammar(tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    async with front_of(LocalClient(saying(b"Hi")), with_template(tokenizer, without_grammar())) as front:
        answer = await ask(front, **fields)
        assert answer.status_code == 400
        assert "no grammar follows from the checkpoint's response template" in answer.json()["error"]["message"]


GRAMMARS: dict[str, Any] = {
    "own markers": {"open": "[[call", "close": "call]]", "transform": {"function": "{content}"}},
    "hermes": {
        "open_pattern": r"\s*<tool_call>",
        "close": "</tool_call>",
        "transform": {"type": "function", "function": "{content}"},
    },
    "own keys": {
        "open": "<call>",
        "close_pattern": r"</call>",
        "transform": {"function": {"name": "{content.tool}", "arguments": "{content.input}"}},
    },
    "named": NAMED["fields"]["tool_calls"],
    "named between tags": {
        "open_pattern": r"\s*<function=(?P<tool>[^>\s]+)>\s*",
        "close_pattern": r"\s*</function>",
        "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{content}"}},
    },
}


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("forced", [False, True])
def test_every_text_of_the_grammar_is_read_as_calls_that_fit(name: str, marked: bool, forced: bool) -> None:
    calls = {**GRAMMARS[name], "content": "json", "repeats": True}
    template = load_template(SPEC | {"fields": SPEC["fields"] | {"tool_calls": calls}}, "template")
    form = template.make_tools()
    assert form is not None
    words = Vocabulary(form.marks if marked else (), False, "".join(form.marks))
    words.ends = ('"', *form.marks)
    writer = GrammarWriter(functions_of(ASKED), words.tokenizer)
    source = forced_grammar(form, writer) if forced else optional_grammar(form, writer)
    found = 0
    for seed in range(12):
        text = words.walk(source, seed)
        splitter = TemplateSplitter(template, declared=tool_schemas(ASKED))
        segments = [segment for char in text for segment in splitter.feed(char)] + splitter.flush()
        calls = gather(segments)["calls"]
        for called, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[called])
        content = "".join(segment.text for segment in segments)
        assert form.markers[0][0] not in content, text
        assert not forced or (calls and not content.strip()), text
        found += len(calls)
    assert found


@pytest.mark.parametrize(
    "pattern",
    [
        r"<f=(?P<name>[^>]+)",
        r"<f=(?P<name>\w+)x\w",
        r"(?P<name>\w+)>",
        r"<f(?P<name>\w+>)",
        r"<(?P<name>[^>]+)>.*",
        "<x>",
    ],
)
def test_an_unclear_opening_gives_no_grammar(pattern: str) -> None:
    name = "{name}" if "name" in pattern else "f"
    transform = {"function": {"name": name, "arguments": "{content}"}}
    calls = NAMED["fields"]["tool_calls"] | {"open_pattern": pattern, "transform": transform}
    template = load_template(SPEC | {"fields": SPEC["fields"] | {"tool_calls": calls}}, "template")
    assert template.make_tools() is None


async def test_a_name_that_the_template_cannot_read_is_refused(tokenizer: Tokenizer) -> None:
    tools = [{"type": "function", "function": {"name": "a-b", "parameters": {}}}]
    async with front_of(LocalClient(saying(b"Hi")), with_template(tokenizer, NAMED)) as front:
        answer = await ask(front, tools=tools, tool_choice="required")
    assert answer.status_code == 400
    assert 'can\'t read a call of "a-b"' in answer.json()["error"]["message"]


async def test_models_say_what_reads_their_answers(tokenizer: Tokenizer) -> None:
    wanted = [
        (with_template(tokenizer, SPEC), ServerConfig(), ("response_template", "response_template", True)),
        (with_template(tokenizer, SPEC), ServerConfig(tool_parser="none"), ("response_template", "none", False)),
        (tokenizer, ServerConfig(tool_parser="glm45", reasoning_parser="think"), ("think", "glm4", True)),
        (tokenizer, ServerConfig(reasoning_parser="harmony", tool_parser="openai"), ("harmony", "harmony", True)),
        (tokenizer, ServerConfig(), ("none", "none", False)),
    ]
    for own, config, expected in wanted:
        async with front_of(LocalClient(saying(b"Hi")), own, config) as front:
            [card] = (await front.http.get("/v1/models")).json()["data"]
        assert (card["reasoning_parser"], card["tool_parser"], card["tool_grammar"]) == expected


def test_folder_brings_the_template(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(config | {"response_template": SPEC}))
    assert Tokenizer.load(tmp_path).response_template == SPEC


def test_named_format_comes_before_the_template(tokenizer: Tokenizer) -> None:
    own = with_template(tokenizer, SPEC)
    assert choose_template("auto", "auto", own, no_formats) is not None
    assert choose_template("response_template", "none", own, no_formats) is not None
    assert choose_template("auto", "hermes", own, no_formats) is None
    assert choose_template("think", "auto", own, no_formats) is None
    assert choose_template("none", "none", own, no_formats) is None
    assert choose_template("auto", "auto", tokenizer, no_formats) is None
    for names in (("response_template", "hermes"), ("think", "response_template")):
        with pytest.raises(ConfigError, match="together"):
            choose_template(*names, own, no_formats)
    with pytest.raises(ConfigError, match="this model has none"):
        choose_template("auto", "response_template", tokenizer, no_formats)


def test_template_that_is_not_supported_leaves_the_tables(tokenizer: Tokenizer, caplog: Any) -> None:
    own = with_template(tokenizer, SPEC | {"version": 2})
    with caplog.at_level(logging.WARNING):
        assert choose_template("auto", "auto", own, no_formats) is None
    assert "tokenizer_config.json: response_template.version 2 is not supported" in caplog.text
    with pytest.raises(ModelLoadError, match="version 2"):
        choose_template("response_template", "auto", own, no_formats)
    with pytest.raises(ModelLoadError, match=r"response_template\.fields should"):
        choose_template("auto", "auto", with_template(tokenizer, SPEC | {"fields": 1}), no_formats)


def test_fields_that_no_answer_has_are_logged(tokenizer: Tokenizer, caplog: Any) -> None:
    fields = SPEC["fields"] | {"citations": {"open": "<c>", "close": "</c>"}}
    with caplog.at_level(logging.WARNING):
        choose_template("auto", "auto", with_template(tokenizer, SPEC | {"fields": fields}), no_formats)
    assert "citations" in caplog.text


QWEN = (
    "{{ tools }}{% for m in messages %}{% for c in m.tool_calls or () %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% else %}{{ m.content }}{% endfor %}{% endfor %}="
)
HERMES = (
    "{{ tools }}{% for m in messages %}{% for c in m.tool_calls or () %}<tool_call>\n{{ c.function | tojson }}\n"
    "</tool_call>{% else %}{{ m.content }}{% endfor %}{% endfor %}="
)
INLINE = {
    "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>]+)>",
    "close_pattern": r"</function>\s*</tool_call>",
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>]+)>\n?(?P<value>.*?)\n?</parameter>"},
    "repeats": True,
    "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
}
JSON_CALLS = SPEC["fields"]["tool_calls"] | {"open": "<tool_call>", "close": "</tool_call>"}
OTHER_KEYS = JSON_CALLS | {"transform": {"function": {"name": "{content.tool}", "arguments": "{content.parameters}"}}}


@pytest.mark.parametrize(
    ("source", "calls", "known"),
    [
        (QWEN, INLINE, "qwen3_coder"),
        (HERMES, JSON_CALLS, "hermes"),
        (
            HERMES.replace("c.function |", "{'tool': c.function.name, 'parameters': c.function.arguments} |"),
            OTHER_KEYS,
            "",
        ),
    ],
    ids=["tags", "json", "other keys"],
)
async def test_a_known_format_that_reads_the_same_goes_before_the_template(
    tmp_path: Path, source, calls, known
) -> None:
    """A known format has a grammar, and streams arguments. A format that only looks like a known one is not taken."""
    spec = SPEC | {"fields": {"tool_calls": calls, "content": {}}}
    async with front_of(LocalClient(saying(b"Hi")), with_template(make_tokenizer(tmp_path, source), spec)) as front:
        assert (front.service.template is None) == bool(known)
        if known:
            assert front.service.tools is not None
            assert front.service.tools.shape == TOOL_FORMATS[known].shape
