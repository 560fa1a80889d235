"""Anthropic's own client: whole and streamed messages, its streaming helper, tools, thinking, counting, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime

import anthropic
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter, ValidationError

from .conftest import KEY, NAME, Server

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
GREEDY = {"extra_body": {"temperature": 0}}
TOOL = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def scripted(agent: Server) -> Iterator[anthropic.Anthropic]:
    """See scripted_agent.py."""
    with anthropic.Anthropic(base_url=agent.url, api_key="none", max_retries=0, timeout=120) as made:
        made.post("/format/hermes", cast_to=object)
        yield made


def test_a_message(client):
    answer = client.messages.create(model=NAME, max_tokens=40, messages=QUESTION, system="You are brief.", **GREEDY)
    assert "Paris" in answer.content[0].text
    assert (answer.stop_reason, answer.role) == ("end_turn", "assistant")
    assert answer._request_id


def test_the_streaming_helper(client):
    ask = {"model": NAME, "max_tokens": 40, "messages": QUESTION, **GREEDY}
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_async(server):
    async def ask() -> str:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            stream = await client.messages.create(model=NAME, max_tokens=20, messages=QUESTION, stream=True, **GREEDY)
            return "".join([e.delta.text async for e in stream if e.type == "content_block_delta"])

    assert "Paris" in asyncio.run(ask())


def test_counting(client):
    counted = client.messages.count_tokens(model=NAME, messages=QUESTION, system="You are brief.", tools=[TOOL])
    answer = client.messages.create(model=NAME, max_tokens=2, messages=QUESTION, system="You are brief.", tools=[TOOL])
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == counted.input_tokens


def test_stops_and_prefill(client):
    turns = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    answer = client.messages.create(model=NAME, max_tokens=20, messages=turns, stop_sequences=["."], **GREEDY)
    assert answer.content[0].text.strip().startswith("Paris")
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", ".")
    assert client.messages.create(model=NAME, max_tokens=2, messages=QUESTION, **GREEDY).stop_reason == "max_tokens"


def test_structured_output(client):
    class Capital(BaseModel):
        city: str

    answer = client.messages.parse(model=NAME, max_tokens=60, messages=QUESTION, output_format=Capital, **GREEDY)
    assert answer.parsed_output.city


def test_thinking_and_a_tool(scripted):
    """A thought and a call go out, and come back in with the result."""
    turns = [{"role": "user", "content": "think: what is the weather in Paris?"}]
    ask = {"model": NAME, "max_tokens": 2000, "tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024}}
    with scripted.messages.stream(**ask, messages=turns) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_message()
    assert {"thinking", "signature", "input_json"} <= set(kinds)
    thought, call = first.content
    assert (thought.thinking, call.name, call.input) == ("hm", "get_weather", {"city": "Paris"})
    assert first.stop_reason == "tool_use"
    assert first.usage.output_tokens_details.thinking_tokens == len("hm")
    parts = [{"type": "text", "text": "sunny"}]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": parts, "is_error": True}
    turns += [first.to_param(), {"role": "user", "content": [result]}]
    last = scripted.messages.create(**ask, messages=turns)
    assert last.content[-1].text == "They say: Error: sunny"


def test_the_tool_runner(scripted):
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Its name.
        """
        return f"sunny in {city}"

    ask = {"model": NAME, "max_tokens": 500, "messages": [{"role": "user", "content": "Weather?"}]}
    final = scripted.beta.messages.tool_runner(**ask, tools=[get_weather]).until_done()
    assert final.content[0].text == "They say: sunny in Paris"


def test_every_answer_is_of_the_clients_types(scripted):
    """The client reads answers leniently, so the bytes are read strictly here."""
    wrong: set[str] = set()

    def check(kind: type, data: bytes | str) -> None:
        try:
            TypeAdapter(kind).validate_json(data, strict=True)
        except ValidationError as error:
            wrong.update(f"{kind}.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())

    for word in ("think", "hello"):
        for more in ({}, {"tools": [TOOL]}, {"max_tokens": 3}, {"tools": [TOOL], "max_tokens": 30}):
            ask = {"model": NAME, "max_tokens": 500, "messages": [{"role": "user", "content": word}]} | more
            whole = scripted.messages.with_raw_response.create(**ask).http_response.content
            check(Message, whole)
            assert b'"citations"' not in whole  # null there is the client's type, and the AI SDK refuses it
            with scripted.messages.with_streaming_response.create(**ask, stream=True) as stream:
                for line in stream.iter_lines():
                    if line.startswith("data: "):
                        check(RawMessageStreamEvent, line.removeprefix("data: "))
            counted = {name: value for name, value in ask.items() if name != "max_tokens"}
            check(MessageTokensCount, scripted.messages.with_raw_response.count_tokens(**counted).http_response.content)
    assert not wrong, "\n".join(sorted(wrong))


def test_errors(client):
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="gpt-17", max_tokens=5, messages=QUESTION)
    assert (missing.value.type, missing.value.error_code) == ("not_found_error", "model_not_found")
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(model=NAME, max_tokens=0, messages=QUESTION)
    assert (bad.value.type, bad.value.body["error"]["details"]["param"]) == ("invalid_request_error", "max_tokens")
    assert bad.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model=NAME, max_tokens=5, messages=[{"role": "user", "content": "word " * 9000}])


def ask_with(server: Server, key: dict[str, str]) -> Message:
    with anthropic.Anthropic(base_url=server.url, max_retries=0, **key) as client:
        return client.messages.create(model=NAME, max_tokens=5, messages=QUESTION)


@pytest.mark.parametrize("name", ["api_key", "auth_token"])
def test_keys(guarded, name):
    assert ask_with(guarded, {name: KEY}).usage.output_tokens == 5
    with pytest.raises(anthropic.AuthenticationError):
        ask_with(guarded, {name: "wrong"})


def test_a_client_tries_again_as_the_limits_say(serve):
    """A stream holds the user's only place. The client waits as long as it is told, and is served when the stream is
    over."""
    with (
        serve("--requests-per-minute", "2", "--max-requests-per-user", "1") as server,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=9, timeout=120) as client,
    ):
        ask = {"model": NAME, "messages": QUESTION}
        stream = client.messages.create(**ask, max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        waited = []

        def calculate_timeout(*given, _calculate=client._calculate_retry_timeout, **named):
            waited.append(_calculate(*given, **named))
            stream.close()
            return waited[-1]

        client._calculate_retry_timeout = calculate_timeout
        raw = client.messages.with_raw_response.create(**ask, max_tokens=1)
        assert set(waited) == {1.0}
        assert raw.headers["anthropic-ratelimit-requests-limit"] == "2"
        assert int(raw.headers["anthropic-ratelimit-requests-remaining"]) in (0, 1)
        assert datetime.fromisoformat(raw.headers["anthropic-ratelimit-requests-reset"]).tzinfo is not None
        with pytest.raises(anthropic.RateLimitError) as caught:
            [client.with_options(max_retries=0).messages.create(**ask, max_tokens=1) for _ in range(3)]
        error = caught.value
        assert error.body["error"]["type"] == "rate_limit_error"
        assert 0 < client._parse_retry_after_header(error.response.headers) <= 30
