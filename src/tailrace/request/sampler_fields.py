"""The fields of a request that the sampler acts on: edits of logits, removal of tokens, the draw, and reports.

Formulas, sources and edge cases are in sampling/methods, one file each. docs/sampling.md has a table made from this
file. (More than 300 lines: one table.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec

from tailrace.errors import ParameterError, format_json
from tailrace.request.field_checks import (
    check_biased_phrases,
    check_biases,
    check_decay,
    check_integers,
    check_phrases,
    check_some,
)
from tailrace.request.fields import COUNT, MAX_SEED, MIN_SEED, Field, Range, TokenId, declared_fields, removes_most
from tailrace.request.options import Watermark

LogprobsMode = Literal["raw", "processed"]
Scope = Literal["prompt", "output", "both"]
Phrase = tuple[int, ...]

SHARE = Range(0.0, 1.0)
CUTOFF = Range(0.0, 1.0, high_in=False)
UNITS = ": a probability, not text-generation-webui's units of 0.0001"
SIZE = Range(0.0, 1e6)
FACTOR = Range(1e-6, 1e6)
PENALTY = Range(-100.0, 100.0)
WINDOW = Range(-1, 2**31 - 1)
DRY_BREAKERS = ("\n", ":", '"', "*")  # the default strings of every implementation
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def make_reshape_field(doc: str, range: Range, refinement: str, **more: Any) -> Field:
    """Declare a field that changes probabilities."""
    return Field(doc, range, kind="reshape", refinement=refinement, **more)


def make_truncation_field(doc: str, range: Range | None, refinement: str, **more: Any) -> Field:
    """Declare a field that removes tokens."""
    return Field(doc, range, kind="truncation", refinement=refinement, **more)


def make_edit_field(doc: str, range: Range | None, method: str, **more: Any) -> Field:
    """Declare a field that changes the logits of single tokens."""
    return Field(doc, range, kind="edit", edit=method, **more)


def make_dry_field(doc: str, range: Range | None = None, **more: Any) -> Field:
    """Declare a field of DRY that has no effect without its multiplier."""
    return make_edit_field(doc, range, "dry", needs=("dry_multiplier",), **more)


def ids_of_biases(biases: tuple[tuple[Phrase, float], ...]) -> Iterable[int]:
    """Return the token ids of all phrases."""
    return chain.from_iterable(phrase for phrase, _ in biases)


def check_order(name: str, order: tuple[str, ...]) -> None:
    """Raise ParameterError unless these are refinements, each once."""
    for refinement in order:
        if refinement not in REFINEMENT_NAMES:
            raise ParameterError(
                f"{name} must hold names out of {', '.join(REFINEMENT_NAMES)}, got {format_json(refinement)}", name
            )
    if len(set(order)) < len(order):
        raise ParameterError(f"{name} must name each refinement once", name)


class SamplerFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """See params.SamplingParams."""

    temperature: Annotated[
        float, make_reshape_field("Logits are divided by it; 0 takes the largest edited logit", SIZE, "temperature")
    ] = 1.0
    dynatemp_range: Annotated[
        float, make_reshape_field("Temperature ± this, by the entropy", SIZE, "dynatemp", voided_by=("temperature",))
    ] = 0.0
    dynatemp_exponent: Annotated[
        float,
        make_reshape_field(
            "How the temperature follows the entropy",
            Range(0.0, 100.0, low_in=False),
            "dynatemp",
            needs=("dynatemp_range",),
        ),
    ] = 1.0
    smoothing_factor: Annotated[
        float, make_reshape_field("Quadratic smoothing of the logits", SIZE, "smoothing", voided_by=("temperature",))
    ] = 0.0
    smoothing_curve: Annotated[
        float,
        make_reshape_field("The share of its cubic part", Range(1.0, 3.0), "smoothing", needs=("smoothing_factor",)),
    ] = 1.0
    top_k: Annotated[
        int,
        make_truncation_field(
            "Keep the k largest logits, ties to the smaller token id", WINDOW, "top_k", off="0 and below"
        ),
    ] = 0
    top_p: Annotated[
        float,
        make_truncation_field(
            "Keep the smallest descending prefix whose mass is ≥ this, at least one token", SHARE, "top_p"
        ),
    ] = 1.0
    min_p: Annotated[float, make_truncation_field("Keep p ≥ min_p · p_max", SHARE, "min_p")] = 0.0
    top_a: Annotated[float, make_truncation_field("Keep p ≥ top_a · p_max²", SHARE, "top_a")] = 0.0
    typical_p: Annotated[
        float,
        make_truncation_field(
            "Keep what is closest to the expected surprise, up to this mass",
            SHARE,
            "typical_p",
            aliases=("typ_p", "typical"),
        ),
    ] = 1.0
    tfs_z: Annotated[
        float,
        make_truncation_field(
            "Tail-free sampling: cut where the curve of p flattens", SHARE, "tfs_z", aliases=("tfs",)
        ),
    ] = 1.0
    epsilon_cutoff: Annotated[float, make_truncation_field("Keep p ≥ ε", CUTOFF, "epsilon_cutoff", hint=UNITS)] = 0.0
    eta_cutoff: Annotated[
        float, make_truncation_field("Keep p ≥ min(η, √η · e^−H)", CUTOFF, "eta_cutoff", hint=UNITS)
    ] = 0.0
    top_n_sigma: Annotated[
        float,
        make_truncation_field(
            "Keep logits within so many standard deviations of the largest",
            Range(-1.0, 1e6),
            "top_n_sigma",
            off="0 and below",
            aliases=("nsigma",),
        ),
    ] = 0.0
    top_h: Annotated[
        float,
        make_truncation_field("Keep a prefix with this share of the entropy of the 100 likeliest", SHARE, "top_h"),
    ] = 0.0
    p_less: Annotated[bool, make_truncation_field("Keep p ≥ Σ p²", None, "p_less")] = False
    p_less_norm: Annotated[
        bool,
        make_truncation_field(
            "Keep p ≥ (V Σ p² − 1) / (V − 1), which keeps more", None, "p_less", voided_by=("p_less",)
        ),
    ] = False
    min_k: Annotated[
        bool, make_truncation_field("Keep what comes before the steepest fall of the sorted logits", None, "min_k")
    ] = False
    min_k_tau: Annotated[
        float, make_truncation_field("At least τ / (the logits' range) tokens stay", SIZE, "min_k", needs=("min_k",))
    ] = 3.0
    xtc_probability: Annotated[
        float,
        make_truncation_field(
            "How often all but the least likely of the tokens with p ≥ xtc_threshold are removed; EOS never is",
            SHARE,
            "xtc",
            voided_by=("temperature",),
        ),
    ] = 0.0
    xtc_threshold: Annotated[
        float,
        make_truncation_field(
            "From which p on a token counts as a top choice",
            Range(0.0, 0.5, low_in=False),
            "xtc",
            needs=("xtc_probability",),
        ),
    ] = 0.1
    mirostat: Annotated[
        int,
        make_truncation_field(
            "1 or 2: its version, which holds the surprise at mirostat_tau",
            Range(0, 2),
            "mirostat",
            voided_by=("temperature",),
            stateful=True,
            aliases=("mirostat_mode",),
        ),
    ] = 0
    mirostat_tau: Annotated[
        float,
        make_truncation_field(
            "The surprise that is aimed at, in bits", Range(0.0, 100.0, low_in=False), "mirostat", needs=("mirostat",)
        ),
    ] = 5.0
    mirostat_eta: Annotated[
        float, make_truncation_field("How fast it learns", Range(0.0, 100.0), "mirostat", needs=("mirostat",))
    ] = 0.1
    adaptive_target: Annotated[
        float,
        make_reshape_field(
            "The probability near which tokens are favoured",
            Range(-1.0, 1.0),
            "adaptive_p",
            off="below 0",
            voided_by=("mirostat", "temperature"),
            stateful=True,
        ),
    ] = -1.0
    adaptive_decay: Annotated[
        float,
        make_reshape_field("How slowly its target forgets", Range(0.0, 0.99), "adaptive_p", needs=("adaptive_target",)),
    ] = 0.9
    repetition_penalty: Annotated[
        float,
        make_edit_field(
            "Logits of tokens that were there are divided by it, negative ones multiplied",
            FACTOR,
            "penalties",
            aliases=("repeat_penalty", "rep_pen"),
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float, make_edit_field("Subtracted from the logits of tokens that were there", PENALTY, "penalties")
    ] = 0.0
    frequency_penalty: Annotated[float, make_edit_field("The same, once for each time", PENALTY, "penalties")] = 0.0
    penalty_last_n: Annotated[
        int,
        make_edit_field(
            "Penalties look at the last n tokens; −1 is all, 0 none",
            WINDOW,
            "penalties",
            needs=PENALTIES,
            aliases=("repeat_last_n", "rep_pen_range"),
        ),
    ] = -1
    repetition_scope: Annotated[
        Scope, make_edit_field("Where the repetition penalty looks", None, "penalties", needs=PENALTIES[:1])
    ] = "both"
    penalty_scope: Annotated[
        Scope, make_edit_field("Where presence and frequency penalty look", None, "penalties", needs=PENALTIES[1:])
    ] = "output"
    dry_multiplier: Annotated[
        float, make_edit_field("DRY: the penalty of tokens that go on with a repetition", SIZE, "dry")
    ] = 0.0
    dry_base: Annotated[float, make_dry_field("The penalty grows by it with each repeated token", Range(1.0, 1e6))] = (
        1.75
    )
    dry_allowed_length: Annotated[int, make_dry_field("So many repeated tokens are free", Range(1, 2**31 - 1))] = 2
    dry_penalty_last_n: Annotated[int, make_dry_field("DRY looks at the last n tokens; −1 is all, 0 none", WINDOW)] = -1
    dry_sequence_breakers: Annotated[
        tuple[int, ...],
        make_dry_field(
            'Tokens that end a repetition; over HTTP strings, by default "\\n", ":", "\\"" and "*"',
            entries=65_536,
            token_ids=tuple,
            http="converted",
            flag="",
        ),
    ] = ()
    no_repeat_ngram_size: Annotated[
        int, make_edit_field("No n-gram comes twice", COUNT, "no_repeat_ngram", excludes="some")
    ] = 0
    encoder_no_repeat_ngram_size: Annotated[
        int, make_edit_field("No n-gram of the prompt comes again", COUNT, "no_repeat_ngram", excludes="some")
    ] = 0
    encoder_repetition_penalty: Annotated[
        float,
        make_edit_field(
            "Above 1 the prompt's tokens are favoured, below 1 penalised", FACTOR, "encoder_repetition_penalty"
        ),
    ] = 1.0
    exponential_decay_length_penalty: Annotated[
        tuple[int, float] | None,
        make_edit_field(
            "(start, factor): with each output token after `start` EOS grows by the factor",
            None,
            "length_decay",
            check=check_decay,
        ),
    ] = None
    normalize_logits: Annotated[
        bool,
        make_edit_field(
            "Log-softmax before all edits, for penalties that multiply", None, "normalize_logits", beams=True
        ),
    ] = False
    logit_bias: Annotated[
        Mapping[int, float],
        make_edit_field(
            "Token id → value added to its logit; over HTTP also text, for the last token of each of its spellings",
            None,
            "logit_bias",
            entries=65_536,
            check=check_biases,
            token_ids=tuple,
            http="converted",
            beams=True,
            flag="ID=BIAS",
        ),
    ] = {}
    sequence_bias: Annotated[
        tuple[tuple[Phrase, float], ...],
        make_edit_field(
            "(token ids, bias): added to the last id where those before it end the sequence; over HTTP also text",
            None,
            "sequence_bias",
            entries=1024,
            check=check_biased_phrases,
            token_ids=ids_of_biases,
            http="converted",
        ),
    ] = ()
    allowed_token_ids: Annotated[
        tuple[int, ...] | None,
        make_edit_field(
            "Only these may be drawn",
            None,
            "allowed_token_ids",
            entries=65_536,
            check=check_some,
            token_ids=tuple,
            excludes="most",
            http=tuple[TokenId, ...],
            beams=True,
        ),
    ] = None
    bad_words: Annotated[
        tuple[Phrase, ...],
        make_edit_field(
            "Sequences of token ids that are not completed; over HTTP words, in every spelling",
            None,
            "bad_words",
            entries=1024,
            check=check_phrases,
            token_ids=chain.from_iterable,
            excludes="some",
            http="converted",
            flag="TEXT",
        ),
    ] = ()
    min_tokens: Annotated[
        int,
        make_edit_field(
            "EOS and stop ids are banned, and stop strings not looked for, until so many tokens are out",
            COUNT,
            "min_tokens",
            excludes="some",
        ),
    ] = 0
    processors: Annotated[
        Mapping[str, Mapping[str, Any]],
        make_edit_field(
            "Names of processors registered on the server → their arguments, applied in this order",
            None,
            "processors",
            entries=16,
            check=check_integers,
            excludes="some",
        ),
    ] = {}
    watermark: Annotated[
        Watermark | None,
        make_edit_field("Mark the text, so that a detector can tell it", None, "green_list", refinement="synthid"),
    ] = None
    sampler_order: Annotated[
        tuple[str, ...],
        Field(
            "Refinements by name, in the order they are to run; the others follow in the default order",
            kind="draw",
            entries=32,
            check=check_order,
        ),
    ] = ()
    seed: Annotated[
        int | None,
        Field(
            "Key of the request's noise; none, or −1 over HTTP: a fresh one",
            Range(MIN_SEED, MAX_SEED),
            kind="draw",
            aliases=("sampler_seed", "sampling_seed"),
        ),
    ] = None
    forced_token_ids: Annotated[
        tuple[int, ...],
        Field(
            "The output begins with these; their logprobs are the model's own",
            kind="draw",
            entries=65_536,
            token_ids=tuple,
            http=tuple[TokenId, ...],
        ),
    ] = ()
    logprobs: Annotated[
        int | None,
        Field("Report the drawn token's logprob and those of the k likeliest", COUNT, kind="report", http="converted"),
    ] = None
    logprobs_mode: Annotated[
        LogprobsMode,
        Field('"raw": logprobs of the model\'s own logits; "processed": of what is drawn from', kind="report"),
    ] = "raw"
    logprob_token_ids: Annotated[
        tuple[int, ...],
        Field(
            "Report the logprobs of these tokens, instead of those of the likeliest",
            kind="report",
            needs=("logprobs",),
            entries=128,
            once=True,
            token_ids=tuple,
            http=tuple[TokenId, ...],
        ),
    ] = ()
    report_entropy: Annotated[
        bool,
        Field(
            "Report entropy and varentropy with the logprobs, of the distribution that logprobs_mode names",
            kind="report",
            needs=("logprobs",),
            flag="",
        ),
    ] = False
    return_sampling_mask: Annotated[
        bool,
        Field(
            "Report, of each token, the ids that survived everything that removes some: what it was drawn from",
            kind="report",
            needs_any=removes_most,
            flag="",
        ),
    ] = False


REFINEMENT_NAMES = tuple(
    dict.fromkeys(field.refinement for field in declared_fields(SamplerFields).values() if field.refinement)
)
