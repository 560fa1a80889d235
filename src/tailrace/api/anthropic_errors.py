"""Errors in Anthropic's shape, for /v1/messages and the paths below it."""

from __future__ import annotations

import re

from starlette.types import Scope

from tailrace.api.schema.errors import AnthropicError, AnthropicProblem, Details, ErrorBody
from tailrace.errors import BY_CODE, ContextLengthError, RequestError, TailraceError

ANTHROPIC = "/v1/messages"
# status → Anthropic's type of error
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# fields of a chat → their names in /v1/messages
NAMES = {
    "continue_final_message": "messages",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
}
CODES = {"thread": "thread_unsupported_request"}  # by it Anthropic's client knows to send whole conversations
SCHEMA = re.compile(r"(tools\[\d+\])(\.function)?\.parameters")  # a tool's schema, as a chat or a response names it
TOO_LONG = "prompt is too long: "  # by these words Anthropic's clients know that a conversation must be shortened


def is_anthropic(scope: Scope) -> bool:
    """The endpoint is one of Anthropic's."""
    return scope["path"] == ANTHROPIC or scope["path"].startswith(f"{ANTHROPIC}/")


def anthropic_body(body: ErrorBody, status: int | None = None, request_id: str | None = None) -> AnthropicError:
    """Return Anthropic's body for an error. status: None stands for the error's usual status."""
    problem = body.error
    if status is None:
        status = BY_CODE.get(problem.code or "", TailraceError).status
    kind = TYPES.get(status, RequestError.type if status < 500 else "api_error")
    message, field = problem.message, problem.param or ""
    name = NAMES.get(field, field)
    if message.startswith(field):
        message = name + message.removeprefix(field)
    if found := SCHEMA.match(message):
        message = name = f"{found[1]}.input_schema"
        message += problem.message[found.end() :]
    if problem.code == ContextLengthError.code:
        message = TOO_LONG + message
    details = Details(CODES.get(field, problem.code), name or None)
    return AnthropicError(AnthropicProblem(kind, message, details), request_id=request_id)
