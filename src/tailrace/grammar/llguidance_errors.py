"""llguidance's messages about a grammar, in the request's own terms."""

from __future__ import annotations

from tailrace.base.extras import require_extra

with require_extra("grammar"):
    from llguidance import LLMatcher


def error_text(matcher: LLMatcher) -> str:
    """Return the library's message, without details about the library itself."""
    return readable_error(matcher.get_error()) or "a limit of the grammar was met"


def readable_error(text: str) -> str:
    text = " ".join(text.partition("<state>")[0].replace("<non-verbose/>", "").split())[:500]
    return next((ours for theirs, ours in READABLE_ERRORS.items() if theirs in text), text)


TOO_MANY_STATES = "too much to match: bounds on the length of texts (maxLength) and repeats in patterns are too large"
# the library's own terms → the request's
READABLE_ERRORS = {
    "NoExtensionBias": "no text fits it",
    "Regex is empty": "no text fits it",
    "oneOf constraints are not supported": "oneOf whose branches neither types nor a required property tell apart: "
    "a value might fit two",
    "too many states": TOO_MANY_STATES,
    "too many expressions": TOO_MANY_STATES,
    "fuel exhausted": TOO_MANY_STATES,
    "precomputation failed": TOO_MANY_STATES,
    "ff_tokens": "too much of it must come in one way: its rules multiply",
}
