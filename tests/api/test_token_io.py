"""Token in, token out: render → generate → derender is the chat itself, with the same seed."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.harness import EOS, VOCAB, Front, LocalClient, endless, events, front_of, random_row, saying
from tailrace.api.presets import PRESETS
from tailrace.config import ServerConfig

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 24}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = b'<think>Hm.</think>So:\n<tool_call>\n{"name": "weather", "arguments": {"at": "Rome"}}\n</tool_call>'
# fields of vLLM 0.33's models
RENDERED = {"request_id", "token_ids", "token_offsets", "sampling_params", "model", "stream", "stream_options"} | {
    *("cache_salt", "priority", "return_token_ids")
}
ANSWER = {"request_id", "model", "created", "usage", "prompt_token_ids", "choices", "output_mode"}
CHOICE = {"index", "finish_reason", "stop_reason", "token_ids", "logprobs"}


@pytest.fixture
async def noisy(tokenizer) -> AsyncIterator[Front]:
    """A model that says anything."""
    async with front_of(LocalClient(random_row), tokenizer) as front:
        yield front


async def post(front: Front, path: str, body: Any, status: int = 200) -> Any:
    answer = await front.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def go_round(front: Front, chat: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A chat by its tokens."""
    rendered = await post(front, "/v1/chat/completions/render", chat)
    assert set(rendered) == RENDERED
    generated = await post(front, "/inference/v1/generate", rendered)
    assert set(generated) == ANSWER
    assert all(set(choice) == CHOICE for choice in generated["choices"])
    body = {"generate_response": generated, "chat_request": chat} | changes
    return await post(front, "/v1/chat/completions/derender", body)


def compare(derendered: dict[str, Any], chat: dict[str, Any]) -> None:
    """The same, but for what has no equal in two answers."""
    for answer in (derendered, chat):
        del answer["id"], answer["created"]
        answer["usage"].pop("prompt_tokens_details")
        for choice in answer["choices"]:
            for call in choice["message"].get("tool_calls", ()):
                del call["id"]
    assert derendered == chat


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1},
        {"logprobs": True, "top_logprobs": 3},
        {"logprobs": True},
        {"stop": ["e", "\n"]},
        {"stop": ["a"], "include_stop_str_in_output": True},
        {"stop_token_ids": [101, 102]},
        {"logit_bias": {"97": 9.0}, "bad_words": ["b"], "allowed_token_ids": [*range(90, 120)]},
        {"dry_multiplier": 0.8, "xtc_probability": 0.5, "top_n_sigma": 2.0, "no_repeat_ngram_size": 3},
        {"return_token_ids": True},
        {"max_tokens": None},
        {"preset": next(iter(PRESETS))},
        {"ignore_eos": True, "min_tokens": 3},
        {"tools": [WEATHER]},
    ],
    ids=json.dumps,
)
async def test_the_round_is_the_chat(noisy, fields):
    chat = CHAT | {"seed": 5} | fields
    compare(await go_round(noisy, chat), await post(noisy, "/v1/chat/completions", chat))


async def test_thoughts_and_calls(tokenizer):
    config = ServerConfig(reasoning_parser="think", tool_parser="hermes")
    chat = CHAT | {"tools": [WEATHER], "max_tokens": 150, "temperature": 0}
    async with front_of(LocalClient(saying(CALL)), tokenizer, config) as front:
        derendered = await go_round(front, chat)
        message = derendered["choices"][0]["message"]
        assert message["reasoning"] == "Hm."
        assert message["tool_calls"][0]["function"]["name"] == "weather"
        assert derendered["choices"][0]["finish_reason"] == "tool_calls"
        compare(derendered, await post(front, "/v1/chat/completions", chat))
        hidden = chat | {"include_reasoning": False}
        compare(await go_round(front, hidden), await post(front, "/v1/chat/completions", hidden))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ({"use_beam_search": True, "n": 2}, "use_beam_search"),
        ({"guidance_scale": 2.0, "negative_prompt": "no"}, "negative_prompt"),
        ({"prompt_logprobs": 2}, "prompt_logprobs"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 10_000}, "max_tokens"),
    ],
    ids=str,
)
async def test_what_can_not_be_rendered_is_refused(noisy, fields, param):
    error = (await post(noisy, "/v1/chat/completions/render", CHAT | fields, 400))["error"]
    assert error["param"] == param, error


