"""A request of POST /generate → the same as a request for completions, and errors about it back in SGLang's names."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from tailrace.api import error_handlers
from tailrace.api.json_place import out_of_range
from tailrace.api.schema.completions import CompletionRequest
from tailrace.api.schema.generate import RENAMED, SAMPLING, NativeRequest
from tailrace.errors import ParameterError, RequestError

MAX_NEW_TOKENS = 128  # SGLang's default
# what SGLang has in its sampling parameters and tailrace lacks → at which values it asks for nothing
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "spaces_between_special_tokens": (None, True),
    "beam_width": (None, 1),
    "custom_params": (None,),
}
# fields of completions that an error may name → what they are here, where they are no sampling parameters
OUTSIDE = {"logprobs": "top_logprobs_num", "prompt_logprobs": "logprob_start_len", "request_id": "rid"}
BACK = {old: new for new, old in RENAMED.items()}
# where a message names another field than its own; and what that is here
_ANOTHER = re.compile(r"\b(without|with|at most) (\w+)(?: or prompt_logprob_token_ids)?")
MENTIONED = {**BACK, "prompt_logprobs": "logprob_start_len"}


def prompts_of(ask: NativeRequest) -> list[Any]:
    """The prompts, each a string or token ids.

    Raises:
        ParameterError: there is none, or they are given twice.
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
def native_names(ask: NativeRequest) -> Generator[None, None, None]:
    """Errors that name a field of completions name what it is here: `seed` is `sampling_params.sampling_seed`.

    Raises:
        RequestError: of the same kind.
    """
    try:
        yield
    except RequestError as error:
        text, param = str(error), error.param or ""
        field = param.split(".")[0].split("[")[0]
        native = {"prompt": prompt_field(ask), **OUTSIDE}.get(field, field)
        if field in SAMPLING | BACK.keys():
            native = f"sampling_params.{BACK.get(field, field)}"
        if native != field:
            begin = re.match(rf"{re.escape(field)}\b", text)
            text = f"{native}{text[len(field) :]}" if begin else f"{native}: {text}"
        text = _ANOTHER.sub(lambda at: f"{at[1]} {MENTIONED.get(at[2], at[2])}", text)
        raise type(error)(text, (native + param[len(field) :]) or None) from error


def prompt_field(ask: NativeRequest) -> str:
    """What the client calls the prompts."""
    return "input_ids" if ask.text is None else "text"


def completion_of(ask: NativeRequest) -> CompletionRequest:
    """The same as a request for completions, but for its prompts.

    Raises:
        ParameterError: naming the field as completions do, or a sampling parameter that is not supported.
    """
    given = {"max_new_tokens": MAX_NEW_TOKENS, **(ask.sampling_params or {})}
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name in NEUTRAL and value in NEUTRAL[name]:
            continue
        if name not in SAMPLING | RENAMED.keys():
            raise ParameterError(f"sampling_params.{name}: not supported; leave it out", f"sampling_params.{name}")
        fields[RENAMED.get(name, name)] = value
    if ask.return_sampling_mask:
        fields = {"logprobs_mode": "processed"} | fields | {"return_sampling_mask": True}
    fields["echo"] = fields["max_tokens"] == 0 or None  # then only the prompt is wanted
    fields |= {"stream": ask.stream, "request_id": ask.rid, "priority": ask.priority, "deadline_s": ask.deadline_s}
    try:
        return msgspec.convert({**fields, "prompt": ""}, CompletionRequest)
    except msgspec.ValidationError as error:
        raise out_of_range(error_handlers.of_validation(error)) from error


def scored_from(ask: NativeRequest, prompts: list[list[int]]) -> int | None:
    """From which place of the prompts on tokens have logprobs; None: no token that has one before it.

    Raises:
        ParameterError: a prompt is too short for that. From the last two places of a prompt on no token has one; then
            none of another prompt may have one either, because all prompts begin at one place. 0 is always possible.
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
