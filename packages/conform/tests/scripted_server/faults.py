"""Faults of the scripted server: name → the law that must find it, and laws that may rightly find it too. The server
has `fault=NAME`.

Those of streams, stops, structure and errors are in the server; those of logprobs, knobs and seeds in sampler.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """law: what must find it. also: laws, or whole families, that it breaks as well. beside: what must be judged
    before, where the law itself sends nothing. budget: what it takes to find it."""

    law: str
    also: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    budget: str = "quick"


CUTS = ("stops.cut", "stops.several", "stops.nothing-sent", "stops.not-in-prompt", "stops.include")
FRAME_FAULTS: dict[str, Fault] = {
    # streams
    "stream-ignored": Fault("streams.incremental", ("streams", "stops", "structure")),
    "stream-in-one": Fault("streams.incremental", ("streams.usage", "logprobs", "seeds")),
    "bare-lines": Fault("streams.event-format"),
    "chunk-object-wrong": Fault("streams.chunk-shape"),
    "created-missing": Fault("streams.chunk-shape"),  # without stream
    "ids-change": Fault("streams.chunk-shape"),
    "text-stripped": Fault("streams.deltas-join", ("stops.nothing-sent", "stops.include", "seeds", "logprobs")),
    "last-text-lost": Fault("streams.deltas-join", ("streams.whole-characters", "stops.nothing-sent", "seeds")),
    # the plain answer alone shows that max_tokens has cut a character; none was split
    "cut-character-unsent": Fault("streams.deltas-join", ("stops.nothing-sent", "seeds.stream")),
    "ends-twice": Fault("streams.one-ending"),
    "hangs-up": Fault("streams.ends-or-says-why", ("streams", "errors.no-5xx", "errors.neighbours")),
    "finish-missing": Fault("streams.ends-or-says-why", ("streams.deltas-join", "streams.n-complete", "structure")),
    "done-missing": Fault("streams.done-last"),
    "usage-off-by-one": Fault("streams.usage", ("streams.n-complete", "stops.ends-work", "logprobs")),
    "stream-usage-off": Fault("streams.usage"),
    "usage-with-choice": Fault("streams.usage", ("streams.one-ending",)),
    "surrogate-halves": Fault(
        "streams.whole-characters", ("streams.deltas-join", "stops.nothing-sent", "stops.include", "seeds")
    ),
    # a stream's text is another than the plain one: each law that compares the two sees it
    "characters-split": Fault(
        "streams.whole-characters",
        ("streams.deltas-join", "stops.nothing-sent", "stops.include", "seeds.stream", "logprobs"),
    ),
    # a whole character at the limit, as if max_tokens had cut it: the other answer has it
    "last-character-split": Fault(
        "streams.whole-characters", ("streams.deltas-join", "stops.nothing-sent", "seeds.stream")
    ),
    "plain-last-character-split": Fault(
        "streams.whole-characters",
        ("streams.deltas-join", "stops.nothing-sent", "seeds.stream", "logprobs.bytes-join"),
    ),
    "role-missing": Fault("streams.role-once"),
    "role-in-each": Fault("streams.role-once"),
    "n-one-less": Fault("streams.n-complete", ("seeds",)),
    "choices-reversed": Fault("streams.n-complete"),
    "refusals-in-stream": Fault("streams.refusal-status"),
    "stream-endless": Fault(
        "streams.ends-or-says-why",
        ("streams", "stops", "seeds", "logprobs", "structure", "errors.no-5xx", "errors.neighbours"),
    ),
    "gone-goes-on": Fault("streams.gone-client"),
    "gone-unseen": Fault("streams.gone-client"),  # without metrics: others are slower for good
    # stops
    "stop-one-late": Fault("stops.cut", CUTS),
    "stop-to-token-end": Fault("stops.cut", CUTS),
    "stop-first-listed": Fault("stops.several"),
    "stop-text-as-characters": Fault("stops.one-or-list"),
    "stop-leaks": Fault("stops.nothing-sent", ("stops.include", "streams.deltas-join")),
    "held-too-long": Fault("stops.held-back"),
    "stops-in-prompt": Fault("stops.not-in-prompt", CUTS),
    "finish-always-length": Fault("stops.finish-reason", ("streams.usage", "structure", "streams.n-complete")),
    "finish-always-stop": Fault("stops.finish-reason"),
    "stop-goes-on": Fault("stops.ends-work"),
    "include-ignored": Fault("stops.include"),
    "include-one-short": Fault("stops.include"),
    # accepted and not heeded: laws that only use them are not offered
    "logprobs-ignored": Fault("logprobs.bytes-join", ("logprobs",)),
    # structure
    "structure-ignored": Fault("structure.json-schema", ("structure",)),
    "json-unclosed": Fault("structure.json-schema", ("structure.json-object",)),
    "json-untyped": Fault("structure.json-schema", ("structure.json-object",)),
    "json-mode-ignored": Fault("structure.json-object"),
    "choice-and-more": Fault("structure.choice"),
    "regex-and-more": Fault("structure.regex"),
    "tool-choice-ignored": Fault("structure.forced-tool"),
    "call-misnamed": Fault("structure.forced-tool", ("structure.streamed-call", "structure.tool-choice-none")),
    "arguments-unclosed": Fault("structure.forced-tool", ("structure.streamed-call", "structure.tool-choice-none")),
    "tool-choice-none-ignored": Fault("structure.tool-choice-none"),
    "call-index-jumps": Fault("structure.streamed-call"),
    "thoughts-in-content": Fault("structure.thinking", ("streams.deltas-join",)),
    # errors
    "fails-at-times": Fault("errors.no-5xx", ("streams.ends-or-says-why", "errors.neighbours"), ("stops.cut",)),
    "range-unchecked": Fault("errors.out-of-range"),
    "types-unchecked": Fault("errors.wrong-types"),
    "values-are-500": Fault(
        "errors.wrong-types",
        ("errors.out-of-range", "errors.strange-bodies"),
        ("streams.refusal-status", "errors.no-5xx"),
    ),
    "errors-unnamed": Fault("errors.named-field", ("errors.unknown-model",)),
    "errors-are-text": Fault("errors.error-object"),
    "unknown-fields-ignored": Fault("errors.unknown-field"),
    "any-model": Fault("errors.unknown-model"),
    "unknown-path-200": Fault("errors.unknown-path"),
    "errors-are-500": Fault("errors.bad-json", ("errors.strange-bodies",)),
    "bad-json-hangs": Fault("errors.bad-json", ("errors.strange-bodies",)),
    "crashes-at-nesting": Fault("errors.strange-bodies"),
    "prompt-truncated": Fault("errors.too-long"),
    "neighbours-harmed": Fault("errors.neighbours"),
}
REPORTED = ("logprobs.frequencies", "logprobs.paths")  # draws and reports disagree
SAMPLER_FAULTS: dict[str, Fault] = {
    # logprobs
    "report-last-lost": Fault("logprobs.bytes-join", ("logprobs.stream-same", "streams.usage")),
    "chosen-lower": Fault("logprobs.chosen-in-top", ("logprobs.greedy",)),
    "report-too-large": Fault("logprobs.sums", REPORTED),
    "report-late": Fault("logprobs.greedy", REPORTED),
    "stream-report-late": Fault("logprobs.stream-same", ("logprobs", "streams")),
    "cold-noise": Fault("logprobs.frequencies", REPORTED),
    "few-seeds": Fault(
        "logprobs.frequencies", (*REPORTED, "seeds.high-bits", "seeds.independent", "seeds.unseeded-differ")
    ),
    "report-tempered": Fault("logprobs.frequencies", REPORTED, budget="normal"),
    "cold-later": Fault("logprobs.paths"),
    # knobs
    "zero-is-small": Fault("knobs.temperature-zero", ("logprobs.greedy", "stops", "streams")),
    "temperature-squared": Fault("knobs.temperature", ("knobs.truncation-order",), budget="normal"),
    "ignores-temperature": Fault(
        "knobs.temperature", ("knobs.temperature-zero", "knobs.truncation-order", "logprobs.greedy", "stops", "streams")
    ),
    "top-k-one-more": Fault("knobs.top-k"),
    "ignores-top_k": Fault("knobs.top-k", ("knobs.top-k-and-top-p",)),
    "top-p-one-more": Fault("knobs.top-p", ("knobs.top-k-and-top-p", "knobs.truncation-order")),
    "top-p-one-fewer": Fault("knobs.top-p", ("knobs.top-k-and-top-p", "knobs.truncation-order")),
    "ignores-top_p": Fault("knobs.top-p", ("knobs.top-k-and-top-p", "knobs.truncation-order")),
    "truncation-flattens": Fault("knobs.top-p", ("knobs",), budget="normal"),
    "min-p-absolute": Fault("knobs.min-p"),
    "ignores-min_p": Fault("knobs.min-p"),
    "top-p-before-renormalising": Fault("knobs.top-k-and-top-p"),
    "temperature-last": Fault("knobs.truncation-order"),
    "presence-per-count": Fault("knobs.presence-penalty", budget="normal"),
    "penalties-prompt": Fault("knobs.presence-penalty", ("knobs.frequency-penalty",), budget="normal"),
    "ignores-presence_penalty": Fault("knobs.presence-penalty"),
    "frequency-one-more": Fault("knobs.frequency-penalty", budget="normal"),
    "frequency-once": Fault("knobs.frequency-penalty", budget="normal"),
    "penalties-late": Fault("knobs.frequency-penalty", ("knobs.presence-penalty",), budget="normal"),
    "ignores-frequency_penalty": Fault("knobs.frequency-penalty"),
    "repetition-per-count": Fault("knobs.repetition-penalty", budget="normal"),
    "repetition-inverted": Fault("knobs.repetition-penalty"),
    "ignores-repetition_penalty": Fault("knobs.repetition-penalty", budget="normal"),
    "bias-halved": Fault("knobs.logit-bias", budget="normal"),
    "ignores-logit_bias": Fault("knobs.logit-bias"),
    "bad-words-first-spelling": Fault("knobs.bad-words"),
    "ignores-bad_words": Fault("knobs.bad-words"),
    "allowed-one-more": Fault("knobs.allowed-token-ids"),
    "ignores-allowed_token_ids": Fault("knobs.allowed-token-ids"),
    "min-tokens-one-less": Fault("knobs.min-tokens", budget="normal"),
    "ignores-min_tokens": Fault("knobs.min-tokens"),
    # seeds
    "ignores-seed": Fault("seeds.same", ("seeds", "streams", "logprobs.stream-same")),
    "seed-of-stream": Fault("seeds.stream", ("streams",)),
    "children-shuffled": Fault("seeds.choices"),
    "children-alike": Fault("seeds.choices-differ"),
    "seed-under-load": Fault("seeds.among-others", ("seeds.long-prompt",)),
    "seed-by-prompts": Fault("seeds.long-prompt", ("seeds.among-others",)),
    "unseeded-alike": Fault("seeds.unseeded-differ"),
    "seed-cut": Fault("seeds.high-bits"),
    "seed-modulo": Fault("seeds.high-bits"),
    "seed-zero-unseeded": Fault("seeds.same"),
    "noise-frozen": Fault("seeds.independent", REPORTED),
    "noise-by-sum": Fault("seeds.independent"),
}
