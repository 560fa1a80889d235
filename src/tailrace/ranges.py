"""What a sampling parameter may be: ranges, sizes, and which fields need or exclude each other. Data, and the checks that read it."""

from __future__ import annotations

import math
from decimal import Decimal
from functools import cache
from typing import Any, Literal, get_args, get_origin

import msgspec
import numpy as np

from tailrace.errors import ParameterError

MAX_SEED = 2**63 - 1
MIN_SEED = -(2**63)

# field -> (low, high, low is allowed, high is allowed). A value outside is refused, never clamped.
RANGES: dict[str, tuple[float, float, bool, bool]] = {
    "temperature": (0.0, 1e6, True, True),
    "dynatemp_range": (0.0, 1e6, True, True),
    "dynatemp_exponent": (0.0, 100.0, False, True),
    "smoothing_factor": (0.0, 1e6, True, True),
    "smoothing_curve": (1.0, 3.0, True, True),
    "top_k": (-1, 2**31 - 1, True, True),
    "top_p": (0.0, 1.0, True, True),
    "min_p": (0.0, 1.0, True, True),
    "top_a": (0.0, 1.0, True, True),
    "typical_p": (0.0, 1.0, True, True),
    "tfs_z": (0.0, 1.0, True, True),
    "epsilon_cutoff": (0.0, 1.0, True, False),
    "eta_cutoff": (0.0, 1.0, True, False),
    "top_n_sigma": (-1.0, 1e6, True, True),
    "top_h": (0.0, 1.0, True, True),
    "min_k_tau": (0.0, 1e6, True, True),
    "xtc_probability": (0.0, 1.0, True, True),
    "xtc_threshold": (0.0, 0.5, False, True),
    "mirostat": (0, 2, True, True),
    "mirostat_tau": (0.0, 100.0, False, True),
    "mirostat_eta": (0.0, 100.0, True, True),
    "adaptive_target": (-1.0, 1.0, True, True),
    "adaptive_decay": (0.0, 0.99, True, True),
    "repetition_penalty": (1e-6, 1e6, True, True),
    "encoder_repetition_penalty": (1e-6, 1e6, True, True),
    "presence_penalty": (-100.0, 100.0, True, True),
    "frequency_penalty": (-100.0, 100.0, True, True),
    "penalty_last_n": (-1, 2**31 - 1, True, True),
    "dry_multiplier": (0.0, 1e6, True, True),
    "dry_base": (1.0, 1e6, True, True),
    "dry_allowed_length": (1, 2**31 - 1, True, True),
    "dry_penalty_last_n": (-1, 2**31 - 1, True, True),
    "no_repeat_ngram_size": (0, 2**31 - 1, True, True),
    "encoder_no_repeat_ngram_size": (0, 2**31 - 1, True, True),
    "min_tokens": (0, 2**31 - 1, True, True),
    "max_tokens": (1, 2**31 - 1, True, True),
    "logprobs": (0, 2**31 - 1, True, True),
    "prompt_logprobs": (0, 2**31 - 1, True, True),
    "guidance_scale": (0.0, 100.0, True, True),
    "n": (1, 1024, True, True),
    "seed": (MIN_SEED, MAX_SEED, True, True),
}

# field -> entries it may have: bounded, so that nobody can flood the engine
MAX_ENTRIES = {
    "logit_bias": 65_536,
    "allowed_token_ids": 65_536,
    "bad_words": 1024,
    "sequence_bias": 1024,
    "stop": 128,
    "stop_regex": 16,
    "stop_token_ids": 1024,
    "dry_sequence_breakers": 65_536,
    "banned_strings": 128,
    "banned_regex": 16,
    "forced_token_ids": 65_536,
    "sampler_order": 32,
    "processors": 16,
    "logprob_token_ids": 128,
}
MAX_CHARS = 1024  # of one stop string or banned string
MAX_BYTES = 8192  # of all of a request's, as UTF-8: what is compiled from them takes about 300 times that
MAX_PHRASE = (
    64  # token ids of one bad word or biased sequence: they are compared with the end of the text at every token
)
MAX_BIAS = 1e4  # |logit bias|; OpenAI's own range is -100 … 100, which the HTTP schema enforces

# a knob → the one without which it has no effect: giving the first alone is refused
COMPANIONS: dict[str, tuple[str, ...]] = {
    "dynatemp_exponent": ("dynatemp_range",),
    "smoothing_curve": ("smoothing_factor",),
    "min_k_tau": ("min_k",),
    "xtc_threshold": ("xtc_probability",),
    "mirostat_tau": ("mirostat",),
    "mirostat_eta": ("mirostat",),
    "adaptive_decay": ("adaptive_target",),
    "penalty_last_n": ("repetition_penalty", "presence_penalty", "frequency_penalty"),
    "repetition_scope": ("repetition_penalty",),
    "penalty_scope": ("presence_penalty", "frequency_penalty"),
    "banned_ignore_case": ("banned_strings",),
    "report_entropy": ("logprobs",),
    "logprob_token_ids": ("logprobs",),
    "negative_prompt": ("guidance_scale",),
    "dry_base": ("dry_multiplier",),
    "dry_allowed_length": ("dry_multiplier",),
    "dry_penalty_last_n": ("dry_multiplier",),
    "dry_sequence_breakers": ("dry_multiplier",),
}

MAX_DECAY = 1e3  # of exponential_decay_length_penalty: its factor lies between this and its inverse

