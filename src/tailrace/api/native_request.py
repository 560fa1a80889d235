"""A request of POST /generate → the same as a request for completions, and errors about it back in SGLang's names."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from tailrace.api import error_handlers
from tailrace.api.aliases import ALIASES, resolve_aliases
from tailrace.api.json_place import out_of_range
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.schema.generate import RENAMED, SAMPLING, NativeRequest
from tailrace.api.schema.peers import HARMLESS, NOT_OFFERED
from tailrace.errors import ParameterError, RequestError

MAX_NEW_TOKENS = 128  # SGLang's default
# fields of completions that an error may name → what they are here, where they are no sampling parameters
OUTSIDE = {"logprobs": "top_logprobs_num", "prompt_logprobs": "logprob_start_len", "request_id": "rid"}
FIELDS = SAMPLING | {*RENAMED.values()}  # of completions
BACK = {old: new for new, old in RENAMED.items()}
# fields of completions that an error may mention beside its own → their names here
MENTIONED = {**BACK, **dict.fromkeys(("prompt_logprobs", "prompt_logprob_token_ids"), "logprob_start_len")}


def prompts_of(ask: NativeRequest) -> list[Any]:
    """The prompts, each a string or token ids.

    Raises:
        ParameterError: not exactly one of text and input_ids is given, or a prompt is empty or of another type.
    """
    if (ask.text is None) == (ask.input_ids is None):
        raise ParameterError("text: either text or input_ids must be given, and not both", "text")
    given: Any = ask.input_ids if ask.text is None else ask.text
    name = prompt_field(ask)
    found = [given] if isinstance(given, str) or {*map(type, given)} == {int} else given
    if not found or not all(found) or {int}.intersection(map(type, found)):
        raise ParameterError(f"{name} must be a prompt or a list of prompts, none of them empty", name)
    return found


@contextmanager
def native_names(ask: NativeRequest, names: Mapping[str, str]) -> Generator[None, None, None]:
    """Errors that name a field of completions name what it is here: `min_tokens` is `sampling_params.min_new_tokens`.

    Args:
        names: field → the name that the request has for it; see completion_of.

    Raises:
        RequestError: of the same kind.
    """
    try:
        yield
    except RequestError as error:
        own, error = error.field, error.rename_fields({**MENTIONED, **names})
        text, field, param = str(error), error.field, error.param or ""
        native = {"prompt": prompt_field(ask), **OUTSIDE}.get(own, field)
        if own in SAMPLING | BACK.keys() | ALIASES:
            native = f"sampling_params.{field}"
        if native != own:
            begin = re.match(rf"{re.escape(field)}\b", text)
            text = f"{native}{text[len(field) :]}" if begin else f"{native}: {text}"
        raise type(error)(text, (native + param[len(field) :]) or None) from error


def prompt_field(ask: NativeRequest) -> str:
    """What the client calls the prompts."""
    return "input_ids" if ask.text is None else "text"


def completion_of(ask: NativeRequest, names: dict[str, str]) -> CompletionRequest:
    """The same as a request for completions, but for its prompts. names: gets field → the name that the request has
    for it.

    Raises:
        ParameterError: naming the field as completions do, or a sampling parameter that is not supported.
    """
    given = ask.sampling_params or {}
    if others := sorted(given.keys() & BACK.keys()):
        raise not_supported(others[0])
    own = {RENAMED.get(name, name): value for name, value in given.items()}
    made, used = resolve_aliases(own, FIELDS)
    names |= used
    fields: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
    for name, value in ({name: own[name] for name in own if name not in ALIASES or name in FIELDS} | made).items():
        if name in FIELDS:
            fields[name] = value
        elif name not in HARMLESS and value not in NOT_OFFERED.get(name, ()):
            raise not_supported(name)
    if ask.return_sampling_mask:
        fields = {"logprobs_mode": "processed"} | fields | {"return_sampling_mask": True}
    fields["echo"] = fields["max_tokens"] == 0 or None  # then only the prompt is wanted
    fields |= {"stream": ask.stream, "request_id": ask.rid, "cache_salt": ask.cache_salt}
    fields |= {"priority": ask.priority, "deadline_s": ask.deadline_s}
    try:
        return msgspec.convert({**fields, "prompt": ""}, CompletionRequest)
    except msgspec.ValidationError as error:
        raise out_of_range(error_handlers.of_validation(error, CompletionRequest)) from error


def not_supported(name: str) -> ParameterError:
    """Return the error about a sampling parameter that there is not."""
    return ParameterError(f"sampling_params.{name}: not supported; leave it out", f"sampling_params.{name}")


def scored_from(ask: NativeRequest, prompts: list[list[int]]) -> int | None:
    """Return the place from which the prompts' tokens have logprobs; None if no token of a prompt gets a logprob.

    All prompts begin at the same place. A prompt gets no logprobs if that place is its last token or its end.

    Raises:
        ParameterError: a prompt is shorter than this, or only some prompts would get logprobs. 0 is always allowed.
    """
    first, lengths = ask.logprob_start_len, [len(prompt) for prompt in prompts]
    if first is None or first == -1:
        return None
    shortest = min(lengths)
    scored = [first < length - 1 for length in lengths]
    mixed = any(scored) != all(scored)
    if not -1 < first <= shortest or (first and mixed):
        most = shortest if shortest == max(lengths) else max(shortest - 2, 0)
        raise ParameterError(f"logprob_start_len must be in -1 … {most}, got {first}", "logprob_start_len")
    return first if ask.return_logprob and any(scored) else None
