"""Requests that no server can serve as they are asked, and what laws of errors say of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace_conform.cases import PATHS, asking
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive

# (field, value) out of any range that the field can have; fields beyond OpenAI's are tried where they are offered
OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("temperature", -1.0),
    ("top_p", 1.5),
    ("top_p", -0.5),
    ("n", 0),
    ("n", -1),
    ("max_tokens", -5),
    ("min_p", 1.5),
    ("min_p", -0.5),
    ("top_k", -7),
    ("repetition_penalty", -1.0),
    ("min_tokens", -1),
]
WRONG_TYPES: list[tuple[str, Any]] = [
    ("temperature", "hot"),
    ("top_p", [1]),
    ("max_tokens", "many"),
    ("n", {"a": 1}),
    ("stop", {"a": 1}),
    ("stream", "perhaps"),
    ("logit_bias", "no map"),
    ("seed", "none"),
]


def endpoint_of(ctx: LawContext) -> str:
    return "chat" if ctx.capabilities.offers("chat") else "completions"


async def sent_wrong(ctx: LawContext, fields: Mapping[str, Any]) -> Exchange:
    """The smallest request with these fields, whatever comes of it."""
    case = asking(endpoint_of(ctx), "plain", **{"max_tokens": 2, **fields})
    return await ctx.server.request(case.path, {"model": ctx.server.model, **case.body}, wrong=True)


async def tried(ctx: LawContext, wrong: list[tuple[str, Any]]) -> list[tuple[str, Any, Exchange]]:
    """Each wrong value of a field that the server offers, and the answer."""
    offered = [(name, value) for name, value in wrong if ctx.capabilities.offers(name)]
    return [(name, value, await sent_wrong(ctx, {name: value})) for name, value in offered]


def path_of(ctx: LawContext) -> str:
    return PATHS[endpoint_of(ctx)]


def shown(found: list[tuple[str, Any, Exchange]]) -> str:
    return ", ".join(f"{name} {quoted(value)} ({made.status or made.failure})" for name, value, made in found)


async def judge_refusals(ctx: LawContext, wrong: list[tuple[str, Any]]) -> Verdict:
    """Whether each of these values is refused."""
    found = await tried(ctx, wrong)
    taken = [one for one in found if not one[2].refused]
    if taken:
        return broken(f"not refused: {shown(taken)}", *(made for _, _, made in taken))
    return holds(f"{len(found)} values") if found else inconclusive("none of the fields is offered")
