"""What one request asks of the sampler: a frozen record and its neutral values. The ranges are in ranges.py.

Knows nothing of tensors, tokenizers or HTTP. Strings that must become token ids (bad words, sequence breakers) are turned into ids at the
edge that has the tokenizer; stop strings and banned strings stay strings, because they are matched on text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tailrace.errors import ParameterError
from tailrace.options import Grammar, MarkedSpan, RepetitionDetection, Speculation, ThinkingBudget, Watermark
from tailrace.ranges import (
    COMPANIONS,
    MAX_BIAS,
    MAX_BYTES,
    MAX_CHARS,
    MAX_DECAY,
    MAX_ENTRIES,
    MAX_PHRASE,
    NOT_GREEDY,
    RANGES,
    REFINEMENT_NAMES,
    TRUNCATIONS,
    check_entries,
    check_range,
    conform,
    number,
)

LogprobsMode = Literal["raw", "processed"]
OutputKind = Literal["delta", "cumulative", "final"]
Scope = Literal["prompt", "output", "both"]
TEXTS = ("stop", "stop_regex", "banned_strings", "banned_regex")  # fields of strings that are looked for in the text


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling parameters of one request. Every field has a neutral value at which its stage is not run.

    The formulas, sources and edge cases are in sampling/methods, one file each.

    Attributes:
        n: how many sequences are drawn for the prompt (they share its KV cache). 1 … 1024.
        temperature: logits are divided by it; 0 is greedy: the largest edited logit, no refinement. 0 … 1e6; neutral 1.
        dynatemp_range, dynatemp_exponent: temperature ± range by entropy. Neutral range 0.
        smoothing_factor, smoothing_curve: quadratic smoothing. Neutral factor 0; curve 1 … 3.
        top_k: keep the k largest logits, ties to the smaller token id. 0 and −1 are off.
        top_p: keep the smallest descending prefix whose mass is ≥ top_p, at least one token. 1 is off; 0 keeps the largest.
        min_p: keep p ≥ min_p · p_max. 0 is off.
        top_a: keep p ≥ top_a · p_max². 0 is off.
        typical_p: keep what is closest to the expected surprise, up to this mass. 1 is off.
        tfs_z: tail-free sampling. 1 is off.
        epsilon_cutoff, eta_cutoff: keep p ≥ ε; p ≥ min(η, √η e^−H). 0 is off.
        top_n_sigma: keep logits within so many standard deviations of the largest. 0 and below are off.
        top_h: keep a prefix with this share of the entropy of the 100 likeliest. 0 is off.
        p_less, p_less_norm: keep p ≥ Σ p²; p ≥ (V Σ p² − 1) / (V − 1), which keeps more.
        min_k, min_k_tau: keep what comes before the steepest fall of the sorted logits, at least τ / (their range) tokens.
        xtc_probability, xtc_threshold: with this probability, drop all but the least likely of the tokens with p ≥ threshold.
        mirostat, mirostat_tau, mirostat_eta: 1 or 2: surprise held at tau bits; replaces the truncations. 0 is off.
        adaptive_target, adaptive_decay: probabilities near a moving target are favoured. Below 0 is off.
        repetition_penalty, presence_penalty, frequency_penalty: see sampling/methods/penalties.py. Neutral 1, 0, 0.
        penalty_last_n: penalties look at the last n tokens; −1 is all, 0 none.
        repetition_scope, penalty_scope: whether prompt, output or both are looked at.
        dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers: the DRY repetition penalty.
        no_repeat_ngram_size: no n-gram comes twice. 0 is off.
        encoder_no_repeat_ngram_size: no n-gram of the prompt comes again. 0 is off.
        encoder_repetition_penalty: above 1 the prompt's tokens are favoured. Neutral 1.
        exponential_decay_length_penalty: (start, factor): EOS grows by factor with each output token after `start`. None is off.
        normalize_logits: log-softmax before the edits; for repetition penalties that don't depend on where the logits lie.
        logit_bias: token id → value added to its logit.
        sequence_bias: (token ids, bias): the bias goes to the last id where the ids before it end the sequence.
        allowed_token_ids: only these may be drawn; None is off.
        bad_words: sequences of token ids; the last id is banned when the ids before it end the sequence so far.
        banned_strings, banned_ignore_case: these never appear in the text: where one has, the sequence backs up and draws again. With
            ignore_case, ASCII letters of the strings match either way.
        banned_regex: neither does what matches one of these; see text/stop_regex.py for what they may hold.
        min_tokens: EOS and stop ids are banned, and stop strings not looked for, until so many tokens are out.
        max_tokens: the output's length limit; None is as far as the context reaches.
        ignore_eos: EOS does not end the sequence. Stop ids and stop strings still do.
        forced_token_ids: the output begins with these whatever would have been drawn; logprobs are the model's own.
        processors: names of processors registered on the server → their arguments, applied in this order.
        watermark: mark the text; None is off.
        grammar: what the output must be; None is off.
        guidance_scale: classifier-free guidance: logits are l_u + scale · (l_c − l_u), where l_u are those of the same output after another
            prompt (arXiv 2306.17806). 1 is off.
        negative_prompt: token ids of that other prompt; () is the prompt's last token alone (as in transformers).
        speculation: how far the engine may guess ahead; None leaves it to the engine.
        sampler_order: refinements by name, in the order they are to run; those not named follow in the default order.
        seed: 64-bit key of the request's noise; None draws a fresh one at admission.
        stop: strings that end the sequence where they first appear in the text.
        stop_regex: patterns that do; see text/stop_regex.py for what they may hold.
        stop_outside: spans of the text in which stop strings and patterns are not looked for.
        stop_token_ids: token ids that end the sequence.
        repetition_detection: end a sequence that goes round in circles; None is off.
        thinking: how long the model may think; None is as long as it likes.
        include_stop_str_in_output: keep the stop string (or the text of the stop token) in the text.
        logprobs: None is off; k reports the drawn token and the k likeliest.
        prompt_logprobs: the same of the prompt's tokens, always of the model's own logits.
        logprobs_mode: "raw" are those of the model's own logits, "processed" those really drawn from.
        logprob_token_ids: the tokens whose logprobs come with each drawn one's, instead of those of the likeliest.
        report_entropy: entropy and varentropy with each token's logprobs, of the distribution that logprobs_mode names.
        skip_special_tokens, shown_token_ids: special tokens leave no text, but for these.
        output_kind: each event carries the new text ("delta"), all so far ("cumulative") or only the end ("final").

    Raises:
        ParameterError: (a ValueError) naming the field, its range and the value given.
    """

    n: int = 1
    temperature: float = 1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    smoothing_factor: float = 0.0
    smoothing_curve: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_a: float = 0.0
    typical_p: float = 1.0
    tfs_z: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    top_n_sigma: float = 0.0
    top_h: float = 0.0
    p_less: bool = False
    p_less_norm: bool = False
    min_k: bool = False
    min_k_tau: float = 3.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = -1
    repetition_scope: Scope = "both"
    penalty_scope: Scope = "output"
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    encoder_repetition_penalty: float = 1.0
    exponential_decay_length_penalty: tuple[int, float] | None = None
    normalize_logits: bool = False
    logit_bias: Mapping[int, float] = {}
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    banned_strings: tuple[str, ...] = ()
    banned_ignore_case: bool = False
    banned_regex: tuple[str, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    forced_token_ids: tuple[int, ...] = ()
    processors: Mapping[str, Mapping[str, Any]] = {}
    watermark: Watermark | None = None
    grammar: Grammar | None = None
    guidance_scale: float = 1.0
    negative_prompt: tuple[int, ...] = ()
    speculation: Speculation | None = None
    sampler_order: tuple[str, ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_outside: tuple[MarkedSpan, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    repetition_detection: RepetitionDetection | None = None
    thinking: ThinkingBudget | None = None
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw"
    logprob_token_ids: tuple[int, ...] = ()
    report_entropy: bool = False
    skip_special_tokens: bool = True
    shown_token_ids: tuple[int, ...] = ()
    output_kind: OutputKind = "delta"

    def __post_init__(self) -> None:
        conform(self)
        for name in RANGES:
            if (value := getattr(self, name)) is None and NEUTRAL[name] is not None:
                raise ParameterError(f"{name} must be a number, got None; leave it out for {NEUTRAL[name]}", name)
            check_range(name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}", "min_tokens"
            )
        self._check_lists()
        self._check_words()
        self._check_decay()
        self._check_company()

    def _check_lists(self) -> None:
        for name in TEXTS:
            if any(not isinstance(s, str) or not s for s in getattr(self, name)):
                raise ParameterError(f"{name} must hold non-empty strings", name)
            if any(len(s) > MAX_CHARS for s in getattr(self, name)):
                raise ParameterError(f"{name} must hold strings of at most {MAX_CHARS} characters", name)
            check_entries(name, len(getattr(self, name)))
            if any("\ud800" <= char <= "\udfff" for s in getattr(self, name) for char in s):
                raise ParameterError(f"{name} must hold text that UTF-8 can write: no surrogates", name)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ParameterError(
                "allowed_token_ids must not be empty; leave it out to allow every token", "allowed_token_ids"
            )
        for name, words in (("bad_words", self.bad_words), ("sequence_bias", [ids for ids, _ in self.sequence_bias])):
            if any(not word for word in words):
                raise ParameterError(f"{name} must hold non-empty sequences of token ids", name)
            if any(len(word) > MAX_PHRASE for word in words):
                raise ParameterError(f"{name} must hold sequences of at most {MAX_PHRASE} token ids", name)
        for name in MAX_ENTRIES:
            check_entries(name, len(getattr(self, name) or ()))
        for name in TEXTS:
            if sum(len(s.encode()) for s in getattr(self, name)) > MAX_BYTES:
                raise ParameterError(f"{name} must hold at most {MAX_BYTES} bytes in all", name)
        biases = [*self.logit_bias.items(), *self.sequence_bias]
        for place, (token, bias) in enumerate(biases):
            if not math.isfinite(bias) or abs(bias) > MAX_BIAS:
                name = "logit_bias" if place < len(self.logit_bias) else "sequence_bias"
                raise ParameterError(
                    f"{name} must lie between {number(-MAX_BIAS)} and {number(MAX_BIAS)}, got {bias} for token {token}",
                    name,
                )

    def _check_words(self) -> None:
        for name in self.sampler_order:
            if name not in REFINEMENT_NAMES:
                raise ParameterError(
                    f"sampler_order must hold names out of {', '.join(REFINEMENT_NAMES)}, got {name!r}", "sampler_order"
                )
        if len(set(self.sampler_order)) < len(self.sampler_order):
            raise ParameterError("sampler_order must name each refinement once", "sampler_order")

    def _check_decay(self) -> None:
        name = "exponential_decay_length_penalty"
        match self.exponential_decay_length_penalty:
            case None:
                return
            case (start, factor) if not isinstance(start, bool) and isinstance(start, int) and 0 <= start < 2**31:
                if (
                    isinstance(factor, int | float)
                    and not isinstance(factor, bool)
                    and 1 / MAX_DECAY <= factor <= MAX_DECAY
                ):
                    return
        raise ParameterError(
            f"{name} must be [start, factor], an integer in [0, {2**31 - 1}] and a number in [{1 / MAX_DECAY:g}, {MAX_DECAY:g}], "
            f"got {self.exponential_decay_length_penalty!r}",
            name,
        )

    def _check_company(self) -> None:
        if self.logprob_token_ids and self.logprobs:
            raise ParameterError(
                f"logprob_token_ids takes the place of the likeliest tokens: so many as 0 of those can be had with it, not {self.logprobs}",
                "logprob_token_ids",
            )
        for name, needed in COMPANIONS.items():
            if getattr(self, name) != NEUTRAL[name] and all(self.neutral(of) for of in needed):
                raise ParameterError(f"{name} has no effect without {' or '.join(needed)}", name)
        if self.p_less and self.p_less_norm:
            raise ParameterError(
                "p_less_norm has no effect with p_less, which keeps fewer: give one of them", "p_less_norm"
            )
        if self.mirostat:
            for name in TRUNCATIONS:
                if not self.neutral(name):
                    raise ParameterError(f"{name} has no effect with mirostat, which replaces it", name)
        banned = "banned_strings" if self.banned_strings else "banned_regex"
        if self.bans and (self.mirostat or not self.neutral("adaptive_target")):
            raise ParameterError(
                f"{banned} can't be had with mirostat or adaptive_target, whose state can't be taken back", banned
            )
        if self.bans and (self.forced_token_ids or self.thinking):
            other = "forced_token_ids" if self.forced_token_ids else "a thinking budget"
            raise ParameterError(f"{banned} can't be had with {other}: forced tokens leave no choice", banned)
        if self.greedy:
            for name in NOT_GREEDY:
                if not self.neutral(name):
                    raise ParameterError(f"{name} has no effect with temperature 0", name)

    def neutral(self, name: str) -> bool:
        """The field is at (or below) the value at which it does nothing."""
        value = getattr(self, name)
        return (
            value <= 0
            if name in ("top_k", "top_n_sigma")
            else value < 0
            if name == "adaptive_target"
            else value == NEUTRAL[name]
        )

    @property
    def bans(self) -> bool:
        """There is text that may not appear."""
        return bool(self.banned_strings or self.banned_regex)

    @property
    def excluding(self) -> tuple[str, ...]:
        """Fields that rule tokens out."""
        return tuple(name for name in EXCLUDING if getattr(self, name) != NEUTRAL[name])

    @property
    def guided(self) -> bool:
        """A second prompt takes part."""
        return self.guidance_scale != 1.0

    @property
    def alternatives(self) -> int | None:
        """Tokens that are listed with each drawn one; None: no logprobs are asked for."""
        return len(self.logprob_token_ids) or self.logprobs

    @property
    def greedy(self) -> bool:
        """True where the largest logit is taken and no noise is drawn."""
        return self.temperature == 0.0

    def hidden(self, special: frozenset[int]) -> frozenset[int]:
        """Those of a vocabulary's special ids that leave no text."""
        if not self.skip_special_tokens:
            return frozenset()
        return special.difference(self.shown_token_ids) if self.shown_token_ids else special

    @property
    def penalised(self) -> bool:
        """True where repetition, presence or frequency penalty changes logits."""
        return self.penalty_last_n != 0 and not (
            self.repetition_penalty == 1.0 and self.presence_penalty == 0.0 and self.frequency_penalty == 0.0
        )

    def check_vocab(self, vocab_size: int) -> None:
        """Raise ParameterError if any token id lies outside 0 … vocab_size − 1, or logprobs asks for more than there are."""
        ids: dict[str, list[int]] = {
            "logit_bias": list(self.logit_bias),
            "sequence_bias": [token for word, _ in self.sequence_bias for token in word],
            "allowed_token_ids": list(self.allowed_token_ids or ()),
            "stop_token_ids": list(self.stop_token_ids),
            "logprob_token_ids": list(self.logprob_token_ids),
            "bad_words": [token for word in self.bad_words for token in word],
            "forced_token_ids": list(self.forced_token_ids),
            "thinking_token_budget": list(self.thinking.closing_token_ids if self.thinking else ()),
            "dry_sequence_breakers": list(self.dry_sequence_breakers),
            "negative_prompt": list(self.negative_prompt),
        }
        for name, tokens in ids.items():
            for token in tokens:
                if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                    raise ParameterError(f"{name}: token id {token} is not in 0 … {vocab_size - 1}", name)
        for name in ("logprobs", "prompt_logprobs"):
            if (asked := getattr(self, name)) is not None and asked > vocab_size:
                raise ParameterError(f"{name} must be at most {vocab_size}, got {asked}", name)


# field -> its default, which is its neutral value
NEUTRAL: dict[str, Any] = {
    field.name: field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    for field in msgspec.structs.fields(SamplingParams)
}

# those that rule tokens out, so that in the end none may be left
EXCLUDING = (
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "banned_strings",
    "banned_regex",
    "processors",
    "grammar",
)
