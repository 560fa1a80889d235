"""Structure has several spellings: vLLM's structured_outputs and the older guided_*, SGLang's own fields. A law of
structure holds if one of those that the server accepts is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace_conform.cases import PATHS, asking
from tailrace_conform.context import LawContext
from tailrace_conform.exchange import Exchange, Refused
from tailrace_conform.plain import quoted
from tailrace_conform.reply import ReplyChoice, reply
from tailrace_conform.verdict import Verdict, broken, holds, ignored, inconclusive


async def judge_spellings(
    ctx: LawContext, spellings: dict[str, dict[str, Any]], fits: Callable[[ReplyChoice], bool | None]
) -> Verdict:
    """The verdict over all spellings. fits: whether a choice keeps the law; None where it says nothing.

    Raises:
        Refused: every spelling is refused.
    """
    endpoint = next(name for name in PATHS if ctx.capabilities.offers(name))
    refused, without_effect, unsaid, first = None, [], [], None
    for name, fields in spellings.items():
        found: list[tuple[Exchange, bool]] = []
        case = asking(endpoint, "plain", temperature=1.5, max_tokens=40, **fields)
        try:
            for _ in range(max(4, ctx.budget.cases)):
                made = await ctx.ask(case.path, dict(case.body))
                fit = fits(reply(made).choice())
                found += [] if fit is None else [(made, fit)]
        except Refused as error:
            refused = error
            continue
        wrong = [made for made, fit in found if not fit]
        if found and not wrong:
            more = f"; {', '.join(without_effect)} accepted without effect" if without_effect else ""
            return holds(f"{len(found)} answers with {name}{more}")
        if found and len(wrong) < len(found):
            return broken(f"with {name}: {quoted(reply(wrong[0]).text)}", wrong[0])
        (without_effect if found else unsaid).append(name)
        first = first or (wrong[0] if wrong else None)
    if first is not None:
        return ignored(f"accepted without effect: {', '.join(without_effect)}", first)
    if unsaid:
        return inconclusive(f"no answer with {', '.join(unsaid)} came to its end")
    assert refused is not None
    raise refused
