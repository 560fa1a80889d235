"""POST /v1/responses; GET and DELETE /v1/responses/{id}; POST /v1/responses/{id}/cancel."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.access_log import origin_of
from tailrace.api.body import BodyReader, check_items
from tailrace.api.channels import channels_of, with_channels
from tailrace.api.chunks import effective
from tailrace.api.conversation import check_conversation, encode
from tailrace.api.front_end import front_of, service_for
from tailrace.api.generate import Generation
from tailrace.api.guidance import longest, of_chat
from tailrace.api.respond import json_answer, request_id, respond
from tailrace.api.response_events import ResponseEvents
from tailrace.api.sampling import effort, output_limit, sampling_params
from tailrace.api.schema.chat import ChatMessage, ChatRequest
from tailrace.api.schema.common import GenerateRequest
from tailrace.api.schema.requests import Cancelled
from tailrace.api.schema.responses import (
    RESPONSES_REFUSED,
    Deleted,
    Event,
    InputDetails,
    InputItem,
    OutputDetails,
    OutputItem,
    ResponseError,
    ResponseObject,
    ResponsesRequest,
    ResponseUsage,
    TextOptions,
)
from tailrace.api.schema.structured import FlatJsonSchemaFormat, JsonSchema, JsonSchemaFormat, ResponseFormat
from tailrace.api.service import Service
from tailrace.api.sse import NAMED
from tailrace.api.tool_choice import Choice, choice_of, with_grammar
from tailrace.api.turns import JSON_BYTES
from tailrace.api.worker_queries import everywhere, kept, somewhere
from tailrace.errors import ParameterError, TailraceError
from tailrace.params import SamplingParams
from tailrace.text.channel_splitter import ChannelSplitter
from tailrace.text.tool_parsers.functions import check_tools

READER = BodyReader(ResponsesRequest, RESPONSES_REFUSED)
JSON = "application/json"


async def create_response(request: Request) -> Response:
    """A response, streamed or whole."""
    ask = await READER.read(request)
    service = service_for(request, ask.model)
    info = service.supervisor.check()
    before = await earlier(request, ask)
    size = request.state.size + len(before)

    def looked_at() -> tuple[Choice, ChatRequest]:
        check_tools(ask.tools, nested=False)
        return choice_of(ask.tool_choice, ask.tools, ask.parallel_tool_calls), conversation(ask, before)

    choice, chat = await service.turns.run(request, looked_at, size // JSON_BYTES)
    with_tools = choice.mode != "none"
    prompt = await encode(request, chat, size, with_tools, "input")
    negative = await of_chat(request, chat, size, with_tools)
    taken, taker = longest(len(prompt), negative, "input")
    limit = output_limit(taken, info.max_model_len, ask.max_output_tokens, "max_output_tokens", taker)
    channels = channels_of(service, chat, prompt)

    def prepared() -> tuple[SamplingParams, str]:
        params = sampling_params(
            chat, service.tokenizer, service.defaults, max_tokens=limit, logprobs=None, negative_prompt=negative
        )
        params = with_channels(params, service, chat, channels)
        return with_grammar(service, chat, choice, ask.tools, prompt, params, "text.format")

    params, grammar_field = await service.turns.run(request, prepared, effort(chat, size))
    # ids are ours, since answers are kept by them; what a client calls its request is a label, which others may use as well
    id, label, origin = f"resp_{uuid4().hex}", request_id(request, ask), origin_of(request, "chat", ask)
    generation = Generation(service, id, [prompt], params, origin, grammar_field, label)
    response = ResponseObject(
        id=generation.id,
        created_at=int(time.time()),
        instructions=ask.instructions,
        max_output_tokens=ask.max_output_tokens,
        model=service.model_name,
        output=[],
        previous_response_id=ask.previous_response_id,
        store=ask.store is not False,
        temperature=params.temperature,
        top_p=params.top_p,
        tools=ask.tools or [],
        tool_choice=ask.tool_choice or "auto",
        text=ask.text or TextOptions(),
        parallel_tool_calls=ask.parallel_tool_calls is not False,
        metadata=ask.metadata or {},
        sampling_params=effective(ask, generation),
    )
    said: list[dict[str, Any]] = msgspec.to_builtins(
        chat.messages[ask.instructions is not None :]
    )  # those are for this turn alone
    told = events(service, generation, response, ChannelSplitter(*channels), said)
    return await respond(request, generation, told, last, ask.streamed, NAMED)


async def events(
    service: Service,
    generation: Generation,
    response: ResponseObject,
    channels: ChannelSplitter,
    said: list[dict[str, Any]],
) -> AsyncGenerator[Event, None]:
    """The response as it comes.

    Raises:
        TailraceError: it failed before anything was said. Later it ends with an event that says so.
    """
    narrator, begun = ResponseEvents(response), False
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for _, delta in deltas:
                if not begun:
                    begun = True
                    keep(service, response, said)
                    for event in narrator.begin():
                        yield event
                segments = channels.feed(delta.text)
                if delta.finish_reason is not None:
                    segments += channels.flush()
                for segment in segments:
                    for event in narrator.add(segment):
                        yield event
                if delta.finish_reason is not None:
                    usage, whole = usage_of(generation), not channels.cut_call
                    final = list(narrator.end(delta.finish_reason, delta.stop_reason, usage, whole))
                    keep(service, response, said, anew=False)
                    for event in final:
                        yield event
    except TailraceError as error:
        if not begun:
            raise
        response.error, response.usage = ResponseError(error.code, str(error)), usage_of(generation)
        final = list(narrator.failed())
        keep(service, response, said, anew=False)
        for event in final:
            yield event
    finally:
        if response.status == "in_progress" and begun:  # the client left
            list(narrator.end("abort", "cancelled", usage_of(generation)))
            keep(service, response, said, anew=False)


async def last(stream: AsyncGenerator[Event, None]) -> ResponseObject:
    """The response that the stream ends with."""
    response: ResponseObject | None = None
    async with aclosing(stream):
        async for event in stream:
            response = event.response or response
    assert response is not None
    return response


async def retrieve_response(request: Request) -> Response:
    """A stored response, also while it is in progress."""
    body = await kept(front_of(request), "response", request.path_params["id"])
    return Response(body, media_type=JSON)


async def delete_response(request: Request) -> Response:
    """Forget a stored response."""
    id = request.path_params["id"]
    await kept(front_of(request), "forget", id)
    return json_answer(Deleted(id))


async def cancel_response(request: Request) -> Response:
    """End a response that is in progress; what it has said stays."""
    front, id = front_of(request), request.path_params["id"]
    found = await everywhere(front, "cut", id) if id.startswith("resp_") else []
    if not found:
        return Response(await kept(front, "response", id), media_type=JSON)
    body = await somewhere(front, "response", id)
    if body is None:  # before its first token, or not to be stored
        return json_answer(Cancelled(id))
    return Response(body.replace(b'"status":"in_progress"', b'"status":"cancelled"', 1), media_type=JSON)


def keep(service: Service, response: ResponseObject, said: list[dict[str, Any]], anew: bool = True) -> None:
    """Store the response, if it is to be stored, with the conversation that it ends; not `anew`: unless it was deleted meanwhile."""
    if response.store and (anew or response.id in service.front.responses):
        service.front.responses.put(response, [*said, *spoken(response.output)])


# ---- input → messages


async def earlier(request: Request, ask: ResponsesRequest) -> bytes:
    """The conversation that this one goes on with, as JSON; b"" for none. Together they are no more than a body may be.

    Raises:
        ParameterError: they are. RequestNotFoundError: the previous response is not stored.
    """
    if ask.previous_response_id is None:
        return b""
    name, front = "previous_response_id", front_of(request)
    before = await kept(front, "conversation", ask.previous_response_id, name)
    if (size := len(before) + request.state.size) > (most := front.config.max_body_mib << 20):
        raise ParameterError(f"{name}: the whole conversation must have at most {most} bytes, got {size}", name)
    check_items(before, front.config.max_body_items)
    return before


def conversation(ask: ResponsesRequest, before: bytes) -> ChatRequest:
    """The same as a chat, behind what was stored.

    Raises:
        ParameterError: naming the field.
    """
    if ask.max_tokens is not None:
        raise ParameterError("max_tokens: here it is max_output_tokens", "max_tokens")
    if ask.n not in (None, 1):
        raise ParameterError(f"n must be 1, got {ask.n}", "n")
    for name in ("prompt_logprobs", "logprob_token_ids", "report_entropy", "return_token_ids"):
        if getattr(ask, name):
            raise ParameterError(f"{name} can't be had with /v1/responses", name)
    messages: list[ChatMessage] = []
    if ask.instructions is not None:
        messages.append(ChatMessage(role="system", content=ask.instructions))
    if before:
        messages += msgspec.json.decode(before, type=list[ChatMessage])
    items = [InputItem(role="user", content=ask.input)] if isinstance(ask.input, str) else ask.input
    for place, item in enumerate(items):
        messages += message_of(item, f"input[{place}]")
    if not items or not messages:
        raise ParameterError("input must hold a message", "input")
    shared = {name: getattr(ask, name) for name in GenerateRequest.__struct_fields__}
    chat = ChatRequest(
        **shared,
        messages=messages,
        tools=[tool_of(tool) for tool in ask.tools or ()] or None,
        tool_choice=ask.tool_choice,
        chat_template_kwargs=ask.chat_template_kwargs,
        separate_reasoning=ask.separate_reasoning,
        stop_scope=ask.stop_scope,
        thinking_token_budget=ask.thinking_token_budget,
        negative_prompt=ask.negative_prompt,
        response_format=response_format(ask),
    )
    check_conversation(chat)
    return chat


def response_format(ask: ResponsesRequest) -> ResponseFormat | None:
    """text.format as Chat has it."""
    form = None if ask.text is None else ask.text.format
    if isinstance(form, FlatJsonSchemaFormat):
        return JsonSchemaFormat(JsonSchema(form.schema, form.name, form.strict, form.description))
    return form


def message_of(item: InputItem, name: str) -> list[ChatMessage]:
    """An input item as the chat template takes it."""
    if item.type == "reasoning":
        return []
    if item.type == "function_call":
        if item.name is None or item.arguments is None:
            raise ParameterError(f"{name}: a function_call needs name and arguments", name)
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        return [ChatMessage(role="assistant", content="", tool_calls=[call])]
    if item.type == "function_call_output":
        if item.output is None:
            raise ParameterError(f"{name}: a function_call_output needs output", name)
        return [ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id)]
    if item.role is None or item.content is None:
        raise ParameterError(f"{name}: a message needs role and content", name)
    if isinstance(item.content, str):
        return [ChatMessage(role=item.role, content=item.content)]
    for part in item.content:
        if part.type not in ("input_text", "output_text", "text") or part.text is None:
            raise ParameterError(f"{name}.content: only text can be served, got {part.type!r}", f"{name}.content")
    return [ChatMessage(role=item.role, content="".join(part.text or "" for part in item.content))]


def tool_of(tool: dict[str, Any]) -> dict[str, Any]:
    """A function as chat templates expect it: its fields one level deeper."""
    return {
        "type": "function",
        "function": {key: value for key, value in tool.items() if key not in ("type", "strict")},
    }


def spoken(output: list[OutputItem]) -> list[dict[str, Any]]:
    """What was answered, as a message for the next turn; thoughts are left out, as templates expect."""
    text = "".join(part.text for item in output if item.type == "message" for part in item.content or ())
    calls = [
        {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        for item in output
        if item.type == "function_call"
    ]
    if not text and not calls:
        return []
    return [{"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}]


def usage_of(generation: Generation) -> ResponseUsage:
    """Tokens so far, by their names here."""
    usage = generation.usage
    details = InputDetails(usage.prompt_tokens_details.cached_tokens)
    return ResponseUsage(usage.prompt_tokens, details, usage.completion_tokens, OutputDetails(), usage.total_tokens)
