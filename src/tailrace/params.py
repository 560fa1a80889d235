"""What one request asks of the sampler: a frozen record, its ranges and its neutral values.

Knows nothing of tensors, tokenizers or HTTP. Strings that must become token ids (bad words) are turned into ids at the
edge that has the tokenizer; stop strings stay strings, because they are matched on text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from tailrace.errors import ParameterError

LogprobsMode = Literal["raw", "processed"]
OutputKind = Literal["delta", "cumulative", "final"]

MAX_SEED = 2**63 - 1
MIN_SEED = -(2**63)

# field -> (low, high, low is allowed, high is allowed). A value outside is refused, never clamped.
RANGES: dict[str, tuple[float, float, bool, bool]] = {
    "temperature": (0.0, math.inf, True, False),
    "top_k": (-1, 2**31 - 1, True, True),
    "top_p": (0.0, 1.0, True, True),
    "min_p": (0.0, 1.0, True, True),
    "repetition_penalty": (0.0, math.inf, False, False),
    "presence_penalty": (-2.0, 2.0, True, True),
    "frequency_penalty": (-2.0, 2.0, True, True),
    "min_tokens": (0, 2**31 - 1, True, True),
    "max_tokens": (1, 2**31 - 1, True, True),
    "logprobs": (0, 2**31 - 1, True, True),
    "n": (1, 1024, True, True),
    "seed": (MIN_SEED, MAX_SEED, True, True),
}

# field -> entries it may have: bounded, so that nobody can flood the engine
MAX_ENTRIES = {"logit_bias": 65_536, "allowed_token_ids": 65_536, "bad_words": 1024, "stop": 128, "stop_token_ids": 1024}
MAX_STOP_CHARS = 1024
MAX_BIAS = 1e4  # |logit bias|; OpenAI's own range is -100 … 100, which the HTTP schema enforces


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling parameters of one request. Every field has a neutral value at which its stage is not run.

    Attributes:
        n: how many sequences are drawn for the prompt (they share its KV cache). 1 … 1024.
        temperature: logits are divided by it; 0 is greedy. 0 ≤ t < ∞; neutral 1.
        top_k: keep the k largest logits, ties to the smaller token id. 0 and −1 are off.
        top_p: keep the smallest descending prefix whose mass is ≥ top_p, at least one token (arXiv 1904.09751).
            0 ≤ p ≤ 1; 1 is off; 0 keeps the largest only.
        min_p: keep p ≥ min_p · p_max (arXiv 2407.01082). 0 ≤ p ≤ 1; 0 is off.
        repetition_penalty: for each distinct token of prompt and output, a positive logit is divided by it and a negative
            one multiplied (CTRL, arXiv 1909.05858). > 0; neutral 1.
        presence_penalty: subtracted once from the logit of each token already in the output. −2 … 2; neutral 0.
        frequency_penalty: subtracted once per occurrence in the output. −2 … 2; neutral 0.
        logit_bias: token id → value added to its logit.
        allowed_token_ids: only these may be drawn; None is off.
        bad_words: sequences of token ids; the last id is banned when the ids before it end the sequence so far.
        min_tokens: EOS and stop ids are banned, and stop strings not looked for, until so many tokens are out.
        max_tokens: the output's length limit; None is as far as the context reaches.
        ignore_eos: EOS does not end the sequence. Stop ids and stop strings still do.
        seed: 64-bit key of the request's noise; None draws a fresh one at admission.
        stop: strings that end the sequence where they first appear in the text.
        stop_token_ids: token ids that end the sequence.
        include_stop_str_in_output: keep the stop string (or the text of the stop token) in the text.
        logprobs: None is off; k reports the drawn token and the k likeliest.
        logprobs_mode: "raw" are those of the model's own logits, "processed" those really drawn from.
        skip_special_tokens: special tokens leave no text.
        output_kind: each event carries the new text ("delta"), all so far ("cumulative") or only the end ("final").

    Raises:
        ParameterError: (a ValueError) naming the field, its range and the value given.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw"
    skip_special_tokens: bool = True
    output_kind: OutputKind = "delta"

    def __post_init__(self) -> None:
        for name in RANGES:
            check_range(name, getattr(self, name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}", "min_tokens"
            )
        if any(not isinstance(s, str) or not s for s in self.stop):
            raise ParameterError("stop must hold non-empty strings", "stop")
        if any(len(s) > MAX_STOP_CHARS for s in self.stop):
            raise ParameterError(f"stop must hold strings of at most {MAX_STOP_CHARS} characters", "stop")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ParameterError("allowed_token_ids must not be empty; leave it out to allow every token",
                                 "allowed_token_ids")  # fmt: skip
        if any(not word for word in self.bad_words):
            raise ParameterError("bad_words must hold non-empty sequences of token ids", "bad_words")
        for name, limit in MAX_ENTRIES.items():
            size = len(getattr(self, name) or ())
            if size > limit:
                raise ParameterError(f"{name} must have at most {limit} entries, got {size}", name)
        for token, bias in self.logit_bias.items():
            if not math.isfinite(bias) or abs(bias) > MAX_BIAS:
                raise ParameterError(
                    f"logit_bias must lie between {-MAX_BIAS:g} and {MAX_BIAS:g}, got {bias} for token {token}",
                    "logit_bias",
                )
        for name, allowed in (
            ("logprobs_mode", ("raw", "processed")),
            ("output_kind", ("delta", "cumulative", "final")),
        ):
            if getattr(self, name) not in allowed:
                raise ParameterError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}", name)

    @property
    def greedy(self) -> bool:
        """True where the largest logit is taken and no noise is drawn."""
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """True where the history of the sequence changes its logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def check_vocab(self, vocab_size: int) -> None:
        """Raise ParameterError if any token id lies outside 0 … vocab_size − 1, or logprobs asks for more than there are."""
        ids: dict[str, list[int]] = {
            "logit_bias": list(self.logit_bias),
            "allowed_token_ids": list(self.allowed_token_ids or ()),
            "stop_token_ids": list(self.stop_token_ids),
            "bad_words": [token for word in self.bad_words for token in word],
        }
        for name, tokens in ids.items():
            for token in tokens:
                if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                    raise ParameterError(f"{name}: token id {token} is not in 0 … {vocab_size - 1}", name)
        if self.logprobs is not None and self.logprobs > vocab_size:
            raise ParameterError(f"logprobs must be at most {vocab_size}, got {self.logprobs}", "logprobs")


def check_range(name: str, value: float | int | None) -> None:
    """Raise ParameterError unless `value` is a number inside RANGES[name]; None passes (the field is off)."""
    if value is None:
        return
    low, high, low_in, high_in = RANGES[name]
    whole = isinstance(low, int) and isinstance(high, int)
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    inside = number and not (isinstance(value, float) and math.isnan(value)) and (
        (low <= value if low_in else low < value) and (value <= high if high_in else value < high)
    )  # fmt: skip
    if not inside:
        opening, closing = "[" if low_in else "(", "]" if high_in else ")"
        kind = "an integer" if whole else "a number"
        raise ParameterError(f"{name} must be {kind} in {opening}{low:g}, {high:g}{closing}, got {value!r}", name)
