"""streams.chunk-shape: every chunk and every plain answer is what the official client's types say."""

from __future__ import annotations

from typing import Any

from tailrace_conform.cases import Case, Finding, SaysNothing, cases, judged, send
from tailrace_conform.chunk_types import chunk_problem
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.verdict import Verdict


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    made = await send(ctx, case)
    ids, num_choices = set(), 0
    for event in made.events:
        if event.parsed is None:
            continue
        if said := chunk_problem(event.parsed, case.chat):
            return Finding(f"{said} in {event.data[:200]}", (made,))
        if "error" in event.parsed:
            raise SaysNothing("a stream ended with an error")
        ids.add(event.parsed["id"])
        num_choices += len(event.parsed["choices"])
    if len(ids) > 1:
        return Finding(f"the chunks of one answer have {len(ids)} ids", (made,))
    if not num_choices:
        raise SaysNothing("no chunk has a choice")
    plain = await send(ctx, case.having(stream=None, stream_options=None))
    if isinstance(plain.parsed, dict) and "error" in plain.parsed:
        raise SaysNothing("the answer without stream is an error")
    if said := chunk_problem(plain.parsed, case.chat, whole=True):
        return Finding(f"{said} in the answer without stream", (plain,))
    return None


async def check(ctx: LawContext) -> Verdict:
    sets: list[dict[str, Any]] = [{"stream": True}]
    if ctx.capabilities.offers("stream_usage"):
        sets.append({"stream": True, "stream_options": {"include_usage": True}})
    if ctx.capabilities.offers("n"):
        sets.append({"stream": True, "n": 2, "temperature": 1.0})
    tried = cases(ctx, ["plain"], *sets)
    if ctx.capabilities.offers("logprobs"):
        tried += [case.having(**logprobs_of(case)) for case in cases(ctx, ["plain"], {"stream": True})]
    return await judged(ctx, tried, judge)


def logprobs_of(case: Case) -> dict[str, Any]:
    return {"logprobs": True, "top_logprobs": 2} if case.chat else {"logprobs": 2}


LAW = Law(
    "streams.chunk-shape",
    "Every chunk, and the answer without stream, is valid against the official client's types; all chunks of an answer "
    "have one id.",
    "Typed clients read these fields unchecked: a missing one is an exception deep inside an application.",
    "Streams plain, with usage, with n, with logprobs, and the same without stream; every field's presence and type is "
    "checked, exactly.",
    "A missing created, an object of another name, an index that is no integer, an id that changes.",
    check,
    needs=("stream",),
    cost=16,
)
