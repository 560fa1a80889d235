"""How open models write tool calls: a table of formats, each with its markers, its parser and what gives it away.

To add one: a parser (see block.py) and beside it the same as a grammar (script.py), a line here, its name in config.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tailrace.text.tool_parsers.block import Block, Read, ToolCall, Tools
from tailrace.text.tool_parsers.pythonic import pythonic, pythonic_script
from tailrace.text.tool_parsers.script import Script, Written
from tailrace.text.tool_parsers.sections import DEEPSEEK, KIMI, deepseek_script, deepseek_v3, kimi_k2, kimi_script
from tailrace.text.tool_parsers.tagged import glm4, glm4_script, qwen3_coder, qwen3_coder_script
from tailrace.text.tool_parsers.wrapped import (
    granite_script,
    hermes_script,
    json_calls,
    llama_script,
    mistral,
    mistral_script,
)

__all__ = ["TOOLS", "Block", "Format", "ToolCall", "Tools", "declared"]


class Format(NamedTuple):
    """One way to write calls.

    read: the parser. script: the same as a grammar. markers: (opening, closing or None) of a block of calls.
    evidence: a model that writes all of any of these writes calls so.
    bare: an answer that begins so may be a block without markers. inner: other marks, that a vocabulary may have as special tokens.
    """

    read: Callable[[Block], Read[None]]
    script: Callable[[Script], Written]
    markers: tuple[tuple[str, str | None], ...]
    evidence: tuple[tuple[str, ...], ...]
    bare: str = ""
    inner: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All that the parser must see of the text, though it may be special tokens."""
        return (*(mark for pair in self.markers for mark in pair if mark is not None), *self.inner)


TAGS = ("<tool_call>", "</tool_call>")
# in the order in which they are recognized: of those that share a marker the one with more evidence first, those of text last
TOOLS: dict[str, Format] = {
    "qwen3_coder": Format(qwen3_coder, qwen3_coder_script, (TAGS,), ((TAGS[0], "<function="),)),
    "glm4": Format(
        glm4,
        glm4_script,
        (TAGS,),
        ((TAGS[0], "<arg_key>"),),
        inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "deepseek_v3": Format(
        deepseek_v3,
        deepseek_script,
        (("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),),
        (("<｜tool▁calls▁begin｜>",),),
        inner=DEEPSEEK,
    ),
    "kimi_k2": Format(
        kimi_k2,
        kimi_script,
        (("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),),
        (("<|tool_calls_section_begin|>",),),
        inner=KIMI,
    ),
    "hermes": Format(json_calls, hermes_script, (TAGS,), (TAGS,)),
    "mistral": Format(
        mistral, mistral_script, (("[TOOL_CALLS]", None),), (("[TOOL_CALLS]",),), inner=("[CALL_ID]", "[ARGS]")
    ),
    "granite": Format(json_calls, granite_script, (("<|tool_call|>", None), TAGS), (("<|tool_call|>",),)),
    "llama3_json": Format(
        json_calls,
        llama_script,
        (("<|python_tag|>", None),),
        (("<|python_tag|>",), ('{"name": function name, "parameters": ',)),
        bare="{",
    ),
    "pythonic": Format(
        pythonic, pythonic_script, (("<|python_start|>", "<|python_end|>"),), (("[func_name1(",),), bare="["
    ),
}


def declared(tools: list[dict[str, Any]] | None) -> Tools:
    """What a request's tools say of their parameters; what is not in OpenAI's shape says nothing."""
    found: dict[str, dict[str, Any]] = {}
    for tool in tools or ():
        function = tool.get("function")
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            found[name] = properties if isinstance(properties, dict) else {}
    return found
