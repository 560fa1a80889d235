"""The fields of a request that the engine or the front end's text code acts on, not the sampler.

`instead` describes how a program that uses the sampler alone gets the same effect. Slots.add refuses the field with
this text.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Literal

from tailrace.explain.record import ExplainOptions
from tailrace.request.field_checks import check_rows, check_texts
from tailrace.request.fields import COUNT, Field, Kind, Range, TokenId
from tailrace.request.options import Grammar, MarkedSpan, RepetitionDetection, Speculation, ThinkingBudget
from tailrace.request.sampler_fields import FACTOR, SamplerFields

MAX_SEQUENCES = 1024  # sequences of one request
MAX_PREDICTION = 65_536  # tokens of a predicted output
OutputKind = Literal["delta", "cumulative", "final"]
LOOKED_FOR = "look for them in the text"
SCORES = ("prompt_logprobs", "prompt_logprob_token_ids")
REPLAY = "tailrace.sampling.prompt_logprobs.replay"
GUIDED = "Rows.guidance, or tailrace.sampling.guidance.guide before the sampler"


def make_texts_field(doc: str, kind: Kind, entries: int, instead: str = LOOKED_FOR, **more: Any) -> Field:
    """Declare a field of strings that are searched in the text."""
    return Field(doc, kind=kind, entries=entries, check=check_texts, instead=instead, **more)


class EngineFields(SamplerFields, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """See params.SamplingParams."""

    n: Annotated[
        int,
        Field(
            "How many sequences are drawn for the prompt; they share its KV cache",
            Range(1, MAX_SEQUENCES),
            kind="draw",
            aliases=("n_cmpl",),
            beams=True,
            instead="join one sequence and Slots.fork the others",
        ),
    ] = 1
    banned_strings: Annotated[
        tuple[str, ...],
        make_texts_field(
            "These never appear in the text: where one has, the sequence backs up and draws again",
            "edit",
            128,
            edit="banned_at",
            excludes="some",
            instead="find them in the text, then Slots.rewind and Slots.ban",
        ),
    ] = ()
    banned_ignore_case: Annotated[
        bool,
        Field(
            "ASCII letters of banned strings match either way",
            kind="edit",
            edit="banned_at",
            needs=("banned_strings",),
            instead="see banned_strings",
        ),
    ] = False
    banned_regex: Annotated[
        tuple[str, ...],
        make_texts_field(
            "Neither does text that matches one of these patterns, of text/stop_regex.py's syntax",
            "edit",
            16,
            edit="banned_at",
            excludes="some",
            http="converted",
            instead="find it in the text, then Slots.rewind and Slots.ban",
        ),
    ] = ()
    max_tokens: Annotated[
        int | None,
        Field(
            "The output's length limit; none: as far as the context reaches",
            Range(1, 2**31 - 1),
            kind="stop",
            http="converted",
            aliases=("n_predict", "num_predict", "max_new_tokens", "max_length"),
            beams=True,
            instead="stop when so many tokens are committed",
        ),
    ] = None
    ignore_eos: Annotated[
        bool,
        Field(
            "EOS does not end the sequence; stop ids and stop strings still do",
            kind="stop",
            aliases=("bypass_eos",),
            instead="go on after it; here only min_tokens reads it",
        ),
    ] = False
    stop: Annotated[
        tuple[str, ...],
        make_texts_field(
            "Strings that end the sequence where they first appear in the text",
            "stop",
            128,
            http="converted",
            aliases=("stop_sequence", "stopping_strings"),
        ),
    ] = ()
    stop_regex: Annotated[
        tuple[str, ...],
        make_texts_field("Patterns that do; text/stop_regex.py has their syntax", "stop", 16, http="converted"),
    ] = ()
    stop_outside: Annotated[
        tuple[MarkedSpan, ...],
        Field(
            "Spans of the text in which stop strings and patterns are not looked for",
            kind="stop",
            http="converted",
            http_name="stop_scope",
            beams=True,
            instead=LOOKED_FOR,
        ),
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...],
        Field(
            "Token ids that end the sequence",
            kind="stop",
            entries=1024,
            token_ids=tuple,
            http=tuple[TokenId, ...],
            instead="look for them among the committed tokens; here only min_tokens reads them",
        ),
    ] = ()
    repetition_detection: Annotated[
        RepetitionDetection | None,
        Field(
            "End a thought or a sequence that goes round in circles",
            kind="stop",
            instead="look at the committed tokens",
        ),
    ] = None
    thinking: Annotated[
        ThinkingBudget | None,
        Field(
            "How long the model may think; none: as long as it likes",
            kind="stop",
            token_ids=attrgetter("forced_token_ids"),
            http="converted",
            http_name="thinking_token_budget",
            instead="count the tokens, then Slots.force",
        ),
    ] = None
    grammar: Annotated[
        Grammar | None,
        Field(
            "What the output must be",
            kind="draw",
            excludes="most",
            http="converted",
            http_name="structured_outputs",
            beams=True,
            instead="Rows.mask and Rows.masks",
        ),
    ] = None
    guidance_scale: Annotated[
        float,
        Field(
            "Classifier-free guidance: logits are l_u + scale · (l_c − l_u), l_u of the same output after "
            "another prompt",
            Range(0.0, 100.0),
            kind="edit",
            http="converted",
            instead=GUIDED,
        ),
    ] = 1.0
    negative_prompt: Annotated[
        tuple[int, ...],
        Field(
            "Token ids of that other prompt; none: the prompt's last token alone",
            kind="edit",
            needs=("guidance_scale",),
            token_ids=tuple,
            http="converted",
            flag="",
            instead=GUIDED,
        ),
    ] = ()
    speculation: Annotated[
        Speculation | None,
        Field("How far the engine may guess ahead", kind="engine", instead="Rows.drafted"),
    ] = None
    prediction: Annotated[
        tuple[int, ...],
        Field(
            "Token ids of the expected output: drafts where the output agrees with them. They change no token",
            kind="engine",
            entries=MAX_PREDICTION,
            unit="tokens",
            token_ids=tuple,
            http="converted",
            flag="",
            instead="Rows.drafted with the drafts of tailrace.drafting.prediction.PredictionReader",
        ),
    ] = ()
    prompt_logprobs: Annotated[
        int | None,
        Field(
            "Report the logprobs of the prompt's tokens, of the model's own logits, and those of the k likeliest",
            COUNT,
            kind="report",
            flag="",
            instead=REPLAY,
        ),
    ] = None
    prompt_logprob_start: Annotated[
        int,
        Field(
            "Begin there: the token after this place of the prompt is the first whose logprobs are reported",
            COUNT,
            kind="report",
            needs=SCORES,
            flag="",
            instead=REPLAY,
        ),
    ] = 0
    prompt_logprob_token_ids: Annotated[
        tuple[tuple[int, ...], ...],
        Field(
            "Report the logprobs of these tokens: row i in the place of the prompt's token "
            "prompt_logprob_start + i + 1; an empty row reports nothing, and costs nothing",
            kind="report",
            entries=65_536,
            check=check_rows,
            token_ids=chain.from_iterable,
            http=tuple[tuple[TokenId, ...], ...],
            flag="",
            instead=REPLAY,
        ),
    ] = ()
    prompt_logprobs_temperature: Annotated[
        float,
        Field(
            "The prompt's logits are divided by it before their logprobs are taken",
            FACTOR,
            kind="report",
            needs=SCORES,
            flag="",
            instead=REPLAY,
        ),
    ] = 1.0
    explain: Annotated[
        ExplainOptions | None,
        Field(
            "Report why each token came: what the model thought of it, what each method did, how it was drawn",
            kind="report",
            token_ids=attrgetter("ids"),
            http="converted",
            flag="",
            instead="Sampler.explain",
        ),
    ] = None
    include_stop_str_in_output: Annotated[
        bool,
        Field(
            "Keep the stop string, or the text of the stop token, in the text",
            kind="text",
            aliases=("no_stop_trim",),
            instead="cut the text yourself",
        ),
    ] = False
    skip_special_tokens: Annotated[
        bool,
        Field("Special tokens leave no text", kind="text", beams=True, instead="leave them out of the text yourself"),
    ] = True
    shown_token_ids: Annotated[
        tuple[int, ...],
        Field(
            "Special tokens that leave text all the same",
            kind="text",
            http="",
            flag="",
            instead="leave the others out of the text yourself",
        ),
    ] = ()
    output_kind: Annotated[
        OutputKind,
        Field(
            'Each event carries the new text ("delta"), all so far ("cumulative") or only the end ("final")',
            kind="text",
            http="",
            flag="",
            instead="put the tokens together as you like",
        ),
    ] = "delta"