async def test_the_prompt_is_the_one_of_the_template(front):
    rendered = await post(front, "/v1/chat/completions/render", CHAT | {"return_token_offsets": True})
    tokens = (await post(front, "/tokenize", {"messages": CHAT["messages"]}))["tokens"]
    assert rendered["token_ids"] == tokens
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    spelled = [text[begin:end] for begin, end in rendered["token_offsets"]]
    assert "".join(spelled) == text
    assert spelled[0] == "<|im_start|>"
    assert len(spelled) == len(tokens)
    assert (await post(front, "/v1/chat/completions/render", CHAT))["token_offsets"] is None
    for path in ("/v1/chat/completions", "/v1/completions"):
        error = await post(front, path, CHAT | {"return_token_offsets": True, "prompt": "x="}, 400)
        assert error["error"]["param"] in ("return_token_offsets", "prompt", "messages")


async def test_completions_of_several_prompts(noisy):
    ask = {"prompt": ["ab=", "cde="], "seed": 7, "max_tokens": 9, "n": 2, "return_token_offsets": True}
    rendered = await post(noisy, "/v1/completions/render", ask)
    assert [one["token_ids"] for one in rendered] == [[*b"ab="], [*b"cde="]]
    assert rendered[0]["token_offsets"] == [[0, 1], [1, 2], [2, 3]]
    assert len({one["request_id"] for one in rendered}) == 2
    generated = [await post(noisy, "/inference/v1/generate", one) for one in rendered]
    del ask["return_token_offsets"]
    body = {"generate_responses": generated, "completion_request": ask}
    derendered = await post(noisy, "/v1/completions/derender", body)
    whole = await post(noisy, "/v1/completions", ask)
    assert derendered["choices"] == whole["choices"]
    assert derendered["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    for fields, param in (
        ({"generate_responses": generated[:1]}, "generate_responses"),
        ({"prompt_tokens": [1]}, "prompt_tokens"),
        ({"completion_request": ask | {"echo": True}}, "completion_request.echo"),
    ):
        assert (await post(noisy, "/v1/completions/derender", body | fields, 400))["error"]["param"] == param


async def test_a_stream_of_tokens(noisy):
    rendered = await post(noisy, "/v1/chat/completions/render", CHAT | {"seed": 3, "n": 2})
    whole = await post(noisy, "/inference/v1/generate", rendered)
    options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    answer = await noisy.http.post("/inference/v1/generate", json=rendered | options)
    *chunks, last, done = events(answer.text)
    assert done == "[DONE]"
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert chunks[0]["prompt_token_ids"] == rendered["token_ids"]
    for choice in whole["choices"]:
        of = [new for chunk in chunks for new in chunk["choices"] if new["index"] == choice["index"]]
        assert [*itertools.chain(*(new["token_ids"] for new in of))] == choice["token_ids"]
        assert [new["finish_reason"] for new in of if new["finish_reason"]] == [choice["finish_reason"]]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [VOCAB]}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids[0]"),
        ({"token_ids": [1] * 300}, "token_ids"),
        ({"output_mode": "text"}, "output_mode"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_params": {"temperature": "x"}}, "sampling_params.temperature"),
        ({"sampling_params": {"max_tokens": 1000}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"xtc_probability": 0.5}}, "sampling_params.xtc_probability"),
        ({"sampling_params": {"nonsense": 1}}, "sampling_params.nonsense"),
        ({"sampling_params": {"prompt_logprobs": 1}}, "sampling_params.prompt_logprobs"),
        ({"sampling_params": {"extra_args": {"nonsense": 1}}}, "sampling_params.extra_args.nonsense"),
        ({"sampling_params": {"stop_token_ids": [VOCAB]}}, "sampling_params.stop_token_ids"),
        ({"sampling_params": {"logit_bias": {str(VOCAB): 1}}}, "sampling_params.logit_bias"),
        ({"sampling_params": {"extra_args": [1]}}, "sampling_params.extra_args"),
        ({"sampling_params": {"thinking_token_budget": 5}}, "sampling_params.thinking_token_budget"),
    ],
    ids=str,
)
async def test_what_is_refused_of_a_generation(front, fields, param):
    body = {"token_ids": [*b"x="], "sampling_params": {"max_tokens": 5}} | fields
    error = (await post(front, "/inference/v1/generate", body, 400))["error"]
    assert error["param"] == param, error


