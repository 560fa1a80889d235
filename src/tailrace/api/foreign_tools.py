"""Tools that cannot be served, such as web search, which only a vendor's server can run: `--foreign-tools` says whether
a request goes on without them.

Agents list such tools beside their own by default. A model here could call them, and nobody would run the call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tailrace.api import anthropic_tools, item_tools
from tailrace.api.response_warnings import list_names
from tailrace.api.schema.messages import CountRequest, MessagesRequest
from tailrace.api.schema.responses import ResponsesRequest
from tailrace.errors import RequestError

E = TypeVar("E", bound=RequestError)
VENDOR = "only its vendor can run such a tool"
# type of a tool, without its version → why the tool is dropped
REASONS = {
    **dict.fromkeys(("web_search", "web_search_preview", "web_fetch", "file_search", "image_generation"), VENDOR),
    **dict.fromkeys(("code_interpreter", "code_execution", "programmatic_tool_calling", "advisor"), VENDOR),
    **dict.fromkeys(("mcp", "mcp_toolset"), VENDOR),
    **dict.fromkeys(
        ("tool_search", "tool_search_tool_regex", "tool_search_tool_bm25"), "the model sees all tools from the start"
    ),
    **dict.fromkeys(
        ("computer", "computer_use", "computer_use_preview", "computer_toolset", "browser_toolset"),
        "the model cannot see the screen",
    ),
    # in a version, or in an API, that does not have them
    **dict.fromkeys(
        ("bash", "text_editor", "memory", "local_shell", "shell", "apply_patch"), "no such tool is known in this API"
    ),
}
# request → the types of tools that a vendor has defined and that are served
SERVED: Mapping[type, Collection[str]] = {
    MessagesRequest: anthropic_tools.DEFINED,
    CountRequest: anthropic_tools.DEFINED,
    ResponsesRequest: item_tools.DEFINED,
}
VERSION = re.compile(r"_\d{4}_?\d{2}_?\d{2}$")  # web_search_20250305, web_search_preview_2025_03_11
PLACE = re.compile(r"(?<![.\w])tools\[(\d+)\]")


class Dropped(NamedTuple):
    """What was dropped: a sentence for each reason, and the places of the tools that are left. Both are empty if none
    was dropped."""

    warnings: list[str]
    places: list[str]


def drop_foreign_tools(ask: Any) -> Dropped:
    """Drop the tools of a body that cannot be served, if other tools are left."""
    tools: list[Any] = getattr(ask, "tools", None) or []
    served = next((kinds for request, kinds in SERVED.items() if isinstance(ask, request)), ())
    reasons = [find_reason(tool, served) for tool in tools]
    left = [place for place, reason in enumerate(reasons) if reason is None]
    if len(left) in (0, len(tools)):
        return Dropped([], [])
    kinds: dict[str, dict[str, None]] = {}
    for tool, reason in zip(tools, reasons, strict=True):
        if reason is not None:
            kinds.setdefault(reason, {})[read_kind(tool)] = None
    ask.tools = [tools[place] for place in left]
    warnings = [f"dropped, because {reason}: {list_names([*found])}" for reason, found in kinds.items()]
    return Dropped(warnings, [f"tools[{place}]" for place in left])


def read_kind(tool: Any) -> str:
    """Return the type of a tool."""
    return str(tool.get("type") if isinstance(tool, dict) else tool.type)


def find_reason(tool: Any, served: Collection[str]) -> str | None:
    """Return why a tool cannot be served, or None."""
    kind = read_kind(tool)
    if kind in served:
        return VENDOR if item_tools.runs_in_container(tool) else None
    return REASONS.get(VERSION.sub("", kind))


def restore_places(error: E, places: Sequence[str]) -> E:
    """Return an error that names the tools by these places. places: of each tool in the body as it came."""
    if error.param is None or not PLACE.match(error.param):
        return error
    return type(error)(rename_places(str(error), places), rename_places(error.param, places), error.mentions)


def rename_places(text: str, places: Sequence[str]) -> str:
    """Return a text that names the tools by these places."""
    return PLACE.sub(lambda found: places[int(found[1])], text)
