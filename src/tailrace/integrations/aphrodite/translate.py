"""A request's parameters in Aphrodite → those of tailrace's sampler.

Aphrodite has its own fields for many methods. tailrace's other fields come in `aphrodite_xargs` (`extra_args` offline).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.base.nearest import suggest_name
from tailrace.errors import ParameterError
from tailrace.integrations.aphrodite.refused_fields import APHRODITE
from tailrace.params import FIELDS, NEUTRAL, SamplingParams, find_void

GREEDY_BELOW = 1e-5  # Aphrodite's: such a temperature is none
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
# fields that Aphrodite has itself, under this name or another
THEIRS = {
    *SAME,
    *RENAMED.values(),
    *("top_k", "dynatemp_range", "dynatemp_exponent", "dry_penalty_last_n", "dry_sequence_breakers", "logit_bias"),
    *("allowed_token_ids", "bad_words", "logprob_token_ids"),
    *(name for name, field in FIELDS.items() if field.instead),
}
OURS = FIELDS.keys() - THEIRS - APHRODITE.keys()


def read_own_fields(params: Any) -> dict[str, Any]:
    """Return tailrace's fields among `extra_args`. HTTP turns true and false into 1 and 0.

    Raises:
        ParameterError: a name is refused, belongs to Aphrodite's own fields, or is nearly the name of a field.
    """
    found: dict[str, Any] = {}
    for name, value in (params.extra_args or {}).items():
        if name in OURS:
            found[name] = bool(value) if FIELDS[name].type is bool and value in (0, 1) else value
        elif name in APHRODITE:
            raise ParameterError(f"{name} is refused by Aphrodite: {APHRODITE[name]}", name)
        elif name in THEIRS or hasattr(params, name):
            raise ParameterError(f"{name} in extra_args has no effect: Aphrodite has a field for it", name)
        elif near := suggest_name(name, OURS):
            raise ParameterError(f"{name} is no field{near}", name)
    return found


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
