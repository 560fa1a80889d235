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

from tailrace.api.aliases import ALIASES, resolve_aliases
from tailrace.api.body import Body, BodyNames, BodyReader
from tailrace.api.body_bytes import read_raw
from tailrace.api.disconnect import unless_disconnected
from tailrace.api.error_handlers import of_validation
from tailrace.api.explanations import CHARS, encode_record, spell_output
from tailrace.api.front_end import front_of
from tailrace.api.json_place import out_of_range
from tailrace.api.prepare import PreparedRequest
from tailrace.api.received import Received
from tailrace.api.replay import ExplainedOutput
from tailrace.api.request_record import RequestOrigin
from tailrace.api.routes.chat import prepare_completion
from tailrace.api.routes.completions import prepare_texts, prompts_of
from tailrace.api.routes.responses import prepare_response
from tailrace.api.sampling import change_params, check_records, estimate_effort
from tailrace.api.schema.chat import CHAT_REFUSED, ChatRequest
from tailrace.api.schema.common import TOLERATED, GenerateRequest
from tailrace.api.schema.completions import COMPLETION_REFUSED, CompletionRequest
from tailrace.api.schema.explain import OF_EXPLANATIONS, ExplainAnswer, ExplainRequest
from tailrace.api.schema.responses import RESPONSES_REFUSED, ResponsesRequest
from tailrace.api.service import Service
from tailrace.api.stored import OutputOrigin, origins
from tailrace.api.streaming import json_response
from tailrace.api.verdict import write_verdict
from tailrace.api.work_queue import JSON_BYTES
from tailrace.api.worker_queries import ask_stored
from tailrace.errors import ParameterError, nest_error
from tailrace.explain.record import ExplainOptions
from tailrace.params import SamplingParams
from tailrace.wire.messages import Replay


async def prepare_explained_chat(received: Received[ChatRequest]) -> PreparedRequest:
    """Of /v1/chat/completions."""
    return (await prepare_completion(received))[0]


async def prepare_explained_completion(received: Received[CompletionRequest]) -> PreparedRequest:
    """Of /v1/completions."""
    return await prepare_texts(received, received.ask, prompts_of(received.ask.prompt))


async def prepare_explained_response(received: Received[ResponsesRequest]) -> PreparedRequest:
    """Of /v1/responses."""
    return (await prepare_response(received))[0]


class Answered(NamedTuple):
    """How requests of an endpoint are read and prepared again."""

    reader: BodyReader[Any]
    prepare: Callable[[Received[Any]], Awaitable[PreparedRequest]]


