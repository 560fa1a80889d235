"""SGLang's HTTP endpoints: names in a body by which somebody means a field of tailrace's, where SGLang reads none.

SGLang drops names that it does not know. Only a few endpoints read `custom_params`. A request whose field would be lost
gets an HTTP 400 that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import HTTPException
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_exec, get_spec

from tailrace.errors import ParameterError
from tailrace.integrations.sglang.own_fields import GENERATE, check_body

ENTRYPOINTS = "sglang.srt.entrypoints"
OPENAI = f"{ENTRYPOINTS}.openai.serving_base.OpenAIServingBase.handle_request"
RESPONSES = f"{ENTRYPOINTS}.openai.serving_responses.OpenAIServingResponses.create_responses"
MESSAGES = f"{ENTRYPOINTS}.anthropic.serving.AnthropicServing.handle_messages"
OLLAMA = f"{ENTRYPOINTS}.ollama.serving.OllamaServing"
SERVED = (OPENAI, RESPONSES, MESSAGES, f"{OLLAMA}.handle_chat", f"{OLLAMA}.handle_generate")
CONTRACT = f"{ENTRYPOINTS}.api_contract.generate_contract_error"  # SGLang's check of a body of /generate


def register_endpoint_hooks() -> None:
    """Register the hooks of all endpoints that generate."""
    for name in SERVED:
        HookRegistry.register(name, handle_checked_request, HookType.AROUND)
    HookRegistry.register(CONTRACT, find_generate_error, HookType.AFTER)


async def handle_checked_request(original: Any, serving: Any, request: Any, raw_request: Any = None) -> Any:
    """Wrap an endpoint: refuse names that SGLang drops."""
    try:
        if serves_tailrace() and hasattr(raw_request, "body"):  # gRPC's requests have none
            check_endpoint(orjson.loads(await raw_request.body()), type(request).model_fields, raw_request.url.path)
        return await original(serving, request, raw_request)
    except ParameterError as error:
        if not hasattr(serving, "create_error_response"):
            raise HTTPException(400, str(error)) from error
        return serving.create_error_response(str(error), param=error.param)


def find_generate_error(found: str | None, body: Any) -> str | None:
    """Extend SGLang's check of a body of /generate: also return an error for a name that SGLang drops."""
    if found is None and serves_tailrace() and isinstance(body, dict):
        try:
            check_endpoint(body, GenerateReqInput.__dataclass_fields__, GENERATE)
        except ParameterError as error:
            return str(error)
    return found


def check_endpoint(body: Mapping[str, Any], known: Mapping[str, Any], path: str) -> None:
    """Raise ParameterError for the first name that SGLang drops and by which somebody means a field of tailrace's.

    Args:
        known: the names that SGLang reads at this endpoint. Ollama's `options` are read as names of the body.
    """
    options = body.get("options") if "options" in known else None
    dropped = {name: value for name, value in body.items() if name not in known}
    check_body(dropped | (options if isinstance(options, dict) else {}), path, "custom_params" in known, has_drafts())


def serves_tailrace() -> bool:
    """Return whether tailrace samples for the server of this process."""
    return get_exec().kernel.sampling_backend == "tailrace"


def has_drafts() -> bool:
    """Return whether the server of this process has drafts."""
    return get_spec().speculative_algorithm is not None
