"""The outputs of a prompt as token ids, as they come and as a whole."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tailrace.api.generation import Generation
from tailrace.api.logprobs import clamp_logprob
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.schema.token_io import LikelyToken, ScoredToken, ScoredTokens, TokensAnswer, TokensChoice
from tailrace.text.output import Delta


async def stream_tokens(
    generation: Generation, ask: CompletionRequest, model: str, with_prompt: bool
) -> AsyncGenerator[TokensAnswer, None]:
    """The outputs as they come; at the end the usage, if it is reported.

    Raises:
        TailraceError: see Generation.deltas.
    """
    created, prompt = int(time.time()), generation.prompts[0] if with_prompt else None
    async with aclosing(generation.deltas()) as deltas:
        async for index, delta in deltas:
            if not delta.token_ids and delta.finish_reason is None:
                continue
            choice = TokensChoice(
                index=index,
                finish_reason=delta.finish_reason,
                stop_reason=delta.stop_reason,
                token_ids=list(delta.token_ids),
                logprobs=score_tokens(delta),
            )
            usage = generation.usage if ask.reports_usage_always else None
            yield TokensAnswer(
                request_id=generation.id,
                choices=[choice],
                model=model,
                created=created,
                usage=usage,
                prompt_token_ids=prompt,
            )
            prompt = None
    if ask.reports_usage:
        yield TokensAnswer(request_id=generation.id, choices=[], model=model, created=created, usage=generation.usage)


def score_tokens(delta: Delta) -> ScoredTokens | None:
    """The logprobs of a delta's tokens, if it has some."""
    if delta.logprobs is None:
        return None
    found: list[ScoredToken] = []
    for id, entry in zip(delta.token_ids, delta.logprobs, strict=True):
        logprob = clamp_logprob(entry.logprob)
        others = [
            LikelyToken(other, clamp_logprob(value), rank)
            for rank, (other, value) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), 1)
            if other != id
        ]
        found.append(ScoredToken(id, logprob, entry.rank, [LikelyToken(id, logprob, entry.rank), *others]))
    return ScoredTokens(found)


async def fold_tokens(chunks: AsyncGenerator[TokensAnswer, None]) -> TokensAnswer:
    """The whole answer."""
    whole: TokensAnswer | None = None
    choices: dict[int, TokensChoice] = {}
    async for chunk in chunks:
        whole = chunk if whole is None else whole
        whole.usage = chunk.usage or whole.usage
        for new in chunk.choices:
            if (old := choices.setdefault(new.index, new)) is new:
                continue
            assert old.token_ids is not None  # see stream_tokens
            assert new.token_ids is not None
            old.token_ids += new.token_ids
            old.finish_reason, old.stop_reason = new.finish_reason, new.stop_reason
            if old.logprobs is not None and new.logprobs is not None and old.logprobs.content is not None:
                old.logprobs.content.extend(new.logprobs.content or ())
    assert whole is not None
    whole.choices = [choices[index] for index in sorted(choices)]
    return whole
