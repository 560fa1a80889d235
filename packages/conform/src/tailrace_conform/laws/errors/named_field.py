"""errors.named-field: an error names the field."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive
from tailrace_conform.wrong_requests import OUT_OF_RANGE, WRONG_TYPES, tried


async def check(ctx: LawContext) -> Verdict:
    refused = [one for one in await tried(ctx, OUT_OF_RANGE + WRONG_TYPES) if one[2].refused]
    silent = [(name, made) for name, _, made in refused if name not in made.text]
    if silent:
        names = ", ".join(dict.fromkeys(name for name, _ in silent))
        said = silent[0][1].error_message[:120]
        return broken(f"not named: {names}; the error says {quoted(said)}", *(made for _, made in silent))
    return holds(f"{len(refused)} refusals") if refused else inconclusive("no wrong value is refused")


LAW = Law(
    "errors.named-field",
    "A refusal names the field that is wrong, in its message or in param.",
    "'Bad request' with thirty fields in the body costs an afternoon.",
    "The bodies of the refusals of errors.out-of-range and errors.wrong-types must hold the field's name.",
    "'Invalid request', or the name of an inner variable.",
    check,
    cost=19,
)
