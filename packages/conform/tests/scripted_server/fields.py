"""What the scripted server accepts: every field with its check, and the context's length. Anything else is a 400."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scripted_server.script import VOCABULARY

CONTEXT = 4096
TYPES = {str: "a text", int: "an integer", bool: "true or false", dict: "an object"}


class BadRequest(Exception):  # noqa: N818
    """A 400, or another 4xx, that names the field."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.status = param, status


def number(low: float, high: float, above: bool = False) -> tuple[Callable[[Any], bool], str]:
    def check(value: Any) -> bool:
        return type(value) in (int, float) and low <= value <= high and not (above and value == low)

    return check, f"a number from {low} to {high}"


def integer(low: int, high: int = 1 << 63) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: type(value) is int and low <= value <= high), f"an integer from {low} to {high}"


def of_type(*types: type) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: type(value) in types), " or ".join(TYPES[one] for one in types)


def list_of(kind: type, least: int = 0) -> tuple[Callable[[Any], bool], str]:
    return (
        lambda value: isinstance(value, list) and len(value) >= least and all(type(one) is kind for one in value)
    ), f"a list, each {TYPES[kind]}"


def is_stop(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, list) and len(texts) <= 16 and all(isinstance(one, str) and one for one in texts)


def is_bias(value: Any) -> bool:
    return isinstance(value, dict) and all(
        key.isdigit() and int(key) < len(VOCABULARY) and type(bias) in (int, float) and -100 <= bias <= 100
        for key, bias in value.items()
    )


def is_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(one) is int and 0 <= one < len(VOCABULARY) for one in value)
    )


def is_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(one, dict)
            and one.get("role") in ("system", "user", "assistant", "tool")
            and isinstance(one.get("content"), str)
            for one in value
        )
    )


SHARED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": of_type(str),
    "max_tokens": integer(1),
    "temperature": number(0, 2),
    "top_p": number(0, 1, above=True),
    "top_k": integer(-1),
    "min_p": number(0, 1),
    "n": integer(1, 128),
    "stream": of_type(bool),
    "stream_options": of_type(dict),
    "stop": (is_stop, "a string or up to 16 strings"),
    "seed": integer(-(1 << 63)),
    "logit_bias": (is_bias, "a map from token ids to numbers from -100 to 100"),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "repetition_penalty": number(0, 10, above=True),
    "min_tokens": integer(0),
    "bad_words": list_of(str),
    "allowed_token_ids": (is_ids, f"a list of token ids below {len(VOCABULARY)}"),
    "ignore_eos": of_type(bool),
    "include_stop_str_in_output": of_type(bool),
    "response_format": of_type(dict),
    "structured_outputs": of_type(dict),
}
COMPLETION = SHARED | {"prompt": of_type(str), "logprobs": integer(0, 200)}
CHAT = SHARED | {
    "messages": (is_messages, "a list of messages with a role and a text"),
    "max_completion_tokens": integer(1),
    "logprobs": of_type(bool),
    "top_logprobs": integer(0, 200),
    "tools": list_of(dict, 1),
    "tool_choice": of_type(str, dict),
    "reasoning_effort": of_type(str),
}


def check(body: Any, chat: bool, fault: str) -> dict[str, Any]:
    """The body's fields without those that are null.

    Raises:
        BadRequest: a field is unknown, missing or out of its range.
    """
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", "body")
    known = CHAT if chat else COMPLETION
    found = {name: value for name, value in body.items() if value is not None}
    params: dict[str, Any] = {}
    for name, value in found.items():
        if name not in known:
            if fault == "unknown-fields-ignored":
                continue
            raise BadRequest(f"{name}: no such field", name)
        right, what = known[name]
        if right(value):
            params[name] = value
        elif not forgiven(fault, value):
            raise BadRequest(f"{name} must be {what}", name, 500 if fault == "values-are-500" else 400)
    needed = "messages" if chat else "prompt"
    for name in ("model", needed):
        if name not in params:
            raise BadRequest(f"{name} is required", name)
    return params


def forgiven(fault: str, value: Any) -> bool:
    """What the faults of validation let pass: as if it had not been sent."""
    numeric = type(value) in (int, float)
    return (fault == "range-unchecked" and numeric) or (fault == "types-unchecked" and not numeric)
