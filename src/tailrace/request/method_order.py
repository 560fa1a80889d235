"""The sampling methods in the order in which they run, each with the reason for its place and the words for it.

A name is the name of the method's file in sampling/methods, and the name in the declarations of its fields.
sampling/pipeline.py loads the methods in this order. explain/sentences.py takes the words. The page takes the order and
the titles. This file imports no torch, because the front end reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Values = Mapping[str, Any]
Words = str | Callable[[Values], str]  # text with {field} for a field's value, or a function of the values

KEPT = "kept {kept} of {before}, {mass} of the mass"
NOTHING = "had nothing to cut: {before} stayed"


class OrderEntry(NamedTuple):
    """One method: its place in the order, and its words in the sentences of a record (explain/record.py).

    - name: of the method.
    - label: the subject of the method's sentence, with the values of its fields: "top-k {top_k}".
    - moves: how a refinement changes probabilities. With "" it only removes tokens.
    - cut: a refinement's predicate if it removed tokens. Its placeholders are {kept} and {before}, counts of tokens,
      {mass}, the share of probability that stayed, and {cut} and {gone}, the removed part.
    - idle: a refinement's predicate if it removed no token of several.
    - title: of its step on the page. With "" the page makes one from the name.
    """

    name: str
    label: Words
    moves: Words = ""
    cut: str = KEPT
    idle: str = NOTHING
    title: str = ""


def name_p_less(values: Values) -> str:
    """Return the name of the variant that is on."""
    return "p-less-norm" if values["p_less_norm"] else "p-less"


def describe_temperature(values: Values) -> str:
    """Describe this temperature's effect on the distribution."""
    return "sharpened the distribution" if values["temperature"] < 1.0 else "flattened the distribution"


# The row's mask comes before all edits: it is part of the row (kernels/rows.py), because each draft has its own.
GRAMMAR = OrderEntry("grammar", "The grammar")
EDIT_ORDER = (
    # on the model's own logits, as in transformers
    OrderEntry("normalize_logits", "The log-softmax of all logits"),
    # then the bans, which no later edit lifts: −inf plus or times anything is −inf
    OrderEntry("allowed_token_ids", "The list of allowed tokens"),
    OrderEntry("bad_words", "The list of bad words"),
    OrderEntry("banned_at", "The text that may not appear"),
    OrderEntry("min_tokens", "The minimum length"),
    OrderEntry("no_repeat_ngram", "The rule that no n-gram comes twice"),
    # before the penalties, which depend on the sign of the biased logit
    OrderEntry("logit_bias", "The logit bias"),
    OrderEntry("sequence_bias", "The sequence bias"),
    OrderEntry("processors", "The custom processor"),
    OrderEntry("encoder_repetition_penalty", "The repetition penalty of the prompt"),
    OrderEntry("penalties", "The penalties"),
    OrderEntry("dry", "DRY, which looks for repetitions,", title="DRY"),
    # after all other edits of EOS: its growth depends on the logit so far
    OrderEntry("length_decay", "The length penalty"),
    # last: the mark must survive all other edits
    OrderEntry("green_list", "The watermark"),
)
REFINEMENT_ORDER = (
    # first: the others cut the distribution of the draw
    OrderEntry("temperature", "Temperature {temperature}", moves=describe_temperature),
    OrderEntry("dynatemp", "Dynamic temperature (± {dynatemp_range})", moves="followed the distribution's entropy"),
    OrderEntry("smoothing", "Smoothing with factor {smoothing_factor}", moves="bent the logits"),
    # relative to the likeliest token, so before any renormalisation; it is cheap and leaves few tokens for the rest
    OrderEntry("min_p", "min-p {min_p}", title="Min-p"),
    OrderEntry("top_k", "top-k {top_k}", title="Top-k"),
    # takes its mass from the remaining tokens
    OrderEntry("top_p", "top-p {top_p}", title="Top-p"),
    OrderEntry("top_n_sigma", "top-nσ {top_n_sigma}", title="Top-nσ"),
    OrderEntry("typical_p", "typical-p {typical_p}", title="Typical-p"),
    OrderEntry("tfs_z", "tail-free sampling {tfs_z}", title="Tail-free"),
    OrderEntry("top_a", "top-a {top_a}", title="Top-a"),
    OrderEntry("epsilon_cutoff", "epsilon {epsilon_cutoff}"),
    OrderEntry("eta_cutoff", "eta {eta_cutoff}"),
    OrderEntry("top_h", "top-H {top_h}"),
    OrderEntry("p_less", name_p_less, title="p-less"),
    # uses the logits before the temperature, so its place matters little
    OrderEntry("min_k", "min-k (τ {min_k_tau})"),
    OrderEntry("mirostat", "Mirostat {mirostat} (τ {mirostat_tau} bits)"),
    # removes the likeliest of the remaining tokens
    OrderEntry(
        "xtc",
        "XTC (threshold {xtc_threshold})",
        cut="removed {cut} of the likeliest among {before}, {gone} of the mass",
        idle="did nothing this time: {before} stayed",
        title="XTC",
    ),
    # reshapes by the probabilities of the remaining tokens
    OrderEntry(
        "adaptive_p",
        "adaptive-p {adaptive_target}",
        moves="favoured the tokens with probabilities near its target",
    ),
    # last: the tournament compares the tokens that can be drawn
    OrderEntry(
        "synthid",
        "The watermark's tournament",
        moves="moved probability to the tokens that its key favours",
        title="SynthID",
    ),
)
# The rest of the distribution after a refused draft (sampling/verify.py). It comes after all methods.
DRAFT = OrderEntry(
    "draft",
    "The refused draft",
    cut="left {kept} of {before} that have more probability than it proposed",
    title="After a refused guess",
)
# the steps of a record, by their names
STEPS = {entry.name: entry for entry in (GRAMMAR, *EDIT_ORDER, *REFINEMENT_ORDER, DRAFT)}
