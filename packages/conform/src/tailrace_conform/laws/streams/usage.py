"""streams.usage: usage counts the generated tokens, streamed or not."""

from __future__ import annotations

from typing import Any

from tailrace_conform.cases import Case, Finding, cases, check_repeatable, judged, need_text, sent
from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.reply import FoldedReply
from tailrace_conform.verdict import Verdict

COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def problem(said: FoldedReply, case: Case) -> str | None:
    """What is wrong with one answer's usage."""
    usage, choice = said.usage, said.choice()
    if usage is None or not all(type(usage.get(name)) is int for name in COUNTS):
        return f"usage is {quoted(usage)}"
    if usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
        return f"total_tokens is not the sum in {quoted(usage)}"
    count, most = usage["completion_tokens"], case.body["max_tokens"]
    if choice.finish_reason == "length" and count != most:
        return f"completion_tokens is {count} where max_tokens {most} ended the answer"
    if not count and not choice.blank:
        return "completion_tokens is 0, but there is text"
    if count > most:
        return f"completion_tokens is {count}, more than max_tokens {most}"
    listed = len(choice.tokens)
    spare = choice.finish_reason != "length"  # the token that ends a sequence may be left out of the list
    if listed and not listed <= count <= listed + spare:
        return f"completion_tokens is {count}, but logprobs list {listed} tokens"
    return None


async def judge(ctx: LawContext, case: Case) -> Finding | None:
    plain, said = await sent(ctx, case)
    streamed, also = await sent(ctx, case, stream=True, stream_options={"include_usage": True})
    for made, answer in ((plain, said), (streamed, also)):
        if seen := problem(answer, case):
            return Finding(seen, (made,))
    if not (said.choice().tokens or also.choice().tokens):
        need_text(said.choice().said, also.choice().said)
    last = next(event.parsed for event in reversed(streamed.events) if isinstance(event.parsed, dict))
    if last.get("choices"):
        return Finding("the chunk with usage has choices", (streamed,))
    if said.text == also.text and [said.usage[name] for name in COUNTS] != [also.usage[name] for name in COUNTS]:  # type: ignore[index]
        await check_repeatable(ctx, case, said.text)
        return Finding(f"usage is {quoted(said.usage)} plain and {quoted(also.usage)} streamed", (streamed, plain))
    return None


async def check(ctx: LawContext) -> Verdict:
    sets: list[dict[str, Any]] = [{"temperature": 0.0, "max_tokens": count} for count in (8, 1, 40)]
    tried = cases(ctx, ["plain", "characters", "numbers"], *sets)
    if ctx.capabilities.offers("logprobs"):
        extra = [case.having(**({"logprobs": True} if case.chat else {"logprobs": 1})) for case in tried[:2]]
        tried = extra + tried
    return await judged(ctx, tried, judge)


LAW = Law(
    "streams.usage",
    "usage is the same with and without stream, and counts the tokens that were generated.",
    "Bills and limits are made of it.",
    "The same greedy request plain and streamed with include_usage. At a limit the count is max_tokens; with logprobs "
    "it is the number of listed tokens, or one more for the token that ends a sequence. The chunk with usage has no "
    "choices.",
    "Off by one where a stop or the length ends an answer; a sum that is none.",
    check,
    needs=("stream_usage",),
    cost=16,
)
