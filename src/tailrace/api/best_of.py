"""best_of, a legacy field of OpenAI: of so many sequences per prompt, the n with the best mean logprob are the
answer."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from tailrace.api.aggregate import fold_completion
from tailrace.api.schema.completions import Completion, CompletionChoice


def best_of(
    n: int, best: int, *, keep_logprobs: bool
) -> Callable[[AsyncGenerator[Completion, None]], Awaitable[Completion]]:
    """A fold that keeps the best n of each prompt's `best` choices, best first. Usage counts all choices."""

    async def fold_best(chunks: AsyncGenerator[Completion, None]) -> Completion:
        whole = await fold_completion(chunks)
        kept: list[CompletionChoice] = []
        for first in range(0, len(whole.choices), best):
            ranked = sorted(whole.choices[first : first + best], key=mean_logprob, reverse=True)
            kept += ranked[:n]
        choices = [
            msgspec.structs.replace(choice, index=index, logprobs=choice.logprobs if keep_logprobs else None)
            for index, choice in enumerate(kept)
        ]
        return msgspec.structs.replace(whole, choices=choices)

    return fold_best


def mean_logprob(choice: CompletionChoice) -> float:
    """The mean logprob of a choice's tokens; −inf for an empty one."""
    listed = choice.logprobs.token_logprobs if choice.logprobs is not None else []
    logprobs = [logprob for logprob in listed if logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else -math.inf