# the field that says which endpoint has answered → its requests
ENDPOINTS: dict[str, Answered] = {
    "messages": Answered(BodyReader(ChatRequest, CHAT_REFUSED, OF_EXPLANATIONS), prepare_explained_chat),
    "prompt": Answered(
        BodyReader(CompletionRequest, COMPLETION_REFUSED, OF_EXPLANATIONS), prepare_explained_completion
    ),
    "input": Answered(BodyReader(ResponsesRequest, RESPONSES_REFUSED, OF_EXPLANATIONS), prepare_explained_response),
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
READER = BodyReader(ExplainRequest, {}, THEIRS | ALIASES)
KNOWN = (THEIRS | ALIASES).union(ExplainRequest.__struct_fields__)
# what says nothing of a stored response's request: that is stored as it was
WITH_RESPONSE_ID = frozenset({"response_id", "positions", "explain", "what_if"}) | TOLERATED
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def explain_output(request: Request) -> Response:
    """Why the tokens of an output came."""
    raw = await read_raw(request)
    asked = (await READER.decode(request, raw)).ask
    given = [name for name in (*ENDPOINTS, "response_id") if getattr(asked, name) not in (UNSET, None)]
    if len(given) != 1:
        raise ParameterError(
            "messages: one of messages, prompt, input and response_id must be given: the request that was answered",
            "messages",
        )
    front, stored = front_of(request), None
    if asked.response_id is not None:
        await front.work_queue.run(request, partial(check_stored, raw), len(raw) // JSON_BYTES)
        stored = await stored_output(request, asked.response_id)
        body = Body(GenerateRequest(model=stored.model), len(raw), BodyNames({}, {}))
    else:
        body = await ENDPOINTS[given[0]].reader.decode(request, raw)
    service = front.find(body.ask.model)
    service.supervisor.check()
    received: Received[Any] = Received(request, body, service)
    return await received.answer(partial(explain_received, asked, given[0], stored))


async def explain_received(
    asked: ExplainRequest, field: str, stored: OutputOrigin | None, received: Received[Any]
) -> Response:
    """The answer, once the request is known. field: which one of ENDPOINTS has answered. stored: the response's
    output, where the request names a stored one."""
    service, request = received.service, received.request
    index, output = (0, stored) if stored is not None else await given_output(received, asked, field)
    positions = sorted({*(range(len(output.output)) if asked.positions is None else asked.positions)})
    options = asked.explain if isinstance(asked.explain, ExplainOptions) else ExplainOptions()
    check_records(options, len(positions), "positions")
    replay = Replay(
        output=output.output,
        positions=positions,
        options=options,
        index=index,
        key=output.key,
        what_if=None if asked.what_if is None else await other_parameters(received, output, asked.what_if),
    )
    origin = received.origin("chat", received.ask)._replace(streamed=False, cache_salt=output.cache_salt)
    reserve_replay(origin, output)
    explained = ExplainedOutput(service, f"explain-{origin.request_id}", output, replay, origin)
    answer = make_answer(service, explained, output)
    return json_response(await unless_disconnected(request.receive, answer, lambda: explained.abort("disconnect")))


def reserve_replay(origin: RequestOrigin, output: OutputOrigin) -> None:
    """Reserve what an explanation of an output computes: its prompt and the output.

    Raises:
        ParameterError: the two would never be within the limit. RateLimitError: the user has fewer tokens left.
    """
    admission = origin.admission
    if admission is None or not (most := admission.rates.tokens):
        return
    prompt_tokens, output_tokens = len(output.prompt), len(output.output)
    if prompt_tokens + output_tokens > most:
        raise ParameterError(
            f"output_token_ids: {output_tokens} tokens and {prompt_tokens} of the prompt are more than the {most} "
            "tokens that a user has per minute (--tokens-per-minute)",
            "output_token_ids",
        )
    admission.reserve(prompt_tokens + output_tokens)


async def make_answer(service: Service, explained: ExplainedOutput, output: OutputOrigin) -> ExplainAnswer:
    """The answer, once all records have come."""
    await explained.finished()
    labels, records, difference = service.labels, explained.records, explained.difference
    size = CHARS * sum(len(record.ids) * (1 + len(record.refinements)) for record in records)
    eos, last = service.client.model.eos_token_ids, output.output[-1]
    stop = explained.stop_token_id
    if stop is None and output.params.grammar is None and last in (*eos, *output.params.stop_token_ids):
        stop = last  # the engine names it only after a check of the last token

    def encode_explanations() -> list[msgspec.Raw]:
        spelt = spell_output(service.tokenizer, output, eos, stop)
        return [encode_record(labels, r, (spelt[r.index] or b"") if r.index in spelt else None) for r in records]

    written = await explained.run(encode_explanations, size + len(output.output))
    return ExplainAnswer(
        id=explained.id,
        created=int(time.time()),
        model=service.model_name,
        prompt_token_ids=output.prompt,
        explanations=written,
        consistent=difference is None,
        first_difference=None if difference is None else difference.position,
        verdict=write_verdict(
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
        RequestNotFoundError: it is not stored (any more). ParameterError: it is not over, or another version has
            stored it.
    """
    found = await ask_stored(request, "origin", id, "response_id")
    if not found:
        raise ParameterError("response_id: the response is not over, or has no output", "response_id")
    try:
        return origins.decode(found)
    except msgspec.DecodeError as error:
        raise ParameterError(
            "response_id: another version of tailrace has stored the response; it can't be explained", "response_id"
        ) from error


async def given_output(received: Received[Any], asked: ExplainRequest, field: str) -> tuple[int, OutputOrigin]:
    """The request that was answered, prepared again, with its output; and which of its sequences that is.

    Raises:
        RequestError: naming the field.
    """
    ask = received.ask
    if getattr(ask, "use_beam_search", None):
        raise ParameterError("use_beam_search: a beam search draws nothing that could be explained", "use_beam_search")
    if not asked.output_token_ids:
        raise ParameterError("output_token_ids must hold the output's token ids", "output_token_ids")
    prepared = await ENDPOINTS[field].prepare(received)
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
    model = received.service.model_name
    output = OutputOrigin(
        model, prepared.prompts[choice // n], prepared.params, key, asked.output_token_ids, ask.cache_salt or ""
    )
    return choice % n, output


async def other_parameters(received: Received[Any], output: OutputOrigin, what_if: dict[str, Any]) -> SamplingParams:
    """The parameters of the request with these fields instead.

    Raises:
        ParameterError: naming the field.
    """
    tokenizer = received.service.tokenizer
    try:
        made, _ = resolve_aliases(what_if, GenerateRequest.__struct_fields__)
        what_if = {name: what_if[name] for name in what_if if name not in ALIASES} | made
        ask = msgspec.convert(what_if, GenerateRequest)
        work = partial(change_params, output.params, ask, what_if, tokenizer)
        return await received.run(work, estimate_effort(ask, 0))
    except msgspec.ValidationError as error:
        raise nest_error("what_if", out_of_range(of_validation(error, GenerateRequest))) from error
    except ParameterError as error:
        raise nest_error("what_if", error) from error
