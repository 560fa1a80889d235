"""The parameters of one request: a frozen record, its checks across fields, and tables made from the declarations.

The fields are declared in request/sampler_fields.py (those that the sampler acts on) and request/engine_fields.py (the
others). This module knows nothing of tensors, tokenizers or HTTP. Strings that must become token ids (bad words,
sequence breakers) are converted where the tokenizer is. Stop strings and banned strings stay strings, because they are
matched on text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from tailrace.errors import ParameterError
from tailrace.request.engine_fields import EngineFields
from tailrace.request.fields import Field, declared_fields, format_exact_number


class SamplingParams(EngineFields, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling parameters of one request. Every field has a neutral value, its default, at which its method is not run.

    Each field's declaration states its meaning, its range, its neutral value and the fields that it needs;
    docs/sampling.md has the table. Formulas, sources and edge cases are in sampling/methods, one file each.

    Raises:
        ParameterError: (a ValueError) naming the field, its range and the value given.
    """

    def __post_init__(self) -> None:
        given: list[tuple[Field, Any]] = []
        for value, default, field in zip(read_all(self), DEFAULTS, DECLARED, strict=True):
            if value is default or (type(value) is type(default) and value == default):
                continue
            made = field.check_value(value)
            if made is not value:
                msgspec.structs.force_setattr(self, field.name, made)
            given.append((field, made))
        if given:
            self._check_together(given)

    def _check_together(self, given: list[tuple[Field, Any]]) -> None:
        """Raise ParameterError for fields that exclude each other. given: the fields that are not at their default."""
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}",
                "min_tokens",
                mentions=["max_tokens"],
            )
        if self.logprob_token_ids and self.logprobs:
            raise ParameterError(
                f"logprob_token_ids takes the place of the likeliest tokens: so many as 0 of those can be had "
                f"with it, not {self.logprobs}",
                "logprob_token_ids",
            )
        for field, value in given:
            if field.needs and value != field.default and all(self.neutral(name) for name in field.needs):
                text = f"{field.name} has no effect without {' or '.join(field.needs)}"
                raise ParameterError(text, field.name, mentions=field.needs)
        for name, (voids, words) in VOIDS.items():
            if voids(getattr(self, name)):
                check_void(
                    [field for field, value in given if name in voids_of(field) and not field.neutral(value)],
                    name,
                    words,
                )
        if self.bans:
            self._check_bans()

    def _check_bans(self) -> None:
        banned = "banned_strings" if self.banned_strings else "banned_regex"
        if not all(self.neutral(name) for name in STATEFUL):
            raise ParameterError(
                f"{banned} can't be had with {' or '.join(STATEFUL)}, whose state can't be taken back",
                banned,
                mentions=STATEFUL,
            )
        if self.forced_token_ids or self.thinking:
            other = "forced_token_ids" if self.forced_token_ids else "thinking_token_budget"
            text = f"{banned} can't be had with {other}: forced tokens leave no choice"
            raise ParameterError(text, banned, mentions=[other])

    def neutral(self, name: str) -> bool:
        """Return whether the field has a value at which it does nothing."""
        return FIELDS[name].neutral(getattr(self, name))

    @property
    def bans(self) -> bool:
        """True if some text may not appear."""
        return bool(self.banned_strings or self.banned_regex)

    @property
    def excluding(self) -> tuple[str, ...]:
        """Fields that rule tokens out."""
        return tuple(name for name in EXCLUDING if getattr(self, name) != NEUTRAL[name])

    def scored_places(self, num_prompt: int) -> Sequence[int]:
        """Return the places of a prompt of this length whose logprobs are reported, ascending. The first place never
        is.

        Raises:
            ParameterError: the request names places beyond the prompt.
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
        """True if logprobs of the prompt are requested."""
        return self.prompt_logprobs is not None or bool(self.prompt_logprob_token_ids)

    @property
    def guided(self) -> bool:
        """True if a second prompt guides the output."""
        return self.guidance_scale != 1.0

    @property
    def alternatives(self) -> int | None:
        """The number of tokens listed with each drawn one; None: no logprobs are requested."""
        return len(self.logprob_token_ids) or self.logprobs

    @property
    def greedy(self) -> bool:
        """True if the largest logit is taken and no noise is drawn."""
        return self.temperature == 0.0

    def hidden(self, special: frozenset[int]) -> frozenset[int]:
        """Return the special ids of a vocabulary that leave no text."""
        if not self.skip_special_tokens:
            return frozenset()
        return special.difference(self.shown_token_ids) if self.shown_token_ids else special

    @property
    def penalised(self) -> bool:
        """True if repetition, presence or frequency penalty changes logits."""
        return self.penalty_last_n != 0 and not (
            self.repetition_penalty == 1.0 and self.presence_penalty == 0.0 and self.frequency_penalty == 0.0
        )

    def check_vocab(self, vocab_size: int) -> None:
        """Raise ParameterError if any token id lies outside 0 … vocab_size − 1, or if more logprobs are requested than
        there are tokens."""
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
    """Return the causes that take away the effect of a field, as keys of VOIDS."""
    replaced = field.kind == "truncation" and field.refinement != "mirostat"
    return ("mirostat", *field.voided_by) if replaced else field.voided_by


def check_void(fields: Sequence[Field], by: str, words: str) -> None:
    """Raise ParameterError if `fields` is not empty: another field takes away their effect.

    by: that other field. words: its name in the message, and the reason.
    """
    if not fields:
        return
    names = join_words(field.name for field in fields)
    neutral = join_words(format_exact_number(field.default) if field.range else "false" for field in fields)
    several = len(fields) > 1
    void = f"{names}: each has no effect with {words}" if several else f"{names} has no effect with {words}"
    first, *others = [field.name for field in fields]
    raise ParameterError(f"{void}; leave {'them' if several else 'it'} out (or {neutral})", first, [*others, by])


def join_words(words: Iterable[str]) -> str:
    """Return words as one list in a sentence."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def find_idle(given: Collection[str], effective: Mapping[str, Any]) -> set[str]:
    """Return the fields of a method that is off: all fields that they need are neutral, and were turned off on purpose.

    A field of the request counts only if the request also gives one of the fields that it needs. So a switch at its
    neutral value silences its method's other fields, and a field without any switch is an error. A field that asks for
    a report is never idle.

    Args:
        given: names of the request's own fields. effective: these and the fields from elsewhere, with their values.

    Example:
        >>> find_idle({"dry_multiplier", "dry_base"}, {"dry_multiplier": 0.0, "dry_base": 2.0})
        {'dry_base'}
    """
    return {
        name
        for name in effective
        if (field := FIELDS[name]).needs
        and field.kind != "report"
        and all(FIELDS[switch].neutral(effective.get(switch, NEUTRAL[switch])) for switch in field.needs)
        and (name not in given or any(switch in given for switch in field.needs))
    }


