"""Tools that only a vendor's server can run, such as web search: `--foreign-tools` says whether a request goes on
without them.

Agents list such tools beside their own by default. A model here could call them, and nobody would run the call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

from tailrace.errors import RequestError

E = TypeVar("E", bound=RequestError)
NAMES = frozenset(
    {
        # OpenAI's
        *("web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp"),
        *("computer", "computer_use", "computer_use_preview", "local_shell", "tool_search"),
        # Anthropic's
        *("web_fetch", "code_execution", "bash", "text_editor", "memory", "mcp_toolset"),
        *("tool_search_tool_regex", "tool_search_tool_bm25"),
    }
)
VERSION = re.compile(r"_\d{4}_?\d{2}_?\d{2}$")  # web_search_20250305, web_search_preview_2025_03_11
PLACE = re.compile(r"(?<![.\w])tools\[(\d+)\]")
WARNING = "dropped, because only its vendor can run such a tool: {}"


def drop_foreign_tools(ask: Any) -> tuple[list[str], list[str]]:
    """Drop such tools from a body, if other tools are left. Return their types, and the places of the tools that are
    left; both empty if none is dropped."""
    tools: list[Any] = getattr(ask, "tools", None) or []
    kinds = [str(tool.get("type") if isinstance(tool, dict) else tool.type) for tool in tools]
    left = [place for place, kind in enumerate(kinds) if not is_foreign(kind)]
    if len(left) in (0, len(tools)):
        return [], []
    ask.tools = [tools[place] for place in left]
    return [*dict.fromkeys(kind for kind in kinds if is_foreign(kind))], [f"tools[{place}]" for place in left]


def is_foreign(kind: str) -> bool:
    """Return whether only a vendor can run tools of this type."""
    return VERSION.sub("", kind) in NAMES


def restore_places(error: E, places: Sequence[str]) -> E:
    """Return an error that names the tools by these places. places: of each tool in the body as it came."""
    if error.param is None or not PLACE.match(error.param):
        return error
    return type(error)(rename_places(str(error), places), rename_places(error.param, places), error.mentions)


def rename_places(text: str, places: Sequence[str]) -> str:
    """Return a text that names the tools by these places."""
    return PLACE.sub(lambda found: places[int(found[1])], text)
