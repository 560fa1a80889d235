"""The log-probabilities of one token, as one record: the sampler makes it, the engine sends it, the front end reads it.
This module imports no torch.
"""

from __future__ import annotations

import msgspec


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log-probabilities of one token, sampled or given.

    Attributes:
        logprob: the token's natural-log probability. −inf: it was forced and could not have been sampled. NaN: only
            entropies were requested.
        rank: 1 is the likeliest; ties go to the smaller id. 0: only entropies were requested.
        top_ids, top_logprobs: the likeliest tokens in order. If the request named tokens, these in its order.
        entropy, varentropy: of the whole distribution in nats, if they were requested.
    """

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]
    entropy: float | None = None
    varentropy: float | None = None
