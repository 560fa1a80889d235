"""GET /openapi.json: what the endpoints take and give, made from the very structs that read and write it, and the
ranges of params.py."""

from __future__ import annotations

import math
import re
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.anthropic_errors import ANTHROPIC
from tailrace.api.route_costs import COSTS, Cost
from tailrace.api.routes.health import Version
from tailrace.api.routes.sleep import Sleeping
from tailrace.api.schema.adapters import LoadAdapterRequest, UnloadAdapterRequest
from tailrace.api.schema.chat import ChatCompletion, ChatRequest
from tailrace.api.schema.completions import Completion, CompletionRequest
from tailrace.api.schema.conversations import (
    CompactedResponse,
    CompactRequest,
    ConversationDeleted,
    ConversationObject,
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
)
from tailrace.api.schema.errors import AnthropicError, ErrorBody
from tailrace.api.schema.explain import ExplainAnswer, ExplainRequest, TokenExplanation
from tailrace.api.schema.generate import NativeAnswer, NativeRequest
from tailrace.api.schema.messages import CountRequest, InputTokens, MessageObject, MessagesRequest
from tailrace.api.schema.models import ModelCard, ModelList
from tailrace.api.schema.requests import Cancelled, Controlled, ControlRequest
from tailrace.api.schema.responses import Deleted, ItemList, ResponseObject, ResponsesRequest, ResponseTokens
from tailrace.api.schema.token_io import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    RenderChatRequest,
    RenderCompletionRequest,
    Rendered,
    TokensAnswer,
    TokensRequest,
)
from tailrace.api.schema.tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from tailrace.params import FIELDS

SCHEMES = {
    "key": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
ERRORS = (ErrorBody, AnthropicError)
WRITTEN = (TokenExplanation,)  # of which answers hold the JSON
REF = "#/components/schemas/{name}"


class Operation(NamedTuple):
    """summary; what it takes and gives; which other statuses it may answer with; whether it can be streamed."""

    summary: str
    takes: type | None
    gives: Any
    statuses: tuple[int, ...] = ()
    streams: bool = False


CHANGING = (400, 401, 404, 413, 415, 503)  # of endpoints that change what runs
STORED = (400, 401, 404, 429, 503)  # of endpoints that read or forget stored responses
GENERATING = (400, 401, 404, 413, 415, 429, 500, 503)
COUNTING = (400, 401, 404, 413, 415, 429, 503)  # of endpoints whose requests count, and run no step
OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation("A chat completion", ChatRequest, ChatCompletion, GENERATING, True),
    ("POST", "/v1/completions"): Operation(
        "A completion of each prompt", CompletionRequest, Completion, GENERATING, True
    ),
    ("POST", "/generate"): Operation(
        "An output of each prompt, by SGLang's names", NativeRequest, NativeAnswer, GENERATING, True
    ),
    ("POST", "/v1/responses"): Operation("A response", ResponsesRequest, ResponseObject, GENERATING, True),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "Tokens of a response's prompt", ResponsesRequest, ResponseTokens, COUNTING
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation("The items that a response answers", None, ItemList, STORED),
    ("GET", "/v1/responses/{id}"): Operation("A stored response", None, ResponseObject, STORED),
    ("DELETE", "/v1/responses/{id}"): Operation("Forget a stored response", None, Deleted, STORED),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        "End a response in progress", None, ResponseObject, (400, 401, 404)
    ),
    ("POST", "/v1/responses/compact"): Operation(
        "A compacted conversation", CompactRequest, CompactedResponse, GENERATING
    ),
    ("POST", "/v1/conversations"): Operation("A new conversation", ConversationRequest, ConversationObject, COUNTING),
    ("GET", "/v1/conversations/{id}"): Operation("A conversation", None, ConversationObject, STORED),
    ("POST", "/v1/conversations/{id}"): Operation(
        "Replace the metadata of a conversation", ConversationUpdate, ConversationObject, COUNTING
    ),
    ("DELETE", "/v1/conversations/{id}"): Operation("Delete a conversation", None, ConversationDeleted, STORED),
    ("POST", "/v1/conversations/{id}/items"): Operation(
        "Add items to a conversation", ItemsRequest, ItemList, COUNTING
    ),
    ("GET", "/v1/conversations/{id}/items"): Operation("Items of a conversation", None, ItemList, STORED),
    ("GET", "/v1/conversations/{id}/items/{item}"): Operation("An item", None, None, STORED),
    ("DELETE", "/v1/conversations/{id}/items/{item}"): Operation(
        "Delete an item of a conversation", None, ConversationObject, STORED
    ),
    ("POST", "/v1/messages"): Operation("A message", MessagesRequest, MessageObject, GENERATING, True),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Tokens of a message's prompt", CountRequest, InputTokens, COUNTING
    ),
    ("POST", "/v1/explain"): Operation("Why the tokens of an output came", ExplainRequest, ExplainAnswer, GENERATING),
    ("DELETE", "/v1/requests/{id}"): Operation(
        "End a running request, keeping what it has said", None, Cancelled, (400, 401, 404)
    ),
    ("POST", "/v1/chat/completions/control"): Operation(
        "End a running thought or answer", ControlRequest, Controlled, CHANGING
    ),
    ("POST", "/v1/chat/completions/{id}/control"): Operation(
        "End a running thought or answer", ControlRequest, Controlled, CHANGING
    ),
    ("GET", "/v1/chat/completions/{id}"): Operation("The rest of a resumable chat", None, None, (400, 401, 404), True),
    ("GET", "/v1/completions/{id}"): Operation("The rest of a resumable completion", None, None, (400, 401, 404), True),
    ("GET", "/v1/messages/msg_{id}"): Operation("The rest of a resumable message", None, None, (400, 401, 404), True),
    ("POST", "/v1/chat/completions/render"): Operation("A chat as token ids", RenderChatRequest, Rendered, COUNTING),
    ("POST", "/v1/completions/render"): Operation(
        "A completion's prompts as token ids", RenderCompletionRequest, list[Rendered], COUNTING
    ),
    ("POST", "/v1/messages/render"): Operation("A message as token ids", MessagesRequest, Rendered, COUNTING),
    ("POST", "/v1/responses/render"): Operation("A response as token ids", ResponsesRequest, Rendered, COUNTING),
    ("POST", "/inference/v1/generate"): Operation(
        "The outputs of token ids", TokensRequest, TokensAnswer, GENERATING, True
    ),
    ("POST", "/v1/chat/completions/derender"): Operation(
        "An answer made of tokens", DerenderChatRequest, ChatCompletion, COUNTING
    ),
    ("POST", "/v1/completions/derender"): Operation(
        "A completion made of tokens", DerenderCompletionRequest, Completion, COUNTING
    ),
    ("GET", "/v1/models"): Operation("What is served", None, ModelList, (401,)),
    ("GET", "/v1/models/{id}"): Operation("One model", None, ModelCard, (400, 401, 404)),
    ("POST", "/v1/load_lora_adapter"): Operation("Load a LoRA adapter", LoadAdapterRequest, None, COUNTING),
    ("POST", "/v1/unload_lora_adapter"): Operation("Unload a LoRA adapter", UnloadAdapterRequest, None, COUNTING),
    ("POST", "/sleep"): Operation("Give a model's memory back", None, None, (400, 401, 404, 429, 503)),
    ("POST", "/wake_up"): Operation("Load a model that sleeps", None, None, (400, 401, 404, 429, 503)),
    ("GET", "/is_sleeping"): Operation("Whether models sleep", None, Sleeping, (401, 404)),
    ("POST", "/tokenize"): Operation("Token ids of a prompt or a conversation", TokenizeRequest, Tokenized, COUNTING),
    ("POST", "/detokenize"): Operation("The text of token ids", DetokenizeRequest, Detokenized, COUNTING),
    ("GET", "/health"): Operation("200 while requests are accepted", None, None, (503,)),
    ("GET", "/ping"): Operation("The status of /health alone", None, None, (503,)),
    ("POST", "/ping"): Operation("The status of /health alone, too", None, None, (503,)),
    ("GET", "/version"): Operation("The version of tailrace", None, Version),
    ("GET", "/metrics"): Operation("Prometheus' text format", None, None),
}
GENERATING_PATHS = frozenset(path for (_, path), cost in COSTS.items() if cost is Cost.TOKENS)


