"""Calls, thoughts and characters that are cut, opened by the template or written together with a budget: each as it was
once wrong; and cases 17, 20, 21, 22 in full."""

from __future__ import annotations

import json

import pytest

from api.harness import EOS, START, TEMPLATE, VOCAB, LocalClient, events, front_of, saying
from tailrace.config import ServerConfig
from tailrace.engine.token_bytes import TokenBytes
from tailrace.text.tokenizer import Tokenizer

CONFIG = ServerConfig(reasoning_parser="think", tool_parser="hermes")
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CALL = b'<tool_call>{"name": "f", "arguments": {"x": "an END"}}</tool_call>'


def client_of(tokenizer: Tokenizer, text: bytes) -> LocalClient:
    client = LocalClient(saying(text))
    client.token_bytes = TokenBytes.of(tokenizer, VOCAB)
    return client


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (CALL, {"stop": ["END"]}),
        (CALL[:47], {}),
        (CALL, {"repetition_detection": {"max_pattern_size": 1, "min_count": 3}}),
    ],
)
async def test_a_call_that_is_not_whole_is_no_reason_to_finish(tokenizer, text, fields):
    if "repetition_detection" in fields:
        text = text.replace(b"an END", b"xxx")
    async with front_of(client_of(tokenizer, text), tokenizer, CONFIG) as front:
        [choice] = (await front.chat(tools=TOOLS, **fields)).json()["choices"]
        [call] = choice["message"]["tool_calls"]
        if "stop" in fields or "repetition_detection" in fields:
            with pytest.raises(json.JSONDecodeError):
                json.loads(call["function"]["arguments"])
        else:
            assert json.loads(call["function"]["arguments"]) == {"x": "an"}
        assert choice["finish_reason"] == "stop"
        ask = {"input": "hi", "temperature": 0, "tools": [{"type": "function", "name": "f"}]} | fields
        response = (await front.http.post("/v1/responses", json=ask)).json()
        assert [(item["type"], item["status"]) for item in response["output"]] == [("function_call", "incomplete")]


async def test_a_key_without_a_value_is_content(tokenizer):
    async with front_of(client_of(tokenizer, CALL[:44]), tokenizer, CONFIG) as front:
        [choice] = (await front.chat(tools=TOOLS)).json()["choices"]
        [call] = choice["message"]["tool_calls"]
        assert (call["function"]["arguments"], choice["message"]["content"]) == ("{}", '"x": ')
        assert choice["finish_reason"] == "stop"


async def test_case_22_a_response_whose_call_is_cut_by_its_length(tokenizer):
    ask = {"input": "hi", "temperature": 0, "tools": [{"type": "function", "name": "f"}], "max_output_tokens": 45}
    async with front_of(client_of(tokenizer, CALL), tokenizer, CONFIG) as front:
        response = (await front.http.post("/v1/responses", json=ask)).json()
        [item] = response["output"]
        assert (item["type"], item["status"], item["arguments"]) == ("function_call", "incomplete", '{"x": "')
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


async def test_a_call_that_is_whole_but_for_its_marker_is_one(tokenizer):
    async with front_of(client_of(tokenizer, CALL.removesuffix(b"</tool_call>")), tokenizer, CONFIG) as front:
        [choice] = (await front.chat(tools=TOOLS)).json()["choices"]
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"x": "an END"}'
        assert choice["finish_reason"] == "tool_calls"


async def test_a_budget_does_not_write_into_a_calls_arguments(tokenizer):
    text = b'<tool_call>{"name": "f", "arguments": {"x": "<think> abcdefgh"}}</tool_call>'
    async with front_of(client_of(tokenizer, text), tokenizer, CONFIG) as front:
        [choice] = (await front.chat(tools=TOOLS, thinking_token_budget=3)).json()["choices"]
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"x": "<think> abcdefgh"}'


async def test_case_20_where_the_template_has_opened_the_thinking(tokenizer):
    """Stops and the budget know that they are inside from the first token on."""
    opening = Tokenizer(tokenizer.backend, TEMPLATE + "{% if add_generation_prompt %}<think>{% endif %}")

    def script(ids: list[int]) -> int:
        said = bytes(i for i in ids[len(ids) - ids[::-1].index(START) :] if i < 256).partition(b"<think>")[2]
        text = b"an END of it</think>So: an END."
        return text[len(said)] if len(said) < len(text) else EOS

    client = LocalClient(script)
    client.token_bytes = TokenBytes.of(tokenizer, VOCAB)
    async with front_of(client, opening, CONFIG) as front:
        [choice] = (await front.chat(stop=["END"], stop_scope="content")).json()["choices"]
        assert choice["message"]["reasoning_content"] == "an END of it"
        assert (choice["message"]["content"], choice["stop_reason"]) == ("So: an ", "END")
        [choice] = (await front.chat(thinking_token_budget=0)).json()["choices"]
        assert "reasoning_content" not in choice["message"]
        [choice] = (await front.chat(thinking_token_budget=6)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "an END"


async def test_case_17_a_prompt_that_ends_in_the_middle_of_a_character(tokenizer):
    """The output completes it, and it comes whole."""
    face = "😀".encode()
    client = LocalClient(saying(face[2:] + b"ok"))
    async with front_of(client, tokenizer) as front:
        ask = {"prompt": [*b"x=", *face[:2]], "max_tokens": 6}
        client._script = None  # the engine has its own

        def script(ids: list[int]) -> int:
            said = ids[4:]
            answer = face[2:] + b"ok"
            return answer[len(said)] if len(said) < len(answer) else EOS

        client.engine.runner.script = script
        answer = (await front.complete(**ask)).json()
        assert answer["choices"][0]["text"] == "😀ok"
        streamed = [e for e in events((await front.complete(stream=True, **ask)).text) if e != "[DONE]"]
        assert "".join(c["text"] for e in streamed for c in e["choices"]) == "😀ok"


@pytest.mark.parametrize("ignore", [False, True])
async def test_case_21_floors_and_several_ends(tokenizer, ignore):
    """[x, EOS] with a floor of 2: EOS can't be drawn before two tokens are out, whichever of the model's several it
    is."""
    client = LocalClient(saying(b"x"))
    async with front_of(client, tokenizer) as front:
        client.engine.info.eos_token_ids[:] = [EOS, ord("!")]
        ask = {"min_tokens": 2, "return_token_ids": True, "max_tokens": 5, "ignore_eos": ignore}
        [choice] = (await front.complete(**ask)).json()["choices"]
        ids = choice["token_ids"]
        assert ids[0] == ord("x")
        if ignore:
            assert (ids[2:], choice["finish_reason"]) == ([EOS] * 3, "length")
        else:
            assert not {EOS, ord("!")} & set(ids[:2])
            assert (ids[-1], choice["finish_reason"], choice["stop_reason"]) == (EOS, "stop", None)


async def test_forced_tokens_and_a_budget_do_not_mix_their_words(tokenizer):
    """Both force tokens: the request's own come first, as they are, and the budget closes the thought behind them."""
    text = b"<think>abcdefghij</think>Hello world"
    async with front_of(client_of(tokenizer, text), tokenizer, CONFIG) as front:
        fields = {"forced_token_ids": list(b"<think>abcdefgh"), "thinking_token_budget": 3}
        [choice] = (await front.chat(**fields)).json()["choices"]
        assert choice["message"]["reasoning_content"] == "abcdefgh"
        [choice] = (await front.chat(forced_token_ids=list(b"xyz"))).json()["choices"]
        assert choice["message"]["content"].startswith("xyz")
