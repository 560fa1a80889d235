"""The functions that laws of tool calls offer, and what a call must be."""

from __future__ import annotations

import json
from typing import Any

from tailrace_conform.cases import Case, SaysNothing, asking
from tailrace_conform.context import LawContext
from tailrace_conform.plain import quoted
from tailrace_conform.reply import ReplyChoice
from tailrace_conform.schema_check import misfit

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "enum": ["sea", "stone"]},
        "exact": {"type": "boolean"},
    },
    "required": ["place", "exact"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": text, "strict": True, "parameters": PARAMETERS}}
    for name, text in (("find_depth", "How deep it is somewhere."), ("find_age", "How old something is."))
]
QUESTION = "How deep is the sea? Use a function."


def forced(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def forced_cases(ctx: LawContext, temperature: float) -> list[Case]:
    """Chats that force each function in turn: one per case of the budget, and four at least."""
    fields = {"tools": TOOLS, "temperature": temperature, "max_tokens": 120}
    names = ["find_age", "find_depth"] * ctx.budget.cases
    cases = [asking("chat", QUESTION, tool_choice=forced(name), **fields) for name in names]
    return cases[: max(4, ctx.budget.cases)]


def forced_name(case: Case) -> str:
    """The function that a case forces.

    Raises:
        SaysNothing: it forces none.
    """
    if "tools" not in case.body or "tool_choice" not in case.body:
        raise SaysNothing("no function is forced")
    return case.body["tool_choice"]["function"]["name"]


def call_problem(choice: ReplyChoice, names: tuple[str, ...]) -> str | None:
    """What is wrong with a choice's calls, or None."""
    for call in choice.tool_calls:
        if call["name"] not in names:
            return f"a call of {quoted(call['name'])}, which is none of {', '.join(names)}"
        try:
            arguments = json.loads(call["arguments"])
        except ValueError:
            return f"arguments that do not parse: {quoted(call['arguments'][:80])}"
        if said := misfit(arguments, PARAMETERS, "the arguments"):
            return f"{said}: {call['arguments'][:120]}"
        if not call["id"]:
            return "a call without an id"
    return None


def forced_problem(choice: ReplyChoice, name: str) -> str | None:
    """What is wrong with a choice that had to call this function, and has called one; or None."""
    if said := call_problem(choice, (name,)):
        return said
    ended = choice.finish_reason
    return None if ended in ("tool_calls", "stop") else f"finish_reason is {quoted(ended)} after a call"
