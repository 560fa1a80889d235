"""The log-probabilities of one token, one record from the sampler to the wire: the sampler makes it, the engine sends
it, the front end reads it. Imports no torch.
"""

from __future__ import annotations

import msgspec


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Of one token, sampled or given.

    Attributes:
        logprob: its natural-log probability; −inf if it was forced and could not have been sampled; NaN where only
            entropies were asked for.
        rank: 1 is the likeliest; ties go to the smaller id. 0 where only entropies were asked for.
        top_ids, top_logprobs: the likeliest tokens in order, or the tokens that the request named, in its order.
        entropy, varentropy: of the whole distribution in nats, if asked for.
    """

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]
    entropy: float | None = None
    varentropy: float | None = None
