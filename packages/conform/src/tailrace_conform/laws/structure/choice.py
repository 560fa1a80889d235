"""structure.choice: one of the given texts, and nothing else."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.reply import ReplyChoice
from tailrace_conform.spellings import judge_spellings
from tailrace_conform.verdict import Verdict

CHOICES = ["quiet sea", "quiet stone", "loud"]
SPELLINGS = {
    "structured_outputs": {"structured_outputs": {"choice": CHOICES}},
    "guided_choice": {"guided_choice": CHOICES},
}


def fits(choice: ReplyChoice) -> bool | None:
    if choice.finish_reason == "length" and any(one.startswith(choice.text) for one in CHOICES):
        return None if choice.text not in CHOICES else True
    return choice.text in CHOICES


async def check(ctx: LawContext) -> Verdict:
    return await judge_spellings(ctx, SPELLINGS, fits)


LAW = Law(
    "structure.choice",
    "An answer bound to a list of texts is one of them, to the character.",
    "Classifiers compare with ==.",
    "Three texts, two of them with a common beginning, at temperature 1.5, in each spelling that is accepted.",
    "Another text (the field is ignored), a space or a full stop around it.",
    check,
    cost=8,
)
