"""Faults of the scripted server: name → the law that must find it, and laws that may rightly find it too. The server
has `fault=NAME`.

Those of streams, stops, structure and errors are in the server; those of logprobs, knobs and seeds in sampler.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """law: what must find it. also: laws, or whole families, that it breaks as well. beside: what must be judged
    before, where the law itself sends nothing."""

    law: str
    also: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


CUTS = ("stops.cut", "stops.several", "stops.nothing-sent", "stops.not-in-prompt", "stops.include")
FRAME_FAULTS: dict[str, Fault] = {
    # streams
    "stream-ignored": Fault("streams.incremental", ("streams", "stops", "structure", "errors.neighbours")),
    "stream-in-one": Fault("streams.incremental", ("streams.usage", "logprobs", "seeds")),
    "bare-lines": Fault("streams.event-format"),
    "chunk-object-wrong": Fault("streams.chunk-shape"),
    "ids-change": Fault("streams.chunk-shape"),
    "text-stripped": Fault("streams.deltas-join", ("stops.nothing-sent", "stops.include", "seeds", "logprobs")),
    "last-text-lost": Fault("streams.deltas-join", ("streams.whole-characters", "stops.nothing-sent", "seeds")),
    "ends-twice": Fault("streams.one-ending"),
    "hangs-up": Fault("streams.ends-or-says-why", ("streams", "errors.no-5xx", "errors.neighbours")),
    "finish-missing": Fault("streams.ends-or-says-why", ("streams.deltas-join", "streams.n-complete", "structure")),
    "done-missing": Fault("streams.done-last"),
    "usage-off-by-one": Fault("streams.usage", ("streams.n-complete", "stops.ends-work", "logprobs")),
    "stream-usage-off": Fault("streams.usage"),
    "usage-with-choice": Fault("streams.usage", ("streams.one-ending",)),
    "surrogate-halves": Fault("streams.whole-characters", ("streams.deltas-join", "stops.nothing-sent", "seeds")),
    "characters-split": Fault("streams.whole-characters", ("streams.deltas-join", "logprobs")),
    "role-missing": Fault("streams.role-once"),
    "role-in-each": Fault("streams.role-once"),
    "n-one-less": Fault("streams.n-complete", ("seeds",)),
    "choices-reversed": Fault("streams.n-complete"),
    "refusals-in-stream": Fault("streams.refusal-status"),
    "gone-goes-on": Fault("streams.gone-client"),
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
    "errors-unnamed": Fault("errors.named-field"),
    "errors-are-text": Fault("errors.error-object"),
    "unknown-fields-ignored": Fault("errors.unknown-field"),
    "any-model": Fault("errors.unknown-model"),
    "unknown-path-200": Fault("errors.unknown-path"),
    "errors-are-500": Fault("errors.bad-json"),
    "bad-json-hangs": Fault("errors.bad-json"),
    "crashes-at-nesting": Fault("errors.strange-bodies"),
    "prompt-truncated": Fault("errors.too-long"),
    "neighbours-harmed": Fault("errors.neighbours"),
}
SAMPLER_FAULTS: dict[str, Fault] = {}
