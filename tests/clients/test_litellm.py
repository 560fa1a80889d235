"""LiteLLM, as a client (its proxy calls the same functions)."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
import pytest

from .conftest import KEY, NAME, Server

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture
def ask(server: Server) -> dict[str, Any]:
    """What every call says."""
    return {"model": f"openai/{NAME}", "api_base": server.v1, "api_key": "none", "temperature": 0, "max_retries": 0}


def test_chat(ask):
    answer = litellm.completion(**ask, messages=QUESTION, max_tokens=40)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream(ask):
    whole = litellm.completion(**ask, messages=QUESTION, max_tokens=40)
    chunks = list(
        litellm.completion(**ask, messages=QUESTION, max_tokens=40, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    rebuilt = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert rebuilt.choices[0].message.content == whole.choices[0].message.content
    assert rebuilt.choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_async_stream(ask):
    async def read() -> str:
        stream = await litellm.acompletion(**ask, messages=QUESTION, max_tokens=40, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert "Paris" in asyncio.run(read())


def test_logprobs_and_tools(ask):
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    answer = litellm.completion(
        **ask, messages=QUESTION, max_tokens=5, logprobs=True, top_logprobs=2, tools=[tool], tool_choice="auto"
    )
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in answer.choices[0].logprobs.content)


def test_text_completion(ask):
    ask["model"] = f"text-completion-openai/{NAME}"
    whole = litellm.text_completion(**ask, prompt="1, 2, 3, 4,", max_tokens=8)
    assert "5" in whole.choices[0].text
    assert whole.usage.completion_tokens == 8
    chunks = list(litellm.text_completion(**ask, prompt="1, 2, 3, 4,", max_tokens=8, stream=True))
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == whole.choices[0].text


def test_responses(ask):
    whole = litellm.responses(**ask, input=QUESTION[0]["content"], max_output_tokens=40)
    assert whole.status == "completed"
    text = whole.output[0].content[0].text
    assert "Paris" in text
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    events = list(litellm.responses(**ask, input=QUESTION[0]["content"], max_output_tokens=40, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    assert events[-1].type == "response.completed"


def test_extra_parameters(ask):
    answer = litellm.completion(
        **ask, messages=QUESTION, max_tokens=4, extra_body={"allowed_token_ids": [260, 253], "return_token_ids": True}
    )
    assert answer.usage.completion_tokens == 4
    assert set(answer.choices[0].provider_specific_fields["token_ids"]) <= {260, 253}


def test_errors(ask):
    with pytest.raises(litellm.NotFoundError, match="gpt-17"):
        litellm.completion(**ask | {"model": "openai/gpt-17"}, messages=QUESTION)
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**ask | {"temperature": -1}, messages=QUESTION)


def test_a_prompt_too_long_is_told_apart(ask):
    """Its fallbacks to a model with a larger context hang on that, and it goes by the words of the message."""
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**ask, messages=[{"role": "user", "content": "word " * 9000}])


def test_keys(ask, guarded):
    """A wrong key, too, is known by the words of the message alone."""
    ask["api_base"] = guarded.v1
    answer = litellm.completion(**ask | {"api_key": KEY}, messages=QUESTION, max_tokens=3)
    assert answer.usage.completion_tokens == 3
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**ask | {"api_key": "wrong"}, messages=QUESTION)