async def get_openapi(request: Request) -> Response:
    """The document."""
    return Response(build_document(), media_type="application/json")


@cache
def build_document() -> bytes:
    """As JSON."""
    types = [
        kind for operation in OPERATIONS.values() for kind in (operation.takes, operation.gives) if kind is not None
    ]
    refs, components = msgspec.json.schema_components([*types, *ERRORS, *WRITTEN], ref_template=REF)
    by_type = dict(zip([*types, *ERRORS, *WRITTEN], refs, strict=True))
    for kind in (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest):
        add_declarations(components[kind.__name__]["properties"])
    add_range(
        components[CompletionRequest.__name__]["properties"]["max_tokens"], 0, math.inf
    )  # 0: with echo, the prompt alone
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = describe_operation(operation, path, by_type)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "tailrace", "version": version("tailrace")},
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": SCHEMES},
            "security": [{}, *({name: []} for name in SCHEMES)],
        }
    )


def describe_operation(operation: Operation, path: str, refs: dict[type, dict[str, Any]]) -> dict[str, Any]:
    """One operation."""
    found: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", operation.summary.lower()),
    }
    if names := re.findall(r"{(\w+)}", path):
        schema = {"type": "string", "minLength": 1}
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
    if operation.takes is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": refs[operation.takes]}}}
    content: dict[str, Any] = {} if operation.gives is None else {"application/json": {"schema": refs[operation.gives]}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    found["responses"] = {"200": {"description": operation.summary} | ({"content": content} if content else {})}
    for status in operation.statuses:
        found["responses"][str(status)] = {"description": "see error.message"}
        if path not in ("/health", "/ping"):
            shape = refs[AnthropicError if path.startswith(ANTHROPIC) else ErrorBody]
            found["responses"][str(status)]["content"] = {"application/json": {"schema": shape}}
    return found


def add_declarations(properties: dict[str, Any]) -> None:
    """What each sampling field is, and its range: msgspec knows its type only."""
    for name, declared in FIELDS.items():
        if (field := properties.get(declared.http_name or name)) is not None:
            field["description"] = declared.doc
            if declared.range is not None:
                add_range(field, *declared.range)


def add_range(field: dict[str, Any], low: float, high: float, low_in: bool = True, high_in: bool = True) -> None:
    """One field's."""
    for kind in field.get("anyOf", []):
        if kind.get("type") in ("integer", "number"):
            kind["minimum" if low_in else "exclusiveMinimum"] = low
            if high < 2**31:
                kind["maximum" if high_in else "exclusiveMaximum"] = high
