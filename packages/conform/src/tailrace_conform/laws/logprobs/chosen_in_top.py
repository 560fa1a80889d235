"""The chosen token is among the likeliest, with the same logprob, where its logprob says so."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.reply import ReplyChoice
from tailrace_conform.reported import Looked, check
from tailrace_conform.spread import SAME_STEP, key_of, names_one_token
from tailrace_conform.verdict import Verdict


def look(choice: ReplyChoice) -> Looked:
    judged = 0
    for at, token in enumerate(choice.tokens):
        if not token.top or token.logprob is None or not names_one_token(key_of(token)):
            continue
        judged, what = judged + 1, f"token {at} ({quoted(token.text)}, {token.logprob:.4f})"
        same = [value for text, raw, value in token.top if (text if raw is None else raw) == key_of(token)]
        least = min(value for _, _, value in token.top)
        if same and min(abs(value - token.logprob) for value in same) > SAME_STEP:
            return judged, f"{what} has the logprob {same[0]:.4f} among the likeliest"
        if not same and token.logprob > least + SAME_STEP:
            return judged, f"{what} is not among the likeliest, which reach {least:.4f}"
    return judged, None


async def check_law(ctx: LawContext) -> Verdict:
    return await check(ctx, look)


LAW = Law(
    id="logprobs.chosen-in-top",
    sentence="A token whose logprob is above the last of the likeliest is among them, with the same logprob.",
    why="Whoever looks the chosen token up in the list must find it, and find the same number.",
    method="Answers are drawn at temperature 1 with logprobs; each chosen token is looked up.",
    violation="It is missing from the list, or there with another logprob.",
    check=check_law,
    needs=("logprobs",),
)
