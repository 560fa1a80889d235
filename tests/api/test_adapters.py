"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: what front ends know of adapters that come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from api.harness import NAME, LocalClient, front_of, saying
from tailrace.wire.messages import AdapterChange, AdapterOutcome

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class Adaptable(LocalClient):
    """A client whose engine has adapters by name alone; `outcome` is how it answers."""

    outcome = AdapterOutcome()
    answers = True

    async def ask(self, question: str, argument: str, timeout_s: float = 1.0) -> list[bytes]:
        if not self.answers:
            await asyncio.sleep(timeout_s)
        change = msgspec.json.decode(argument, type=AdapterChange)
        self.asked = (question, change)
        if not self.outcome.code:
            names = [name for name in self.engine.info.adapters if name != change.name]
            names += [change.name] * (question == "load_adapter")
            self.engine.runner.adapters = tuple(names)
            self.engine.info = self._streams.model = msgspec.structs.replace(self.engine.info, adapters=names)
        return [msgspec.json.encode(self.outcome)]


@pytest.fixture
async def front(tokenizer):
    async with front_of(Adaptable(saying(b"Hello")), tokenizer) as front:
        yield front


async def post(front, path: str, **body: Any) -> httpx.Response:
    return await front.http.post(path, json=body)


async def names(front) -> dict[str, str | None]:
    """The names in /v1/models, each with its parent."""
    cards = (await front.http.get("/v1/models")).json()["data"]
    return {card["id"]: card.get("parent") for card in cards}


async def test_an_adapter_comes_and_goes(front):
    assert (await front.complete(model="a")).status_code == 404
    loaded = await post(front, LOAD, lora_name="a", lora_path="some/where", load_inplace=True)
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'a' added successfully.")
    assert front.client.asked == ("load_adapter", AdapterChange("a", "some/where", True))
    await post(front, LOAD, lora_name="b", lora_path="b")
    assert await names(front) == {NAME: None, "a": NAME, "b": NAME}
    answer = await front.complete(model="a")
    assert (answer.json()["model"], answer.json()["choices"][0]["text"]) == ("a", "Hello")
    gone = await post(front, UNLOAD, lora_name="a")
    assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'a' removed successfully.")
    assert await names(front) == {NAME: None, "b": NAME}
    assert (await front.complete(model="a")).status_code == 404
    assert (await front.complete(model="b")).status_code == 200


async def test_a_running_request_is_under_the_same_roof(front):
    """Requests of an adapter are the model's: they are counted, drained and cancelled with it."""
    await post(front, LOAD, lora_name="a", lora_path="a")
    front.client.hold = True
    running = asyncio.create_task(front.complete(model="a", request_id="r"))
    await front.until(lambda: bool(front.service.open_requests))
    await post(front, UNLOAD, lora_name="a")
    front.client.hold = False
    assert (await running).json()["choices"][0]["text"] == "Hello"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_name": NAME, "lora_path": "x"}, "lora_name"),
        ({"lora_path": "x"}, "lora_name"),
        ({"lora_name": "a"}, "lora_path"),
        ({"lora_name": 5, "lora_path": "x"}, "lora_name"),
        ({"lora_name": "c", "lora_path": "x", "model": "a"}, "model"),
        ({"lora_name": "c", "lora_path": "x", "is_3d_lora_weight": True}, "is_3d_lora_weight"),
    ],
)
async def test_wrong_fields(front, body, param):
    await post(front, LOAD, lora_name="a", lora_path="a")
    answer = await post(front, LOAD, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert await names(front) == {NAME: None, "a": NAME}


async def test_what_the_engine_refuses(front):
    front.client.outcome = AdapterOutcome("invalid_value", "lora_path must be …", "lora_path")
    answer = await post(front, LOAD, lora_name="a", lora_path="/etc")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora_path")
    front.client.outcome = AdapterOutcome("model_not_found", "lora_name: …", "lora_name")
    answer = await post(front, UNLOAD, lora_name="a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_an_engine_that_dies_answers_nobody(front):
    front.client.answers = False
    asked = asyncio.create_task(post(front, LOAD, lora_name="a", lora_path="a"))
    await asyncio.sleep(0)
    front.client.die()
    assert (await asyncio.wait_for(asked, 300)).status_code == 503
