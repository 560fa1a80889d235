"""The same logprobs with and without stream."""

from __future__ import annotations

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.prompts import PROMPTS
from tailrace_conform.reply import ReplyChoice, reply
from tailrace_conform.reported import NAMES, asked
from tailrace_conform.spread import LARGEST_JITTER, key_of, seeded, top_of
from tailrace_conform.verdict import Verdict, broken, holds, inconclusive


def difference(plain: ReplyChoice, streamed: ReplyChoice) -> str | None:
    """What is not the same; logprobs may differ by what batches do to bfloat16."""
    if len(plain.tokens) != len(streamed.tokens):
        return f"{len(plain.tokens)} tokens without stream, {len(streamed.tokens)} with it"
    for at, (one, other) in enumerate(zip(plain.tokens, streamed.tokens, strict=True)):
        if key_of(one) != key_of(other):
            return f"token {at} is {quoted(one.text)} without stream, {quoted(other.text)} with it"
        if one.logprob is not None and abs(one.logprob - (other.logprob or 0.0)) > LARGEST_JITTER:
            return f"token {at} has logprob {one.logprob:.4f} without stream, {quoted(other.logprob)} with it"
        first, second = top_of(one), top_of(other)
        if len(first) != len(second):
            return f"token {at} has {len(first)} likeliest tokens without stream, {len(second)} with it"
        moved = [key for key in first if key in second and abs(first[key] - second[key]) > LARGEST_JITTER]
        if moved:
            one_side, other_side = f"{first[moved[0]]:.4f}", f"{second[moved[0]]:.4f}"
            return f"token {at}: {quoted(moved[0])} has {one_side} without stream, {other_side} with it"
    return None


async def check(ctx: LawContext) -> Verdict:
    compared = tokens = 0
    for path in ("chat", "completions"):
        if not ctx.capabilities.offers(path):
            continue
        for at in range(min(ctx.budget.cases, 8)):
            temperature = 1.0 if ctx.capabilities.offers("seed") else 0.0
            fields = seeded(ctx, {"max_tokens": 40, "temperature": temperature})
            text = PROMPTS[NAMES[at % len(NAMES)]]
            plain = await asked(ctx, path, text, fields)
            streamed = await asked(ctx, path, text, fields | {"stream": True})
            one, other = reply(plain).choice(), reply(streamed).choice()
            if one.text != other.text or not one.tokens:
                continue  # other laws say so
            if (said := difference(one, other)) is not None:
                return broken(f"{path}: {said}", streamed, plain)
            compared, tokens = compared + 1, tokens + len(one.tokens)
    if not compared:
        return inconclusive("no answer was the same with and without stream")
    return holds(f"{tokens} tokens of {compared} answers")


LAW = Law(
    id="logprobs.stream-same",
    sentence="A stream reports the logprobs that the plain answer reports.",
    why="Streaming must not lose tokens, nor report them beside the wrong text.",
    method="The same seeded request is sent with and without stream; tokens, logprobs and likeliest tokens are "
    "compared one by one. Logprobs may differ by what the batch does to a bfloat16 model.",
    violation="A token's report is missing, comes twice or has other numbers.",
    check=check,
    needs=("logprobs", "stream"),
)
