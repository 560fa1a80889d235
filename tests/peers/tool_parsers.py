"""The peers' own parsers of tool calls, without the peers: their files come from packages that fetch.py has fetched,
and all that a parser imports besides other parsers is a stand-in.

A stand-in module gives an empty class for every name, which keeps what it is made of and ignores every call. So no
package of the peers' own needs is installed, and nothing of theirs runs but the parsers.
"""

from __future__ import annotations

import enum
import importlib
import importlib.abc
import importlib.machinery
import json
import re
import sys
import types
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from peers.fetch import DONE, PARSERS

Found = tuple[list[tuple[str, Any]], str]  # calls as (name, arguments), and content


class Empty:
    """A stand-in for any class: keeps what it is made of, and has nothing to say."""

    def __init__(self, *_: object, **given: object) -> None:
        self.__dict__.update(given)

    def __init_subclass__(cls, **_: object) -> None:
        pass

    def __class_getitem__(cls, _: object) -> type[Empty]:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def model_dump(self, **_: object) -> dict[str, Any]:
        """As pydantic has it."""
        return dict(self.__dict__)


class Message(Empty):
    """A stand-in for what a parser returns: fields that were not given are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class StandIn(types.ModuleType):
    """A module in which every name is there."""

    __path__: Any = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in GIVEN:  # one class for a name, whatever module it is asked of
            GIVEN[name] = type(name, (Message if name in MESSAGES else Empty,), {})
        return GIVEN[name]


MESSAGES = {
    "DeltaMessage",
    "DeltaToolCall",
    "DeltaFunctionCall",
    "ExtractedToolCallInformation",
    "FunctionCall",
    "ToolCall",
}
GIVEN: dict[str, Any] = {
    "is_mistral_tokenizer": lambda *_: False,
    "make_tool_call_id": lambda *_, **__: "id",
    "random_uuid": lambda: "id",
    "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS": 5,
    "VLLM_ENFORCE_STRICT_TOOL_CALLING": False,
    "loads": json.loads,
    "dumps": lambda value, *_, **__: json.dumps(value).encode(),
    "JSONDecodeError": json.JSONDecodeError,
    "is_list_of": lambda value, kind, **_: isinstance(value, list) and all(isinstance(one, kind) for one in value),
}


class Switches:
    """A stand-in for settings from the environment: all are off."""

    def __getattr__(self, name: str) -> Any:
        return GIVEN.get(name, SimpleNamespace(get=lambda: False))


GIVEN["envs"] = Switches()
GIVEN["SpecialTokens"] = enum.Enum(
    "SpecialTokens",
    {
        "tool_calls": "[TOOL_CALLS]",
        "args": "[ARGS]",
        "call_id": "[CALL_ID]",
        "begin_think": "[THINK]",
        "end_think": "[/THINK]",
    },
)
STOOD_IN = ("vllm", "sglang", "xgrammar", "openai", "orjson", "cohere_melody", "openai_harmony", "mistral_common")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the parsers in the cache, and a stand-in for the rest."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """The place of a module."""
        root = name.partition(".")[0]
        for source in PARSERS:
            for inside in source.inside:
                kept = inside.rstrip("/").replace("/", ".")
                if name == kept or name.startswith(kept + "."):
                    at = [str((source.folder / name.replace(".", "/")).parent)]
                    return importlib.machinery.PathFinder.find_spec(name, at)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if root in STOOD_IN else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """A stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing runs."""


class Tokenizer:
    """As much of a tokenizer as the parsers ask for: the markers, one token each, and a token for each other sign."""

    def __init__(self, marks: Sequence[str]) -> None:
        self.vocab = {mark: i for i, mark in enumerate(marks, 200_000)}
        self.all_special_tokens = list(marks)
        self.all_special_ids = list(self.vocab.values())

    def get_vocab(self) -> dict[str, int]:
        """Tokens and their ids."""
        return self.vocab

    def get_added_vocab(self) -> dict[str, int]:
        """The markers."""
        return self.vocab

    def encode(self, text: str, **_: object) -> list[int]:
        """The ids of a text."""
        ids: list[int] = []
        while text:
            mark = next((mark for mark in sorted(self.vocab, key=len, reverse=True) if text.startswith(mark)), None)
            ids.append(ord(text[0]) if mark is None else self.vocab[mark])
            text = text[len(mark or text[0]) :]
        return ids

    def decode(self, ids: Sequence[int], **_: object) -> str:
        """The text of some ids."""
        back = {id: mark for mark, id in self.vocab.items()}
        return "".join(back.get(id) or chr(id) for id in ([ids] if isinstance(ids, int) else ids))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """The id of a marker."""
        return self.vocab.get(token)


def value_of(arguments: Any) -> Any:
    """Arguments as a value, or as they are where they are no JSON."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def tools_of(tools: list[dict[str, Any]], kind: type = SimpleNamespace) -> list[Any]:
    """Tools as objects."""
    made = []
    for tool in tools:
        function = SimpleNamespace(description="", strict=False, **tool["function"])
        made.append(kind(type="function", function=function))
    return made


