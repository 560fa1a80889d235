"""The acceptance tests of Open Responses (openresponses.org): their requests, and every answer and event read by types
that are made of the specification (the package openresponses-types).

The specification's own program needs Bun and is in no package. docs/clients.md says what it reported.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Union

import openresponses_types as spec
import pytest
from pydantic import TypeAdapter

from .conftest import NAME, Server

EVENTS = [kind for name, kind in vars(spec).items() if name.endswith("StreamingEvent")]
EVENT: TypeAdapter[Any] = TypeAdapter(Union[tuple(EVENTS)])  # noqa: UP007, the types are known at run time
IMAGE = "data:image/png;base64,iVBORw0KGgo="
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state"}},
        "required": ["location"],
    },
}


@pytest.fixture(autouse=True)
def hermes(agent: Server) -> None:
    """Set the calls' format: tests of coding agents leave the model with another one and a script."""
    agent.post("/format/hermes")


def say(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content} | fields


REQUESTS: dict[str, dict[str, Any]] = {
    "basic-response": {"input": [say("user", "Say hello in exactly 3 words.")]},
    "assistant-phase": {
        "input": [
            say("assistant", "I should answer with the saved number.", phase="commentary"),
            say("assistant", "The number is four.", phase="final_answer"),
            say("user", "Repeat only the number."),
        ]
    },
    "streaming-response": {"input": [say("user", "Count from 1 to 5.")], "stream": True},
    "system-prompt": {"input": [say("system", "You are a pirate."), say("user", "Say hello.")]},
    "tool-calling": {"input": [say("user", "What is the weather in Paris?")], "tools": [WEATHER]},
    "tool-calling-streaming": {
        "input": [say("user", "What is the weather in Paris?")],
        "tools": [WEATHER],
        "stream": True,
    },
    "multi-turn": {
        "input": [say("user", "My name is Alice."), say("assistant", "Hello Alice!"), say("user", "What is my name?")]
    },
}
COMPACTED = {
    "model": NAME,
    "prompt_cache_key": "a-key",
    "input": [
        say("user", "We agreed to launch on Tuesday and notify support first."),
        say("assistant", "Understood."),
    ],
}


def post(server: Server, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """The status of the answer, and its text."""
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    request = urllib.request.Request(server.v1 + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def read_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each of a type of the specification."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    for line in lines:
        EVENT.validate_json(line)
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", REQUESTS)
def test_acceptance(agent, name):
    body = {"model": NAME} | REQUESTS[name]
    status, text = post(agent, "/responses", body)
    assert status == 200, text
    if body.get("stream"):
        events = read_events(text)
        response = events[-1]["response"]
        assert events[-1]["type"] == "response.completed"
    else:
        events, response = [], json.loads(text)
    spec.ResponseResource.model_validate(response)
    assert response["status"] == "completed"
    kinds = [item["type"] for item in response["output"]]
    assert ("function_call" if "tools" in body else "message") in kinds
    if name == "tool-calling-streaming":
        types = {event["type"] for event in events}
        assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= types
        for end in ("added", "done"):
            items = [event["item"] for event in events if event["type"] == f"response.output_item.{end}"]
            assert "function_call" in [item["type"] for item in items]


def test_a_compacted_conversation_is_the_input_of_the_next_response(agent):
    status, text = post(agent, "/responses/compact", COMPACTED)
    assert status == 200, text
    made = json.loads(text)
    spec.CompactResource.model_validate(made)
    assert made["object"] == "response.compaction"
    assert made["output"][-1]["type"] == "compaction"
    status, text = post(agent, "/responses", {"model": NAME, "input": [*made["output"], say("user", "Continue.")]})
    assert status == 200, text
    spec.ResponseResource.model_validate(json.loads(text))
    assert post(agent, "/responses/compact", {"input": COMPACTED["input"]})[0] == 400  # without a model


def test_a_picture_is_refused_by_its_field(agent):
    """--foreign-content placeholder accepts it."""
    parts = [{"type": "input_text", "text": "What do you see?"}, {"type": "input_image", "image_url": IMAGE}]
    status, text = post(agent, "/responses", {"model": NAME, "input": [say("user", parts)]})
    assert (status, json.loads(text)["error"]["param"]) == (400, "input[0].content[1].type")
