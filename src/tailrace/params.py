"""What one request asks: a frozen record, its checks across fields, and tables made from the declarations.

The fields are declared in sampler_fields.py (what the sampler acts on) and engine_fields.py (the others).
Knows nothing of tensors, tokenizers or HTTP. Strings that must become token ids (bad words, sequence breakers) are
turned into ids at the edge that has the tokenizer; stop strings and banned strings stay strings, because they are
matched on text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from tailrace.engine_fields import EngineFields
from tailrace.errors import ParameterError
from tailrace.fields import Field, declared_fields


class SamplingParams(EngineFields, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling parameters of one request. Every field has a neutral value, its default, at which its method is not run.

    What each field does, its range, its neutral value and what it needs is declared beside it; docs/sampling.md has the
    table. Formulas, sources and edge cases are in sampling/methods, one file each.

    Raises:
        ParameterError: (a ValueError) naming the field, its range and the value given.
    """

    def __post_init__(self) -> None:
        given: list[tuple[Field, Any]] = []
        for value, default, field in zip(read_all(self), DEFAULTS, DECLARED, strict=True):
            if value is default or (type(value) is type(default) and value == default):
                continue
            made = field.checked(value)
            if made is not value:
                msgspec.structs.force_setattr(self, field.name, made)
            given.append((field, made))
        if given:
            self._check_together(given)

    def _check_together(self, given: list[tuple[Field, Any]]) -> None:
        """given: the fields that are not at their default."""
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}", "min_tokens"
            )
        if self.logprob_token_ids and self.logprobs:
            raise ParameterError(
                f"logprob_token_ids takes the place of the likeliest tokens: so many as 0 of those can be had "
                f"with it, not {self.logprobs}",
                "logprob_token_ids",
            )
        for field, value in given:
            if field.needs and value != field.default and all(self.neutral(name) for name in field.needs):
                raise ParameterError(f"{field.name} has no effect without {' or '.join(field.needs)}", field.name)
        for field, value in given:
            if not field.neutral(value):
                for name in voids_of(field):
                    voided, words = VOIDS[name]
                    if voided(self):
                        raise ParameterError(f"{field.name} has no effect with {words}", field.name)
        if self.bans:
            self._check_bans()

    def _check_bans(self) -> None:
        banned = "banned_strings" if self.banned_strings else "banned_regex"
        if not all(self.neutral(name) for name in STATEFUL):
            raise ParameterError(
                f"{banned} can't be had with {' or '.join(STATEFUL)}, whose state can't be taken back", banned
            )
        if self.forced_token_ids or self.thinking:
            other = "forced_token_ids" if self.forced_token_ids else "a thinking budget"
            raise ParameterError(f"{banned} can't be had with {other}: forced tokens leave no choice", banned)

    def neutral(self, name: str) -> bool:
        """The field is at (or below) the value at which it does nothing."""
        return FIELDS[name].neutral(getattr(self, name))

    @property
    def bans(self) -> bool:
        """There is text that may not appear."""
        return bool(self.banned_strings or self.banned_regex)

    @property
    def excluding(self) -> tuple[str, ...]:
        """Fields that rule tokens out."""
        return tuple(name for name in EXCLUDING if getattr(self, name) != NEUTRAL[name])

    def scored_places(self, num_prompt: int) -> Sequence[int]:
        """Which places of a prompt of so many tokens have logprobs to report, ascending. The first has none.

        Raises:
            ParameterError: they are asked for beyond it.
        """
        first, rows = self.prompt_logprob_start + 1, self.prompt_logprob_token_ids
        if first + len(rows) > max(num_prompt, first) or (first > 1 and first >= num_prompt):
            last = max(num_prompt - 2, 0)
            if first - 1 > last:
                raise ParameterError(
                    f"prompt_logprob_start must be in 0 … {last} for a prompt of {num_prompt} tokens, got {first - 1}",
                    "prompt_logprob_start",
                )
            raise ParameterError(
                f"prompt_logprob_token_ids must hold at most {num_prompt - first} lists for a prompt of {num_prompt} "
                f"tokens from place {first - 1} on, got {len(rows)}",
                "prompt_logprob_token_ids",
            )
        if self.prompt_logprobs is not None:
            return range(first, num_prompt)
        return [first + i for i, ids in enumerate(rows) if ids]

    @property
    def scores_prompt(self) -> bool:
        """Logprobs of the prompt are asked for."""
        return self.prompt_logprobs is not None or bool(self.prompt_logprob_token_ids)

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
        """Raise ParameterError if any token id lies outside 0 … vocab_size − 1, or logprobs asks for more than there
        are."""
        for name in HOLDING_IDS:
            value, field = getattr(self, name), FIELDS[name]
            if value is field.default or field.token_ids is None:
                continue
            for token in field.token_ids(value):
                if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                    name = field.http_name or name
                    raise ParameterError(f"{name}: token id {token} is not in 0 … {vocab_size - 1}", name)
        for name in ("logprobs", "prompt_logprobs"):
            if (asked := getattr(self, name)) is not None and asked > vocab_size:
                raise ParameterError(f"{name} must be at most {vocab_size}, got {asked}", name)


def voids_of(field: Field) -> tuple[str, ...]:
    """What takes away the effect of a field: keys of VOIDS."""
    replaced = field.kind == "truncation" and field.refinement != "mirostat"
    return ("mirostat", *field.voided_by) if replaced else field.voided_by


def check_range(name: str, value: float | int | None, label: str | None = None) -> None:
    """Raise ParameterError unless `value` is a number inside the field's range; None passes (the field is off). label:
    what the caller calls the field."""
    if value is not None and (limits := FIELDS[name].range) is not None:
        limits.check(label or name, value)


def check_entries(name: str, size: int, of: str | None = None) -> None:
    """Raise ParameterError, naming `of` (the field where the entries come from), if there are more than the field may
    have."""
    FIELDS[name].check_entries(size, of)


# what takes away the effect of other fields → whether it is asked for, and how the message goes on
VOIDS: dict[str, tuple[Callable[[SamplingParams], bool], str]] = {
    "temperature": (lambda params: params.greedy, "temperature 0"),
    "mirostat": (lambda params: params.mirostat > 0, "mirostat, which replaces it"),
    "p_less": (lambda params: params.p_less, "p_less, which keeps fewer: give one of them"),
}
FIELDS: dict[str, Field] = declared_fields(SamplingParams)
DECLARED: list[Field] = list(FIELDS.values())
NEUTRAL: dict[str, Any] = {name: field.default for name, field in FIELDS.items()}
DEFAULTS: list[Any] = list(NEUTRAL.values())
read_all: Callable[[SamplingParams], tuple[Any, ...]] = attrgetter(*FIELDS)
# In the end they may leave no token. An error names the first: the list that allows nothing else comes first.
EXCLUDING = tuple(sorted((name for name, field in FIELDS.items() if field.excludes), key="allowed_token_ids".__ne__))
STATEFUL = tuple(name for name, field in FIELDS.items() if field.stateful)
HOLDING_IDS = tuple(name for name, field in FIELDS.items() if field.token_ids is not None)
REPLACED_BY_MIROSTAT = tuple(name for name, field in FIELDS.items() if "mirostat" in voids_of(field))


def switches(edit_or_refinement: str) -> tuple[str, ...]:
    """The fields that switch a method on, by the name that sampling/pipeline.py has."""
    return tuple(
        name
        for name, field in FIELDS.items()
        if edit_or_refinement in (field.edit, field.refinement) and not field.needs
    )