def find_void(effective: Mapping[str, Any], given: Mapping[str, Any]) -> set[str]:
    """Return the fields among `effective` whose effect a field of `given` takes away."""
    return {name for name in effective if any(by in given and VOIDS[by][0](given[by]) for by in voids_of(FIELDS[name]))}


def check_range(name: str, value: float | int | None, label: str | None = None) -> None:
    """Raise ParameterError unless `value` is a number inside the field's range; None passes (the field is off). label:
    what the caller calls the field."""
    if value is not None and (limits := FIELDS[name].range) is not None:
        limits.check(label or name, value)


def check_entries(name: str, size: int, of: str | None = None) -> None:
    """Raise ParameterError, naming `of` (the field where the entries come from), if there are more than the field may
    have."""
    FIELDS[name].check_entries(size, of)


# a field that takes away the effect of others → whether it does at a value, and how the message goes on
VOIDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda value: value == 0.0, "temperature 0"),
    "mirostat": (lambda value: value > 0, "mirostat, which replaces it"),
    "p_less": (bool, "p_less, which keeps fewer"),
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


def list_switches(edit_or_refinement: str) -> tuple[str, ...]:
    """Return the fields that switch a method on, by the name that method_order.py has."""
    return tuple(
        name
        for name, field in FIELDS.items()
        if edit_or_refinement in (field.edit, field.refinement) and not field.needs
    )