async def test_a_number_that_no_double_can_be(front):
    body = '{"token_ids": [97, 61], "sampling_params": {"temperature": 1e400}}'
    answer = await front.http.post("/inference/v1/generate", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "sampling_params.temperature")


async def test_the_defaults_of_vllms_parameters_ask_for_nothing(front):
    """As its own struct writes them."""
    defaults = {
        "n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "temperature": 0.0,
        "watermarking": None, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None, "stop": [], "stop_token_ids": [],
        "ignore_eos": False, "max_tokens": 16, "min_tokens": 0, "logprobs": None, "prompt_logprobs": None,
        "prompt_logprob_token_ids": None, "prompt_logprob_start": None, "logprob_token_ids": None,
        "flat_logprobs": False, "detokenize": True, "skip_special_tokens": True, "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False, "output_kind": 0, "stream_interval": None, "skip_clone": False,
        "output_text_buffer_length": 0, "_eos_token_id": None, "_all_stop_token_ids": [], "structured_outputs": None,
        "logit_bias": None, "allowed_token_ids": None, "extra_args": None, "bad_words": [],
        "skip_reading_prefix_cache": None, "thinking_token_budget": None, "repetition_detection": None,
        "routed_experts_prompt_start": 0, "trace_decode_token_ids": None,
    }  # fmt: skip
    answer = await post(front, "/inference/v1/generate", {"token_ids": [*b"x="], "sampling_params": defaults})
    assert answer["choices"][0]["token_ids"] == [*b"Hello", EOS]
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("choice", "changes", "param"),
    [
        ({"token_ids": [VOCAB]}, {}, "generate_response.choices[0].token_ids"),
        ({"token_ids": [97] * 300}, {}, "generate_response.choices[0].token_ids"),
        ({"index": -1}, {}, "generate_response.choices[0].index"),
        ({"index": 2**31}, {}, "generate_response.choices[0].index"),
        ({"index": 1}, {}, "generate_response.choices[1].index"),
        ({}, {"prompt_tokens": -1}, "prompt_tokens"),
        ({}, {"prompt_token_ids": []}, "prompt_token_ids"),
        ({}, {"chat_request": 5}, "chat_request"),
        ({"finish_reason": "odd"}, {}, "generate_response.choices[0].finish_reason"),
        ({}, {"prompt_token_ids": [VOCAB]}, "prompt_token_ids"),
        ({}, {"stream": True}, "stream"),
        ({}, {"chat_request": {}}, "chat_request.messages"),
        ({}, {"chat_request": CHAT | {"temperature": -1}}, "chat_request.temperature"),
        ({}, {"chat_request": CHAT | {"use_beam_search": True}}, "chat_request.use_beam_search"),
        ({}, {"chat_request": CHAT | {"logprobs": True}}, "generate_response.choices[0].logprobs.content"),
        ({}, {"generate_response": {"request_id": "a", "choices": []}}, "generate_response"),
    ],
    ids=str,
)
async def test_what_is_refused_of_outputs(front, choice, changes, param):
    choices = [{"index": 0, "finish_reason": "length", "token_ids": [*b"Hello"]} | choice]
    choices += [choices[0]] if choice.get("index") == 1 else []
    body = {"generate_response": {"request_id": "a", "choices": choices}, "chat_request": CHAT}
    error = (await post(front, "/v1/chat/completions/derender", body | changes, 400))["error"]
    assert error["param"] == param, error


