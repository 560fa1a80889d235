"""structure.regex: the whole answer matches the regex."""

from __future__ import annotations

import re

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.reply import ReplyChoice
from tailrace_conform.spellings import judge_spellings
from tailrace_conform.verdict import Verdict

PATTERN = "(sea|stone)-[0-9]{2,3}(!|\\?)"
SPELLINGS = {
    "structured_outputs": {"structured_outputs": {"regex": PATTERN}},
    "guided_regex": {"guided_regex": PATTERN},
    "regex": {"regex": PATTERN},
}


def fits(choice: ReplyChoice) -> bool | None:
    if choice.finish_reason == "length" and choice.text[:1] in ("", PATTERN[1:2]):
        return None
    return re.fullmatch(PATTERN, choice.text) is not None


async def check(ctx: LawContext) -> Verdict:
    return await judge_spellings(ctx, SPELLINGS, fits)


LAW = Law(
    "structure.regex",
    "An answer bound to a regex matches it as a whole.",
    "Dates, identifiers and formats of all kinds are asked for this way.",
    "A pattern of branches, classes and a counted repeat at temperature 1.5, in each spelling that is accepted.",
    "Text before or after the match, or no match at all (the field is ignored).",
    check,
    cost=8,
)
