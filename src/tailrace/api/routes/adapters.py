"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: LoRA adapters that come and go while the server runs."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.responses import PlainTextResponse, Response

from tailrace.api.body import BodyReader
from tailrace.api.disconnect import cancel_all
from tailrace.api.front_end import front_of
from tailrace.api.received import Received, answers
from tailrace.api.schema.adapters import LOAD_REFUSED, UNLOAD_REFUSED, LoadAdapterRequest, UnloadAdapterRequest
from tailrace.api.service import Service
from tailrace.errors import BY_CODE, EngineError, NotReadyError, ParameterError, RequestError, format_json
from tailrace.wire.messages import AdapterChange, AdapterOutcome

LOAD = BodyReader(LoadAdapterRequest, LOAD_REFUSED)
UNLOAD = BodyReader(UnloadAdapterRequest, UNLOAD_REFUSED)


@answers(LOAD)
async def load_adapter(received: Received[LoadAdapterRequest]) -> Response:
    """Load an adapter; requests may use it once this has answered."""
    ask, service, front = received.ask, received.service, front_of(received.request)
    if service.adapter:
        raise ParameterError(f"model: {format_json(service.adapter)} is an adapter, and takes none", "model")
    taken = front.served.get(ask.lora_name)
    if taken is not None and taken.parent != service.base_name:
        raise ParameterError(f"lora_name: {format_json(ask.lora_name)} is the name of a model", "lora_name")
    change = AdapterChange(ask.lora_name, ask.lora_path, bool(ask.load_inplace))
    await change_adapters(service, "load_adapter", change)
    return PlainTextResponse(f"Success: LoRA adapter '{ask.lora_name}' added successfully.")


@answers(UNLOAD)
async def unload_adapter(received: Received[UnloadAdapterRequest]) -> Response:
    """Unload an adapter. Requests that use it finish; new ones are a 404."""
    name, adapted = received.ask.lora_name, front_of(received.request).adapted
    service = adapted[name] if received.ask.model is None and name in adapted else received.service
    await change_adapters(service, "unload_adapter", AdapterChange(name))
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


async def change_adapters(service: Service, question: str, change: AdapterChange) -> None:
    """Let the engine change its adapters, and wait until all front ends know of the change.

    Raises:
        RequestError: the engine refuses the change. NotReadyError: it has ended, could not be loaded after a sleep, or
            has not answered in time.
    """
    client, timeout_s = service.client, service.config.start_timeout_s
    if client.asleep:
        await client.sleep.wait_until_awake()
    asked = asyncio.ensure_future(client.ask(question, msgspec.json.encode(change).decode(), timeout_s))
    died = asyncio.ensure_future(client.died.wait())
    try:
        await asyncio.wait({asked, died}, return_when=asyncio.FIRST_COMPLETED)
        found = asked.result() if asked.done() else []
    finally:
        await cancel_all(asked, died)
    if not found:
        raise NotReadyError("the engine has ended, or has not answered in time; /v1/models lists the adapters")
    outcome = msgspec.json.decode(found[0], type=AdapterOutcome)
    if outcome.code:
        kind = BY_CODE.get(outcome.code, EngineError)
        raise kind(outcome.message, outcome.param) if issubclass(kind, RequestError) else kind(outcome.message)
    if service.config.front_ends > 1:
        await client.ask("settled", " ")  # the engine told them of the change before it passes this on