@pytest.mark.parametrize("prompt", ["", [VOCAB], [[97], [VOCAB]]], ids=str)
async def test_prompts_that_can_not_be_generated_are_not_rendered(front, prompt):
    error = (await post(front, "/v1/completions/render", {"prompt": prompt}, 400))["error"]
    assert error["param"] == "prompt", error


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt_token_ids": [[VOCAB]]}, "prompt_token_ids[0]"),
        ({"prompt_token_ids": [[]]}, "prompt_token_ids[0]"),
        ({"prompt_tokens": [-1]}, "prompt_tokens[0]"),
        ({"completion_request": {"prompt": [VOCAB]}}, "completion_request.prompt"),
    ],
    ids=str,
)
async def test_what_is_refused_of_a_completions_outputs(front, changes, param):
    choices = [{"index": 0, "finish_reason": "length", "token_ids": [*b"Hello"]}]
    body = {"generate_responses": [{"request_id": "a", "choices": choices}], "completion_request": {"prompt": "hi"}}
    error = (await post(front, "/v1/completions/derender", body | changes, 400))["error"]
    assert error["param"] == param, error


async def test_both_names_of_the_model_are_checked(front):
    choices = [{"index": 0, "finish_reason": "length", "token_ids": [*b"Hello"]}]
    body = {"generate_response": {"request_id": "a", "choices": choices}, "chat_request": CHAT | {"model": "other"}}
    served = (await front.http.get("/v1/models")).json()["data"][0]["id"]
    error = (await post(front, "/v1/chat/completions/derender", body | {"model": served}, 400))["error"]
    assert error["param"] == "chat_request.model", error


async def test_a_generation_whose_client_leaves_ends(tokenizer):
    async with front_of(LocalClient(endless, tick_s=0.005), tokenizer) as front:
        body = {"token_ids": [*b"x="], "sampling_params": {"max_tokens": 200}, "stream": True}
        asked = asyncio.ensure_future(front.http.post("/inference/v1/generate", json=body))
        await front.until(lambda: bool(front.client.engine.running))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await front.until(front.client.idle)


MESSAGE = {"messages": [{"role": "user", "content": "hi"}], "system": "Be brief.", "max_tokens": 9}
INPUT = {"input": "hi", "instructions": "Be brief.", "max_output_tokens": 9}


@pytest.mark.parametrize(("path", "body"), [("/v1/messages", MESSAGE), ("/v1/responses", INPUT)])
@pytest.mark.parametrize("fields", [{}, {"seed": 5, "top_k": 40, "cache_salt": "a", "priority": 2, "stream": True}])
async def test_messages_and_responses_render_as_the_same_chat(
    noisy: Front, path: str, body: dict[str, Any], fields: dict[str, Any]
):
    rendered = await post(noisy, f"{path}/render", body | fields)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    chat = await post(noisy, "/v1/chat/completions/render", {"messages": messages, "max_tokens": 9} | fields)
    assert rendered.pop("request_id").startswith({"/v1/messages": "msg_", "/v1/responses": "resp_"}[path])
    del chat["request_id"]
    assert rendered == chat


async def test_a_rendered_response_continues_a_stored_one_and_stores_nothing(noisy: Front):
    first = await post(noisy, "/v1/responses", INPUT)
    fields = {"input": "more", "previous_response_id": first["id"]}
    rendered = await post(noisy, "/v1/responses/render", fields)
    again = await post(noisy, "/v1/responses", fields)
    assert len(rendered["token_ids"]) == again["usage"]["input_tokens"]
    assert (await noisy.http.get(f"/v1/responses/{rendered['request_id']}")).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/messages", MESSAGE | {"tools": [{"name": "f"}], "tool_choice": {"type": "any"}}, "tool"),
        ("/v1/responses", INPUT | {"use_beam_search": True, "n": 2}, "use_beam_search"),
    ],
)
async def test_messages_and_responses_that_need_more_are_refused(
    noisy: Front, path: str, body: dict[str, Any], field: str
):
    error = (await post(noisy, f"{path}/render", body, 400))["error"]
    assert field in error["message"], error


async def test_a_warning_names_the_place_of_an_unknown_field_in_the_inner_request(noisy):
    rendered = await post(noisy, "/v1/chat/completions/render", CHAT)
    given = await post(noisy, "/inference/v1/generate", rendered)
    body = {"generate_response": given, "chat_request": CHAT | {"temprature": 1, "stream_options": {"x": 1}}}
    answer = await noisy.http.post("/v1/chat/completions/derender", json=body)
    assert answer.status_code == 200, answer.text
    for name in ("chat_request.temprature", "chat_request.stream_options.x"):
        assert name in answer.headers["warning"]
