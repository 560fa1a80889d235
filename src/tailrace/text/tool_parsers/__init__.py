"""How open models write tool calls: parsers and grammars by format. The table is in formats.py."""

from __future__ import annotations

from typing import Any

from tailrace.text.tool_parsers.call_parser import CallParser, ToolCall, ToolSchemas
from tailrace.text.tool_parsers.formats import ALIASES, TOOL_FORMATS, ToolFormat
from tailrace.text.tool_parsers.resolve import Declared

__all__ = ["ALIASES", "TOOL_FORMATS", "CallParser", "ToolCall", "ToolFormat", "ToolSchemas", "tool_schemas"]


def tool_schemas(tools: list[dict[str, Any]] | None) -> ToolSchemas:
    """Return the parameters of a request's tools, by function. Skip a tool that does not have OpenAI's shape."""
    found: dict[str, Declared] = {}
    for tool in tools or ():
        function = tool.get("function")
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            found[name] = Declared(function.get("parameters"))
    return found
