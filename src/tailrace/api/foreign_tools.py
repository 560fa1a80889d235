"""Tools that cannot be served, such as web search, which only a vendor's server can run: `--foreign-tools` says whether
a request goes on without them.

Agents list such tools beside their own by default. A model here could call them, and nobody would run the call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from tailrace.api import anthropic_tools, item_tools
from tailrace.api.response_warnings import list_names
from tailrace.api.schema.messages import CountRequest, MessagesRequest
from tailrace.api.schema.responses import ResponsesRequest
from tailrace.errors import ParameterError, RequestError, format_json
from tailrace.text.tool_parsers.functions import make_value_error

E = TypeVar("E", bound=RequestError)
VENDOR = "only its vendor can run such a tool"
UNKNOWN = "no such tool is known in this API"
CALLERS = "only programs that its vendor runs may call such a tool"  # see read_callers
DIRECT = "direct"  # the caller that is the model
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
    **dict.fromkeys(("bash", "text_editor", "memory", "local_shell", "shell", "apply_patch"), UNKNOWN),
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


def drop_foreign_tools(ask: Any, policy: Literal["drop", "refuse"]) -> Dropped:
    """Drop the tools of a body that cannot be served, if other tools are left.

    Raises:
        ParameterError: the tool choice names a dropped tool; or see `check_served`.
    """
    tools: list[Any] = getattr(ask, "tools", None) or []
    served = next((kinds for request, kinds in SERVED.items() if isinstance(ask, request)), ())
    reasons = [find_reason(tool, f"tools[{i}]", served) for i, tool in enumerate(tools)]
    left = [place for place, reason in enumerate(reasons) if reason is None]
    dropped = {place: reason for place, reason in enumerate(reasons) if reason is not None}
    if policy == "refuse" or not left:
        for place, reason in dropped.items():
            check_served(tools[place], f"tools[{place}]", reason)
    if policy == "refuse" or not left or not dropped:
        return Dropped([], [])
    kinds: dict[str, dict[str, None]] = {}
    for place, reason in dropped.items():
        kinds.setdefault(reason, {})[read_label(tools[place])] = None
    ask.tools = [tools[place] for place in left]
    if getattr(ask, "tool_choice", None) is not None:
        ask.tool_choice = drop_choices(ask, [(tools[place], reason) for place, reason in dropped.items()])
    warnings = [f"dropped, because {reason}: {list_names([*found])}" for reason, found in kinds.items()]
    return Dropped(warnings, [f"tools[{place}]" for place in left])


def check_served(tool: Any, place: str, reason: str) -> None:
    """Raise ParameterError for a tool that cannot be served, and is not dropped. Where the endpoint knows more of what
    is wrong, it raises the error."""
    if reason is CALLERS:
        raise make_callers_error(place)
    if reason is not UNKNOWN and not item_tools.runs_in_container(tool):
        kind = format_json(read_kind(tool))
        raise ParameterError(f"{place}.type: tools of the type {kind} can't be served: {reason}", f"{place}.type")


def read_kind(tool: Any) -> str:
    """Return the type of a tool."""
    return str(tool.get("type") if isinstance(tool, dict) else tool.type)


def read_label(tool: Any) -> str:
    """Return what a dropped tool is called in a warning: its type, or the name of a function."""
    kind = read_kind(tool)
    return kind if find_base(kind) in REASONS else read_name(tool) or kind


def read_name(tool: Any) -> str:
    """Return the name of a tool; "" without one."""
    given = tool if isinstance(tool, dict) else {"name": tool.name}
    inner = given.get(str(given.get("type")))
    return str((inner if isinstance(inner, dict) else given).get("name") or "")


def find_base(kind: str) -> str:
    """Return the type of a tool without its version."""
    return VERSION.sub("", kind)


def find_reason(tool: Any, place: str, served: Collection[str]) -> str | None:
    """Return why a tool cannot be served, or None.

    Raises:
        ParameterError: see `read_callers`.
    """
    kind = read_kind(tool)
    if kind in served:
        reason = VENDOR if item_tools.runs_in_container(tool) else None
    else:
        reason = REASONS.get(find_base(kind))
    return reason or (None if DIRECT in read_callers(tool, place) else CALLERS)


def read_callers(tool: Any, place: str) -> list[str]:
    """Return who may call a tool: the model, and the programs of vendors, which run in their containers.

    Raises:
        ParameterError: it is no list of names.
    """
    given = tool.get("allowed_callers") if isinstance(tool, dict) else tool.allowed_callers
    if given is None:
        return [DIRECT]
    if not isinstance(given, list) or not given or not all(isinstance(name, str) for name in given):
        raise make_value_error(f"{place}.allowed_callers", "a list of names", given)
    return given


def check_callers(tool: dict[str, Any], place: str) -> None:
    """Raise ParameterError if the model may not call a tool."""
    if DIRECT not in read_callers(tool, place):
        raise make_callers_error(place)


def make_callers_error(place: str) -> ParameterError:
    """Return the error for a tool that the model may not call."""
    place = f"{place}.allowed_callers"
    return ParameterError(f'{place} must have "{DIRECT}", because {CALLERS}', place)


def drop_choices(ask: Any, dropped: Sequence[tuple[Any, str]]) -> Any:
    """Return the tool choice of a body without tools that were dropped. dropped: each tool, and why.

    Raises:
        ParameterError: the choice has no other tool.
    """
    choice: Any = ask.tool_choice
    if not isinstance(choice, dict):
        if not isinstance(choice, str) and choice.type == "tool":  # in /v1/messages
            check_choice({"name": choice.name}, ask.tools, dropped)
        return choice
    nested = choice.get("allowed_tools")
    allowed = nested if isinstance(nested, dict) else choice
    if not isinstance(allowed.get("tools"), list):
        check_choice(choice, ask.tools, dropped)
        return choice
    left = [one for one in allowed["tools"] if find_dropped(one, ask.tools, dropped) is None]
    if not left:
        check_choice(next(iter(allowed["tools"]), None), ask.tools, dropped)
    allowed = allowed | {"tools": left}
    return choice | {"allowed_tools": allowed} if isinstance(nested, dict) else allowed


def check_choice(choice: Any, left: Sequence[Any], dropped: Sequence[tuple[Any, str]]) -> None:
    """Raise ParameterError if a choice names a dropped tool."""
    if (found := find_dropped(choice, left, dropped)) is not None:
        tool, reason = found
        label = format_json(read_name(choice) or read_label(tool))
        raise ParameterError(f"tool_choice: the tool {label} was dropped, because {reason}", "tool_choice")


def find_dropped(choice: Any, left: Sequence[Any], dropped: Sequence[tuple[Any, str]]) -> tuple[Any, str] | None:
    """Return the dropped tool that a choice names, and why it was dropped. None: it names another, or none."""
    if not isinstance(choice, dict):
        return None
    base, name = find_base(str(choice.get("type"))), read_name(choice)
    if base in REASONS:
        return next((found for found in dropped if find_base(read_kind(found[0])) == base), None)
    if name in map(read_name, left):
        return None
    return next((found for found in dropped if name and read_name(found[0]) == name), None)


def restore_places(error: E, places: Sequence[str]) -> E:
    """Return an error that names the tools by these places. places: of each tool in the body as it came."""
    if error.param is None or not PLACE.match(error.param):
        return error
    return type(error)(rename_places(str(error), places), rename_places(error.param, places), error.mentions)


def rename_places(text: str, places: Sequence[str]) -> str:
    """Return a text that names the tools by these places."""
    return PLACE.sub(lambda found: places[int(found[1])], text)
