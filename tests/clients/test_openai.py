"""OpenAI's own client, in the newest version that the other clients can live with; the main suite has the newest of
all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, get_args

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import Field, TypeAdapter, ValidationError

from .conftest import KEY, NAME, Server

SLOW = "scripted:count:5"  # 5 ms a token
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=120) as made:
        yield made


def test_chat(client):
    answer = client.chat.completions.create(model=NAME, messages=QUESTION, temperature=0, max_completion_tokens=40)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream(client):
    ask = {"model": NAME, "messages": QUESTION, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_chat_stream_helper(client):
    """The helper that folds a stream itself, with events."""
    with client.chat.completions.stream(model=NAME, messages=QUESTION, temperature=0, max_tokens=40) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.content == said
    assert final.choices[0].finish_reason == "stop"


def test_chat_logprobs(client):
    answer = client.chat.completions.create(
        model=NAME, messages=QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    entries = answer.choices[0].logprobs.content
    said = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert said.removesuffix("<|im_end|>") == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0


def test_tools_reach_the_prompt(client):
    """Two shapes of a tool, and the answer of one that was called."""
    ask = {"model": NAME, "messages": QUESTION, "temperature": 0, "max_tokens": 16}
    tool = {"type": "function", "function": WEATHER}
    answer = client.chat.completions.create(**ask, tools=[tool], tool_choice="auto", parallel_tool_calls=False)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    turns = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    after = client.chat.completions.create(**ask | {"messages": turns}, tools=[tool])
    assert after.usage.prompt_tokens > answer.usage.prompt_tokens
    response = client.responses.create(
        model=NAME, input="Hello", max_output_tokens=8, tools=[{"type": "function", "strict": False, **WEATHER}]
    )
    assert response.tools[0].name == "get_weather"


def test_completions(client):
    ask = {"model": NAME, "prompt": ["1, 2, 3, 4,", "a, b, c,"], "temperature": 0, "max_tokens": 8, "logprobs": 2}
    whole = client.completions.create(**ask)
    assert "5" in whole.choices[0].text
    chunks = list(client.completions.create(**ask, stream=True))
    for i, choice in enumerate(whole.choices):
        assert choice.index == i
        assert "".join(choice.logprobs.tokens) == choice.text
        assert "".join(part.text for chunk in chunks for part in chunk.choices if part.index == i) == choice.text


def test_responses(client):
    ask = {"model": NAME, "input": QUESTION[0]["content"], "temperature": 0, "max_output_tokens": 40}
    whole = client.responses.create(**ask, metadata={"who": "test"})
    assert "Paris" in whole.output_text
    assert (whole.status, whole.error, whole.metadata) == ("completed", None, {"who": "test"})
    with client.responses.stream(**ask) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == said == whole.output_text
    kinds = [event.type for event in client.responses.create(**ask, stream=True)]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    more = client.responses.create(**ask | {"input": "And of Italy?"}, previous_response_id=whole.id)
    assert more.usage.input_tokens > whole.usage.total_tokens
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)


def test_every_required_field_is_there(client):
    """The client reads answers leniently: a missing field is found only by whoever uses it. So they are read strictly
    here, too."""
    chat = {"model": NAME, "messages": QUESTION, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    ask = {"model": NAME, "input": "Hello", "max_output_tokens": 3}
    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
    tool = {"type": "function", "strict": False, **WEATHER}
    event = Annotated[get_args(ResponseStreamEvent)[0], Field(discriminator="type")]
    answers = [
        (ChatCompletion, client.chat.completions.create(**chat)),
        *((ChatCompletionChunk, chunk) for chunk in client.chat.completions.create(**chat, **with_usage)),
        (Completion, client.completions.create(model=NAME, prompt="a", max_tokens=3, logprobs=2)),
        (Response, client.responses.create(**ask, tools=[tool])),
        *((event, told) for told in client.responses.create(**ask, stream=True)),
        *((Model, model) for model in client.models.list()),
    ]
    missing: set[str] = set()
    for kind, answer in answers:
        try:
            TypeAdapter(kind).validate_python(answer.to_dict())
        except ValidationError as error:
            missing |= {f"{type(answer).__name__}.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()}
    assert not missing, "\n".join(sorted(missing))


def test_models(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by


def test_errors(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-17", messages=QUESTION)
    assert (missing.value.code, missing.value.status_code) == ("model_not_found", 404)
    for field, value in (("temperature", -1), ("top_p", 3), ("n", 0), ("max_tokens", 10**6)):
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model=NAME, messages=QUESTION, **{field: value})
        assert bad.value.param == field
        assert bad.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=NAME, messages=QUESTION, temperature=-1, stream=True)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=NAME, prompt=[1] * 9000)
    assert long.value.code == "context_length_exceeded"


def test_async_streams(server):
    async def ask_many() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=120) as client:

            async def ask() -> str:
                stream = await client.chat.completions.create(
                    model=NAME, messages=QUESTION, temperature=0, max_tokens=12, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

            return await asyncio.gather(*(ask() for _ in range(8)))

    texts = asyncio.run(ask_many())
    assert len(set(texts)) == 1
    assert "Paris" in texts[0]


def test_keys(guarded):
    with openai.OpenAI(base_url=guarded.v1, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as wrong:
            client.models.list()
        assert wrong.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=guarded.v1, api_key=KEY, max_retries=0) as client:
        assert client.completions.create(model=NAME, prompt="a", max_tokens=2).usage.completion_tokens == 2


def test_a_client_tries_again_as_the_limits_say(serve):
    """A stream holds the user's only place. The client waits as long as it is told, and is served when the stream is
    over."""
    with (
        serve("--model", SLOW, "--requests-per-minute", "2", "--max-requests-per-user", "1") as server,
        openai.OpenAI(base_url=server.v1, api_key="none", max_retries=9, timeout=120) as client,
    ):
        ask = {"model": NAME, "prompt": [97]}
        stream = client.completions.create(**ask, stream=True)
        next(stream)
        waited = []

        def sleep_for_retry(*, response, _sleep=client._sleep_for_retry, **rest):
            waited.append(client._parse_retry_after_header(response.headers))
            stream.close()
            _sleep(response=response, **rest)

        client._sleep_for_retry = sleep_for_retry
        raw = client.completions.with_raw_response.create(**ask, max_tokens=1)
        assert set(waited) == {1.0}
        assert raw.headers["x-ratelimit-limit-requests"] == "2"
        assert int(raw.headers["x-ratelimit-remaining-requests"]) in (0, 1)
        with pytest.raises(openai.RateLimitError) as caught:
            [client.with_options(max_retries=0).completions.create(**ask, max_tokens=1) for _ in range(3)]
        error = caught.value
        assert (error.status_code, error.code, error.type) == (429, "rate_limit_exceeded", "requests")
        assert 0 < client._parse_retry_after_header(error.response.headers) <= 30


def test_a_request_beyond_its_users_limit_is_not_tried_again(serve):
    with (
        serve("--model", "scripted:next", "--tokens-per-minute", "50") as server,
        openai.OpenAI(base_url=server.v1, api_key="none", max_retries=9, timeout=120) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.completions.create(model=NAME, prompt=[1, 2], max_tokens=49)
    assert caught.value.param == "max_tokens"