# asked for on purpose, and without effect where the largest logit is taken: refused there. (Truncations are not: clients send them always.)
NOT_GREEDY = ("dynatemp_range", "smoothing_factor", "mirostat", "xtc_probability", "adaptive_target")

# refinement → the fields that turn it on where mirostat replaces it. sampling/pipeline.py, which has the methods, can't be
# imported while it has others
REFINEMENTS: dict[str, tuple[str, ...]] = {
    "temperature": (),
    "dynatemp": (),
    "smoothing": (),
    "min_p": ("min_p",),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "top_a": ("top_a",),
    "typical_p": ("typical_p",),
    "tfs_z": ("tfs_z",),
    "epsilon_cutoff": ("epsilon_cutoff",),
    "eta_cutoff": ("eta_cutoff",),
    "top_n_sigma": ("top_n_sigma",),
    "top_h": ("top_h",),
    "p_less": ("p_less", "p_less_norm"),
    "min_k": ("min_k",),
    "xtc": ("xtc_probability",),
    "mirostat": (),
    "adaptive_p": ("adaptive_target",),
    "synthid": (),
}
REFINEMENT_NAMES = tuple(REFINEMENTS)
TRUNCATIONS = tuple(
    field for fields in REFINEMENTS.values() for field in fields
)  # one of them beside mirostat is refused


def conform(record: msgspec.Struct, within: str | None = None) -> None:
    """Make every field of its declared type where nothing is lost by that: a list a tuple, a mapping a record, a number of numpy one of
    Python. The ranges of numbers are not looked at; `check_range` is for them.

    Args:
        within: the field whose record it is, which errors name.

    Raises:
        ParameterError: a value is of another type, or none of those that may be named.
    """
    for name, kind, neutral in declared(type(record)):
        value = getattr(record, name)
        if value is neutral:
            continue
        if isinstance(value, np.generic):
            value = value.item()
            msgspec.structs.force_setattr(record, name, value)
        if within is None and name in RANGES:
            continue
        field = within or name
        place = f"{within}.{name}" if within else name
        if get_origin(kind) is Literal:
            if not isinstance(value, str) or value not in get_args(kind):
                raise ParameterError(f"{place} must be one of {', '.join(get_args(kind))}, got {value!r:.100}", field)
            continue
        if kind is bool and not isinstance(value, bool):
            raise ParameterError(f"{place} must be true or false, got {value!r:.100}", field)
        try:
            made = converted(value, kind)
        except CONVERSION as error:
            if isinstance(error.__cause__, ParameterError):  # a record's own complaint
                raise error.__cause__ from None
            raise ParameterError(f"{place} is of the wrong type: {str(error).replace('`', '')}", field) from None
        if made is not value:
            msgspec.structs.force_setattr(record, name, made)


CONVERSION = (msgspec.MsgspecError, ValueError, TypeError, AttributeError)  # half of a surrogate pair, …


def converted(value: Any, kind: Any) -> Any:
    """The value as one of this type; where it isn't as it is, then with Python's own numbers and lists in it."""
    try:
        return msgspec.convert(value, kind)
    except CONVERSION:
        return msgspec.convert(plain(value), kind)


def plain(value: Any) -> Any:
    """The same with Python's own numbers and lists in it, instead of numpy's and of ranges."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, dict):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [plain(entry) for entry in value]
    return value


@cache
def declared(kind: type[msgspec.Struct]) -> list[tuple[str, Any, Any]]:
    """Its fields: name, type, default."""
    return [(field.name, field.type, field.default) for field in msgspec.structs.fields(kind)]


def check_entries(name: str, size: int, of: str | None = None) -> None:
    """Raise ParameterError, naming `of` (the field where the entries come from), if there are more than MAX_ENTRIES[name]."""
    if size > MAX_ENTRIES[name]:
        field = of or name
        raise ParameterError(
            f"{field} must have at most {MAX_ENTRIES[name]} entries{' of text' if of else ''}, got {size}", field
        )


def check_range(name: str, value: float | int | None, said: str | None = None) -> None:
    """Raise ParameterError unless `value` is a number inside RANGES[name]; None passes (the field is off). said: what the caller calls
    the field."""
    if value is None:
        return
    low, high, low_in, high_in = RANGES[name]
    whole = isinstance(low, int) and isinstance(high, int)
    numeric = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    inside = (
        numeric
        and not (isinstance(value, float) and math.isnan(value))
        and ((low <= value if low_in else low < value) and (value <= high if high_in else value < high))
    )
    if not inside:
        opening, closing = "[" if low_in else "(", "]" if high_in else ")"
        kind = "an integer" if whole else "a number"
        said = said or name
        raise ParameterError(
            f"{said} must be {kind} in {opening}{number(low)}, {number(high)}{closing}, got {shown(value)}", said
        )


def number(value: float) -> str:
    """As a message says it: every digit of a whole number, no exponent where it can be helped."""
    if not isinstance(value, float) or not math.isfinite(value) or not (value == 0.0 or 1e-16 < abs(value) < 1e16):
        return str(value)
    return f"{value:.0f}" if value.is_integer() else f"{Decimal(repr(value)):f}"


def shown(value: object) -> str:
    """As a message says it: a huge integer not digit by digit."""
    huge = isinstance(value, int) and abs(value) >= 2**64
    return "an integer of more than 64 bits" if huge else repr(value)