def vllm(name: str, text: str, tools: list[dict[str, Any]], marks: Sequence[str]) -> Found:
    """What vLLM's parser of this name makes of a whole text."""
    table = importlib.import_module("vllm.tool_parsers")._TOOL_PARSERS_TO_REGISTER
    file, called = table[name]
    kind = getattr(importlib.import_module(f"vllm.tool_parsers.{file}"), called)
    protocol = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
    given = tools_of(tools, protocol.ChatCompletionToolsParam)
    request = SimpleNamespace(
        tools=given, tool_choice="auto", skip_special_tokens=False, include_reasoning=True, chat_template_kwargs=None
    )
    for answer in (text, f"</think>{text}"):  # some take an answer for a thought until that ends
        found = kind(Tokenizer((*marks, "<think>", "</think>")), given).extract_tool_calls(answer, request)
        if found.tool_calls:
            break
    calls = [(call.function.name, value_of(call.function.arguments)) for call in found.tool_calls or ()]
    return calls, found.content or ""


def sglang(name: str, text: str, tools: list[dict[str, Any]], marks: Sequence[str]) -> Found:
    """What SGLang's detector of this name makes of a whole text."""
    table = importlib.import_module("sglang.srt.function_call.function_call_parser")
    kind = table.FunctionCallParser.ToolCallParserEnum[name]
    found = kind().detect_and_parse(text, tools_of(tools))
    return [(call.name, value_of(call.parameters)) for call in found.calls], found.normal_text


def names() -> dict[str, list[str]]:
    """The names of all parsers of both peers, of calls and of thoughts."""
    vllm, sglang = (next(source for source in PARSERS if source.package == name) for name in ("vllm", "sglang"))
    tables = (
        (vllm.folder / "vllm/tool_parsers/__init__.py", r'^    "([^"]+)": \('),
        (vllm.folder / "vllm/reasoning/__init__.py", r'^    "([^"]+)": \('),
        (sglang.folder / "sglang/srt/function_call/function_call_parser.py", r'^        "([^"]+)": \w+Detector'),
        (sglang.folder / "sglang/srt/parser/reasoning_parser.py", r'^        "([^"]+)": \w+Detector'),
    )
    vllm_calls, vllm_thoughts, sglang_calls, sglang_thoughts = (
        re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE) for path, pattern in tables
    )
    return {"tool_parser": vllm_calls + sglang_calls, "reasoning_parser": vllm_thoughts + sglang_thoughts}


def prepare() -> None:
    """Let the parsers be imported."""
    for source in PARSERS:
        if not (source.folder / DONE).is_file():
            raise SystemExit(f"{source.package} {source.version} was not fetched: make test-peers does that")
    if not any(isinstance(one, Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, Finder())
