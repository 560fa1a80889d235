"""What would go to the engine, and what becomes of the engine's refusal: for tests of fields that stop at
SamplingParams."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from api.harness import Front
from tailrace.params import SamplingParams
from tailrace.wire.messages import Failed, Submit

PATHS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "text": ("/v1/completions", {"prompt": "x="}),
    "responses": ("/v1/responses", {"input": "hi"}),
}


async def post(front: Front, kind: str, **fields: Any) -> httpx.Response:
    path, body = PATHS[kind]
    return await front.http.post(path, json=body | fields)


async def asked(front: Front, kind: str = "chat", **fields: Any) -> tuple[SamplingParams, dict[str, Any]]:
    """The parameters as they reach the engine, and the error that the client gets where the engine refuses the
    grammar."""
    seen: list[Submit] = []

    def refuse(message: Submit) -> None:
        seen.append(message)
        failed = Failed(message.id, message.epoch, 0, "invalid_value", "grammar: too large", "grammar")
        front.client.streams.deliver_messages([failed])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front.client.engine, "submit", refuse)
        answer = await post(front, kind, **fields)
    assert seen, answer.text
    assert answer.status_code == 400
    return seen[0].params, answer.json()["error"]


async def refusal(front: Front, kind: str = "chat", **fields: Any) -> dict[str, Any]:
    """The error of a request that does not get so far."""
    answer = await post(front, kind, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert not front.client.engine.requests
    return error
