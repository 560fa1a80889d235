"""POST /v1/explain: why the tokens of an output came, afterwards; and whether they can have come."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.body import BodyReader, read_raw
from tailrace.api.disconnect import unless_disconnected
from tailrace.api.error_handlers import of_validation
from tailrace.api.explanations import CHARS, spelling, write
from tailrace.api.front_end import front_of, service_for
from tailrace.api.json_place import out_of_range
from tailrace.api.prepare import PreparedRequest
from tailrace.api.replay import ExplainedOutput
from tailrace.api.request_record import origin_of
from tailrace.api.response_store import OutputOrigin, origins
from tailrace.api.routes.chat import prepare_completion
from tailrace.api.routes.completions import prepare_texts, prompts_of
from tailrace.api.routes.responses import prepare_response
from tailrace.api.sampling import changed, check_records, effort
from tailrace.api.schema.chat import CHAT_REFUSED, ChatRequest
from tailrace.api.schema.common import TOLERATED, GenerateRequest
from tailrace.api.schema.completions import COMPLETION_REFUSED, CompletionRequest
from tailrace.api.schema.explain import OF_EXPLANATIONS, ExplainAnswer, ExplainRequest
from tailrace.api.schema.responses import RESPONSES_REFUSED, ResponsesRequest
from tailrace.api.service import Service, service_of
from tailrace.api.streaming import json_response
from tailrace.api.verdict import verdict
from tailrace.api.work_queue import JSON_BYTES
from tailrace.api.worker_queries import ask_stored
from tailrace.errors import ParameterError, within
from tailrace.explanation import ExplainOptions
from tailrace.params import SamplingParams
from tailrace.wire.messages import Replay


async def chat(request: Request, ask: ChatRequest) -> PreparedRequest:
    """Of /v1/chat/completions."""
    return (await prepare_completion(request, ask))[0]


async def completion(request: Request, ask: CompletionRequest) -> PreparedRequest:
    """Of /v1/completions."""
    return await prepare_texts(request, ask, prompts_of(ask.prompt))


async def response(request: Request, ask: ResponsesRequest) -> PreparedRequest:
    """Of /v1/responses."""
    return (await prepare_response(request, ask))[0]


class Answered(NamedTuple):
    """How requests of an endpoint are read and prepared again."""

    reader: BodyReader[Any]
    prepare: Callable[[Request, Any], Awaitable[PreparedRequest]]


# the field that says which endpoint has answered → its requests
ENDPOINTS: dict[str, Answered] = {
    "messages": Answered(BodyReader(ChatRequest, CHAT_REFUSED, OF_EXPLANATIONS), chat),
    "prompt": Answered(BodyReader(CompletionRequest, COMPLETION_REFUSED, OF_EXPLANATIONS), completion),
    "input": Answered(BodyReader(ResponsesRequest, RESPONSES_REFUSED, OF_EXPLANATIONS), response),
}
THEIRS = frozenset(
    name
    for schema, refused in (
        (ChatRequest, CHAT_REFUSED),
        (CompletionRequest, COMPLETION_REFUSED),
        (ResponsesRequest, RESPONSES_REFUSED),
    )
    for name in (*schema.__struct_fields__, *refused)
)
READER = BodyReader(ExplainRequest, {}, THEIRS)
KNOWN = THEIRS.union(ExplainRequest.__struct_fields__)
# what says nothing of a stored response's request: that is stored as it was
WITH_RESPONSE_ID = frozenset({"response_id", "positions", "explain", "what_if"}) | TOLERATED
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def explain_output(request: Request) -> Response:
    """Why the tokens of an output came."""
    raw = await read_raw(request)
    asked = await READER.decode(request, raw)
    given = [name for name in (*ENDPOINTS, "response_id") if getattr(asked, name) not in (UNSET, None)]
    if len(given) != 1:
        raise ParameterError(
            "messages: one of messages, prompt, input and response_id must be given: the request that was answered",
            "messages",
        )
    if asked.response_id is not None:
        await front_of(request).work_queue.run(request, partial(check_stored, raw), len(raw) // JSON_BYTES)
        ask, index, output = GenerateRequest(), 0, await stored_output(request, asked.response_id)
    else:
        ask = await ENDPOINTS[given[0]].reader.decode(request, raw)
        service_for(request, ask.model).supervisor.check()
        index, output = await given_output(request, ask, asked, given[0])
    service = service_of(request)
    positions = sorted({*(range(len(output.output)) if asked.positions is None else asked.positions)})
    options = asked.explain if isinstance(asked.explain, ExplainOptions) else ExplainOptions()
    check_records(options, len(positions), "positions")
    replay = Replay(
        output=output.output,
        positions=positions,
        options=options,
        index=index,
        key=output.key,
        what_if=None if asked.what_if is None else await other_parameters(request, output, asked.what_if),
    )
    origin = origin_of(request, "chat", ask)._replace(streamed=False)
    explained = ExplainedOutput(service, f"explain-{origin.request_id}", output, replay, origin)
    answer = answered(service, explained, output)
    return json_response(await unless_disconnected(request.receive, answer, lambda: explained.abort("disconnect")))


async def answered(service: Service, explained: ExplainedOutput, output: OutputOrigin) -> ExplainAnswer:
    """The answer, once all records have come."""
    await explained.finished()
    labels, records, difference = service.labels, explained.records, explained.difference
    size = CHARS * sum(len(record.ids) * (1 + len(record.refinements)) for record in records)
    eos = service.client.model.eos_token_ids

    def work() -> list[msgspec.Raw]:
        spelt = spelling(service.tokenizer, output, eos)
        return [write(labels, r, (spelt[r.index] or b"") if r.index in spelt else None) for r in records]

    written = await explained.run(work, size + len(output.output))
    return ExplainAnswer(
        id=explained.id,
        created=int(time.time()),
        model=service.model_name,
        prompt_token_ids=output.prompt,
        explanations=written,
        consistent=difference is None,
        first_difference=None if difference is None else difference.position,
        verdict=verdict(
            len(records), output.output, difference, explained.unsure, lambda token: labels.names[token][0]
        ),
        usage=explained.usage,
    )


def check_stored(raw: bytes) -> None:
    """Raise ParameterError if a body with `response_id` has fields of the request, or of its output, which are
    stored."""
    for name, value in _decode_fields(raw).items():
        if name not in WITH_RESPONSE_ID and name in KNOWN and bytes(value).strip() != b"null":
            raise ParameterError(
                f"{name} has no effect with response_id: request and output are stored; what_if takes other fields to "
                f"explain with",
                name,
            )


async def stored_output(request: Request, id: str) -> OutputOrigin:
    """That of a stored response.

    Raises:
        RequestNotFoundError: it is not stored (any more). ParameterError: it is not over.
    """
    found = await ask_stored(front_of(request), "origin", id, "response_id")
    if not found:
        raise ParameterError("response_id: the response is not over, or has no output", "response_id")
    output = origins.decode(found)
    service_for(request, output.model).supervisor.check()
    return output


async def given_output(
    request: Request, ask: GenerateRequest, asked: ExplainRequest, field: str
) -> tuple[int, OutputOrigin]:
    """The request that was answered, prepared again, with its output; and which of its sequences that is.

    Raises:
        RequestError: naming the field.
    """
    if getattr(ask, "use_beam_search", None):
        raise ParameterError("use_beam_search: a beam search draws nothing that could be explained", "use_beam_search")
    if not asked.output_token_ids:
        raise ParameterError("output_token_ids must hold the output's token ids", "output_token_ids")
    prepared = await ENDPOINTS[field].prepare(request, ask)
    best = cast(int | None, getattr(ask, "best_of", None))
    if asked.key is None and best not in (None, prepared.params.n):
        raise ParameterError("best_of: which of these sequences the output is can't be known: give its key", "best_of")
    choice, n = asked.choice or 0, prepared.params.n
    if choice >= n * len(prepared.prompts):
        raise ParameterError(
            f"choice must be an integer in [0, {n * len(prepared.prompts) - 1}], got {choice}", "choice"
        )
    if asked.key is None and prepared.params.seed is None:
        raise ParameterError(
            "key: the request has no seed, so the key of its noise must be given, 16 hexadecimal digits; every record "
            "of `explain` has it",
            "key",
        )
    key = None if asked.key is None else int.from_bytes(bytes.fromhex(asked.key), signed=True)
    model = service_of(request).model_name
    output = OutputOrigin(model, prepared.prompts[choice // n], prepared.params, key, asked.output_token_ids)
    return choice % n, output


async def other_parameters(request: Request, output: OutputOrigin, what_if: dict[str, Any]) -> SamplingParams:
    """The parameters of the request with these fields instead.

    Raises:
        ParameterError: naming the field.
    """
    service = service_of(request)
    try:
        ask = msgspec.convert(what_if, GenerateRequest)
        work = partial(changed, output.params, ask, what_if, service.tokenizer)
        return await service.work_queue.run(request, work, effort(ask, 0))
    except msgspec.ValidationError as error:
        raise within("what_if", out_of_range(of_validation(error))) from error
    except ParameterError as error:
        raise within("what_if", error) from error
