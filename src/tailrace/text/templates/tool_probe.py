"""Detection of whether a chat template writes its tools: it renders two short conversations with a tool, whose name
must be in the output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tailrace.errors import RequestError
from tailrace.text.templates.forms import Message
from tailrace.text.templates.probe import CALLED, TOOLS, USER

Render = Callable[[list[Message], dict[str, Any]], str]
SYSTEM: Message = {"role": "system", "content": "qzsystem"}


class ToolWriting(NamedTuple):
    """The conversations in which a template writes tools: those that begin with a system message, and all others."""

    with_system: bool
    without_system: bool

    def covers(self, messages: list[Message]) -> bool:
        """Return whether the template writes the tools of this conversation."""
        system = bool(messages) and messages[0].get("role") in ("system", "developer")
        return self.with_system if system else self.without_system


def probe_tools(render: Render) -> ToolWriting:
    """Try a template. A refused conversation is no silent loss, so its tools count as written."""

    def has_probe_tool(messages: list[Message]) -> bool:
        options = {"tools": [TOOLS["nested"]], "documents": None, "add_generation_prompt": True}
        try:
            return CALLED in render(messages, options)
        except RequestError:
            return True

    return ToolWriting(has_probe_tool([SYSTEM, USER]), has_probe_tool([USER]))
