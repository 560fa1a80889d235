"""A request's parameters in Aphrodite → those of tailrace's sampler.

Aphrodite has its own fields for many methods. tailrace's other fields come in `aphrodite_xargs` (`extra_args` offline).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aphrodite.sampling_params import SamplingParams as Theirs

from tailrace.errors import ParameterError
from tailrace.integrations.aphrodite.refused_fields import APHRODITE
from tailrace.integrations.field_texts import find_text
from tailrace.integrations.field_values import read_value
from tailrace.integrations.refusals import FieldPlace, check_names
from tailrace.integrations.v1_engine import GREEDY_BELOW, READ_BY_ENGINE
from tailrace.params import FIELDS, NEUTRAL, SamplingParams, find_void
from tailrace.sampling.validation import check_kind

SAME = (
    *("temperature", "top_p", "min_p", "seed", "min_tokens", "logprobs", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "no_repeat_ngram_size", "top_a", "eta_cutoff", "epsilon_cutoff", "typical_p"),
    *("smoothing_factor", "smoothing_curve", "xtc_threshold", "xtc_probability", "mirostat_tau", "mirostat_eta"),
    *("dry_multiplier", "dry_base", "dry_allowed_length"),
)
RENAMED = {"tfs": "tfs_z", "nsigma": "top_n_sigma", "mirostat_mode": "mirostat"}
# in which Aphrodite applies its methods: top-k and top-p come with the draw, after the rest
ORDER = (
    *("temperature", "dynatemp", "top_n_sigma", "top_a", "tfs_z", "eta_cutoff", "epsilon_cutoff", "typical_p"),
    *("smoothing", "xtc", "min_p", "top_k", "top_p"),
)
LATE = (*ORDER[2:10], "temperature", "dynatemp", *ORDER[10:])  # with temperature_last
LACKING = ("logprob_token_ids", "thinking_token_budget", "trace_decode_token_ids")  # served by Aphrodite's own sampler
APHRODITES = {name for name in Theirs.__struct_fields__ if not name.startswith("_")} - {"extra_args"}
# fields that Aphrodite has itself → its own names of them
THEIRS = {
    **{name: own for name, field in FIELDS.items() for own in (name, field.http_name) if own in APHRODITES},
    **{name: theirs for theirs, name in RENAMED.items()},
    "dynatemp_range": "dynatemp_min and dynatemp_max",
    "dry_penalty_last_n": "dry_range",
}
OURS = FIELDS.keys() - THEIRS.keys() - APHRODITE.keys()
INSTEAD = {
    name: f"Aphrodite's own {THEIRS.get(name, name)}, outside of aphrodite_xargs"
    for name in sorted(APHRODITES | THEIRS.keys())
}
PLACE = FieldPlace("aphrodite_xargs", "Aphrodite", APHRODITE, INSTEAD, READ_BY_ENGINE)


def read_own_fields(params: Any) -> dict[str, Any]:
    """Return tailrace's fields among `extra_args`. Others may read names that tailrace does not know.

    Raises:
        ParameterError: a name is refused, belongs to Aphrodite's own fields, or is nearly the name of a field.
    """
    given = params.extra_args or {}
    check_kind("extra_args", given, dict)
    check_names(given, PLACE, True)
    own = {name: read_value(FIELDS[name], value) for name, value in given.items() if name in OURS}
    if waiting := find_text(own):
        raise ParameterError(f"{waiting} must be given as token ids inside Aphrodite", waiting)
    return own


def find_lacking(params: Any) -> str:
    """Return why Aphrodite's own sampler must serve the request; "" if it need not."""
    if params.logprobs == -1:
        return "logprobs of the whole vocabulary"
    if params.skew:
        return "skew"
    return next((name for name in LACKING if getattr(params, name, None) is not None), "")


def translate_params(params: Any, bad_words: Sequence[Sequence[int]], **fields: Any) -> SamplingParams:
    """Return tailrace's parameters. bad_words: token ids, which Aphrodite adds after its checks. fields: the server's.

    Raises:
        ParameterError: tailrace does not have what the parameters ask for.
    """
    given = {name: getattr(params, name) for name in SAME}
    given |= {name: getattr(params, theirs) for theirs, name in RENAMED.items()}
    given |= {"top_k": max(params.top_k, 0), "sampler_order": LATE if params.temperature_last else ORDER}
    given |= {"bad_words": tuple(map(tuple, bad_words)), "logit_bias": params.logit_bias or {}}
    if params.allowed_token_ids:
        given["allowed_token_ids"] = tuple(params.allowed_token_ids)
    given |= read_dry(params)
    if params.dynatemp_min or params.dynatemp_max:
        low, high = params.dynatemp_min, params.dynatemp_max
        given |= {"temperature": (low + high) / 2, "dynatemp_range": (high - low) / 2}
        given["dynatemp_exponent"] = params.dynatemp_exponent
    if given["temperature"] < GREEDY_BELOW:
        given["temperature"] = 0.0
    given |= fields
    own = read_own_fields(params)
    kept = {name: value for name, value in given.items() if name not in own and value != NEUTRAL[name]}
    for name in find_void(kept, kept | own) | find_needless(kept | own):
        kept.pop(name, None)
    return SamplingParams(**kept, **own)


def read_dry(params: Any) -> dict[str, Any]:
    """Return the fields of DRY that have other forms in Aphrodite. Its window 0 is all of the text."""
    breakers = tuple(params.dry_sequence_breaker_ids or ())
    return {"dry_penalty_last_n": params.dry_range or -1, "dry_sequence_breakers": breakers}


def find_needless(given: dict[str, Any]) -> set[str]:
    """Return the fields whose method is off."""
    return {
        name
        for name in given
        if FIELDS[name].needs and all(FIELDS[one].neutral(given.get(one, NEUTRAL[one])) for one in FIELDS[name].needs)
    }
