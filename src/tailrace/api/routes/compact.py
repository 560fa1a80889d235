"""POST /v1/responses/compact: a conversation → the messages of the user and a summary of all else, which clients send
back in place of the conversation (decision 0106)."""

from __future__ import annotations

import time
from uuid import uuid4

from starlette.responses import Response

from tailrace.api.aggregate import last_seen
from tailrace.api.body import Body, BodyNames, BodyReader
from tailrace.api.disconnect import unless_disconnected
from tailrace.api.kept_items import name_item
from tailrace.api.received import Received, answers
from tailrace.api.response_input import read_input
from tailrace.api.response_run import ResponseRun
from tailrace.api.routes.responses import start_response
from tailrace.api.schema.conversations import CompactedResponse, CompactRequest
from tailrace.api.schema.response_items import InputItem
from tailrace.api.schema.responses import ResponseObject, ResponsesRequest
from tailrace.api.streaming import json_response
from tailrace.api.truncation import ROOM
from tailrace.errors import ContextLengthError, EngineError, ParameterError

READER = BodyReader(CompactRequest, {})
ORDER = (
    "Summarise this conversation for an assistant who will continue it and will see only your summary and the messages "
    "of the user. State the task, what was decided, what was done and with what result, each fact, name, path and "
    "value that is still needed, and what is left to do. Write the summary alone."
)
HEADING = "Summary of the conversation so far:\n\n"


@answers(READER)
async def compact_response(received: Received[CompactRequest]) -> Response:
    """The model writes the summary. It is encrypted, because clients must send it back unchanged."""
    asked, request = received.ask, received.request
    inner = Received(
        request, Body(order_summary(asked), received.size, BodyNames(received.names, {})), received.service
    )
    run = await start_response(inner)
    made = await unless_disconnected(request.receive, finish_run(run), lambda: run.generation.abort("disconnect"))
    received.warnings |= inner.warnings
    summary = read_summary(made, received.service.client.model.max_model_len // ROOM)
    said = [name_item(item) for item in run.saver.items[:-1] if item.get("role") == "user"]  # without ORDER
    sealed = received.front.sealer.seal("compaction", received.user, HEADING + summary)
    item = {"id": f"cmp_{uuid4().hex}", "type": "compaction", "encrypted_content": sealed}
    return json_response(
        CompactedResponse(id=made.id, created_at=int(time.time()), output=[*said, item], usage=made.usage)
    )


def order_summary(asked: CompactRequest) -> ResponsesRequest:
    """Return the request for a response that is the summary.

    Raises:
        ParameterError: there is no conversation.
    """
    given = read_input(asked.input or [])
    if not given and asked.previous_response_id is None:
        raise ParameterError("input: a conversation to compact is missing", "input")
    return ResponsesRequest(
        model=asked.model,
        input=[*given, InputItem(role="user", content=ORDER)],
        instructions=asked.instructions,
        previous_response_id=asked.previous_response_id,
        cache_salt=asked.cache_salt,
        priority=asked.priority,
        store=False,
    )


async def finish_run(run: ResponseRun) -> ResponseObject:
    """The response at its end."""
    return await last_seen(run.events(), lambda event: event.response)


def read_summary(made: ResponseObject, room: int) -> str:
    """Return the text that the model wrote.

    Args:
        room: tokens that a conversation must leave for its summary.

    Raises:
        ContextLengthError: the conversation left less, and the summary was cut. EngineError: the model failed, was cut
            nevertheless, or wrote none.
    """
    written = made.usage.output_tokens if made.usage else room
    if made.incomplete_details and made.incomplete_details.reason == "max_output_tokens" and written < room:
        raise ContextLengthError(
            f"input: the conversation leaves {written} tokens of the context, which are too few for its summary",
            "input",
        )
    texts = [part.text for item in made.output if item.type == "message" for part in item.content or ()]
    if made.status != "completed" or not "".join(texts).strip():
        why = made.error.message if made.error else made.incomplete_details and made.incomplete_details.reason
        raise EngineError(f"the model wrote no whole summary: {why or 'its answer is empty'}")
    return "\n\n".join(texts)
