"""How open models write tool calls: a table of formats. Each has its markers, its parser, its grammar, and the evidence
that a model writes it.

To add a format: a parser (see call_parser.py), next to it the grammar of the same calls (see grammar_writer.py), an
entry in TOOL_FORMATS, and its name in config.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tailrace.text.tool_parsers.call_parser import CallParser, Parsing, ToolCall, ToolSchemas
from tailrace.text.tool_parsers.grammar_writer import CallGrammar, GrammarWriter
from tailrace.text.tool_parsers.pythonic import pythonic, pythonic_grammar
from tailrace.text.tool_parsers.resolve import Declared
from tailrace.text.tool_parsers.sections import DEEPSEEK, KIMI, deepseek_grammar, deepseek_v3, kimi_grammar, kimi_k2
from tailrace.text.tool_parsers.tagged import glm4, glm4_grammar, qwen3_coder, qwen3_coder_grammar
from tailrace.text.tool_parsers.wrapped import (
    granite_grammar,
    hermes_grammar,
    json_calls,
    llama_grammar,
    mistral,
    mistral_grammar,
)

__all__ = ["TOOL_FORMATS", "CallParser", "ToolCall", "ToolFormat", "ToolSchemas", "tool_schemas"]


class ToolFormat(NamedTuple):
    """One way to write tool calls.

    parse: the parser. grammar: the grammar of the same calls. markers: (opening, closing or None) of a block of calls.
    evidence: groups of texts; a model that is known to write all texts of one group uses this format.
    bare: an answer that begins with this may be a block without markers. inner: further markers, which a vocabulary may
    have as special tokens.
    """

    parse: Callable[[CallParser], Parsing[None]]
    grammar: Callable[[GrammarWriter], CallGrammar]
    markers: tuple[tuple[str, str | None], ...]
    evidence: tuple[tuple[str, ...], ...]
    bare: str = ""
    inner: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All markers that the parser must see in the text, even where they are special tokens."""
        return (*(mark for pair in self.markers for mark in pair if mark is not None), *self.inner)


TAGS = ("<tool_call>", "</tool_call>")
# In order of recognition: of formats that share a marker the one with more evidence comes first, formats without
# markers last.
TOOL_FORMATS: dict[str, ToolFormat] = {
    "qwen3_coder": ToolFormat(qwen3_coder, qwen3_coder_grammar, (TAGS,), ((TAGS[0], "<function="),)),
    "glm4": ToolFormat(
        glm4,
        glm4_grammar,
        (TAGS,),
        ((TAGS[0], "<arg_key>"),),
        inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "deepseek_v3": ToolFormat(
        deepseek_v3,
        deepseek_grammar,
        (("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),),
        (("<｜tool▁calls▁begin｜>",),),
        inner=DEEPSEEK,
    ),
    "kimi_k2": ToolFormat(
        kimi_k2,
        kimi_grammar,
        (("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),),
        (("<|tool_calls_section_begin|>",),),
        inner=KIMI,
    ),
    "hermes": ToolFormat(json_calls, hermes_grammar, (TAGS,), (TAGS,)),
    "mistral": ToolFormat(
        mistral, mistral_grammar, (("[TOOL_CALLS]", None),), (("[TOOL_CALLS]",),), inner=("[CALL_ID]", "[ARGS]")
    ),
    "granite": ToolFormat(json_calls, granite_grammar, (("<|tool_call|>", None), TAGS), (("<|tool_call|>",),)),
    "llama3_json": ToolFormat(
        json_calls,
        llama_grammar,
        (("<|python_tag|>", None),),
        (("<|python_tag|>",), ('{"name": function name, "parameters": ',)),
        bare="{",
    ),
    "pythonic": ToolFormat(
        pythonic, pythonic_grammar, (("<|python_start|>", "<|python_end|>"),), (("[func_name1(",),), bare="["
    ),
}


def tool_schemas(tools: list[dict[str, Any]] | None) -> ToolSchemas:
    """The parameters of a request's tools, by function. A tool that is not in OpenAI's shape is left out."""
    found: dict[str, Declared] = {}
    for tool in tools or ():
        function = tool.get("function")
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            found[name] = Declared(function.get("parameters"))
    return found
