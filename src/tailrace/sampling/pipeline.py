"""The order of the methods, with the reason for each place. The sampler walks these tables and knows no method by name."""

from __future__ import annotations

from tailrace.sampling.methods.allowed_token_ids import ALLOWED_TOKEN_IDS
from tailrace.sampling.methods.bad_words import BAD_WORDS
from tailrace.sampling.methods.base import Edit, Refinement
from tailrace.sampling.methods.logit_bias import LOGIT_BIAS
from tailrace.sampling.methods.min_p import MIN_P
from tailrace.sampling.methods.min_tokens import MIN_TOKENS
from tailrace.sampling.methods.penalties import PENALTIES
from tailrace.sampling.methods.temperature import TEMPERATURE
from tailrace.sampling.methods.top_k import TOP_K
from tailrace.sampling.methods.top_p import TOP_P

EDITS: dict[str, Edit] = {
    "allowed_token_ids": ALLOWED_TOKEN_IDS,  # first the bans, which nothing later lifts: −inf plus or times anything is −inf
    "bad_words": BAD_WORDS,
    "min_tokens": MIN_TOKENS,
    "logit_bias": LOGIT_BIAS,  # before the penalties, which look at the sign of the biased logit
    "penalties": PENALTIES,
}

REFINEMENTS: dict[str, Refinement] = {
    "temperature": TEMPERATURE,  # first: the others cut the distribution that is really drawn from
    "min_p": MIN_P,  # relative to the likeliest token, so before anything renormalises; cheap, leaves little for the rest
    "top_k": TOP_K,
    "top_p": TOP_P,  # last: it takes its mass from what the others left
}
