"""POST /v1/chat/completions."""

from __future__ import annotations

import pytest

from api.harness import CONTEXT, NAME, LocalClient, events, front_of, saying


async def test_the_whole_answer(front):
    answer = await front.chat(content="hi")
    assert answer.status_code == 200
    body = answer.json()
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", NAME)
    assert body["system_fingerprint"].startswith("fp_")
    [choice] = body["choices"]
    assert choice == {
        "index": 0,
        "message": {"content": "Hello", "role": "assistant", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    prompt = len("user\nhi") + 1 + 1 + 1 + 1 + len("assistant\n")  # two turns' marks, one end, one line break
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 6,  # EOS counts
        "total_tokens": prompt + 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_usage_counts_what_the_prefix_cache_gave(front):
    long = "the same words again " * 4
    first, second = [(await front.chat(content=long)).json()["usage"] for _ in range(2)]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert 64 <= cached <= second["prompt_tokens"]
    assert cached % 16 == 0


async def test_stream(front):
    answer = await front.chat(stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    assert {c["id"] for c in chunks} == {chunks[0]["id"]}
    assert all(c["object"] == "chat.completion.chunk" and "usage" not in c for c in chunks)
    choices = [c["choices"][0] for c in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["delta"].get("content", "") for c in choices) == "Hello"
    assert all(c["finish_reason"] is None for c in choices[:-1])
    assert choices[-1]["finish_reason"] == "stop"
    assert choices[-1]["delta"] == {}
    assert choices[-1]["stop_reason"] is None


async def test_the_usage_chunk_has_no_choices(front):
    answer = await front.chat(stream=True, stream_options={"include_usage": True})
    *chunks, last, done = events(answer.text)
    assert done == "[DONE]"
    assert all(c["usage"] is None for c in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6


async def test_usage_in_every_chunk_grows_to_the_total(front):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = events((await front.chat(stream=True, stream_options=options)).text)
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == last["usage"]["completion_tokens"] == 6


async def test_stop_string_is_cut_and_named(front):
    for stop in ("lo", ["zz", "lo"]):
        body = (await front.chat(stop=stop)).json()
        choice = body["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("Hel", "stop", "lo")
        assert body["usage"]["completion_tokens"] == 5
    await front.until(front.client.idle)
    kept = (await front.chat(stop="lo", include_stop_str_in_output=True)).json()["choices"][0]
    assert kept["message"]["content"] == "Hello"


async def test_a_stop_string_ends_the_engines_work(tokenizer):
    async with front_of(LocalClient(saying(b"Hello", then=ord("!"))), tokenizer) as front:
        body = (await front.chat(stop="o", max_tokens=100)).json()
        assert body["choices"][0]["message"]["content"] == "Hell"
        await front.until(front.client.idle)
        assert front.client.engine.stats().generated_tokens < 50
        assert front.metric('tailrace_request_aborted_total{cause="stop string"}') == 1


async def test_stop_token_id_is_named(front):
    choice = (await front.chat(stop_token_ids=[ord("o")])).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ord("o"))
    assert choice["message"]["content"] == "Hell"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_length(front, field):
    body = (await front.chat(**{field: 3})).json()
    assert body["choices"][0]["message"]["content"] == "Hel"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


async def test_without_a_limit_the_answer_may_fill_the_context(tokenizer):
    async with front_of(LocalClient(saying(b"", then=ord("x"))), tokenizer) as front:
        body = (await front.chat()).json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["total_tokens"] == CONTEXT


async def test_n_answers(front):
    body = (await front.chat(n=3)).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in body["choices"]] == ["Hello"] * 3
    assert body["usage"]["completion_tokens"] == 18
    chunks = events((await front.chat(n=3, stream=True)).text)[:-1]
    for index in range(3):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert [c["finish_reason"] for c in mine].count("stop") == 1
        assert mine[-1]["finish_reason"] == "stop"


async def test_a_seed_fixes_the_answer_and_the_temperature_is_one_by_default(tokenizer):
    async with front_of(LocalClient(lambda ids: [0.0] * 128 + [-50.0] * 130), tokenizer) as front:
        ask = {"temperature": None, "max_tokens": 40}
        texts = [(await front.chat(**ask, seed=seed)).json()["choices"][0]["message"]["content"] for seed in (7, 7, 8)]
        assert texts[0] == texts[1] != texts[2]
        unseeded = {(await front.chat(**ask)).json()["choices"][0]["message"]["content"] for _ in range(3)}
        assert len(unseeded) == 3


async def test_logit_bias_and_bans_reach_the_engine(front):
    async def said(**fields):
        return (await front.chat(max_tokens=1, **fields)).json()["choices"][0]["message"]["content"]

    assert await said(logit_bias={str(ord("Z")): 100}) == "Z"
    assert await said(allowed_token_ids=[ord("q")]) == "q"
    assert await said(bad_words=["H"]) != "H"


async def test_content_parts_are_joined(front):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    ask = {"return_token_ids": True}
    body = (await front.chat(messages=[{"role": "user", "content": parts}], **ask)).json()
    assert body["prompt_token_ids"] == (await front.chat(content="one\ntwo", **ask)).json()["prompt_token_ids"]
    assert body["choices"][0]["token_ids"] == [*b"Hello", 257]


async def test_token_ids_are_streamed_in_order(front):
    chunks = events((await front.chat(stream=True, return_token_ids=True)).text)[:-1]
    assert len(chunks[0]["prompt_token_ids"]) > 10
    assert all("prompt_token_ids" not in c for c in chunks[1:])
    assert [i for c in chunks for i in c["choices"][0]["token_ids"]] == [*b"Hello", 257]


async def test_tools_and_template_options_reach_the_template(front):
    async def prompt(**fields) -> str:
        body = (await front.chat(return_token_ids=True, **fields)).json()
        return bytes(i for i in body["prompt_token_ids"] if i < 256).decode()

    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert "tools: 1" in await prompt(tools=[tool])
    assert "tools: 1" in await prompt(tools=[tool], tool_choice="auto")
    assert "tools:" not in await prompt(tools=[tool], tool_choice="none")
    assert "LOUD" in await prompt(chat_template_kwargs={"shout": True})
    assert "LOUD" in await prompt(chat_template_kwargs={"shout": True, "self": 1, "cls": 2, "source": 3, "options": 4})


async def test_fields_that_ask_for_nothing_are_taken(front):
    answer = await front.chat(
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        response_format={"type": "text"},
        n=None,
        top_p=None,
        stop=None,
        logit_bias=None,
        tools=None,
        best_of=1,
        use_beam_search=False,
        guided_json=None,
        length_penalty=1.0,
        made_up_field=[1, 2],
        model=NAME,
        modalities=["text"],
    )
    assert answer.status_code == 200


async def test_the_last_message_is_gone_on_with(front):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Hello wor"}]
    answer = await front.chat(messages=messages, continue_final_message=True, return_token_ids=True)
    assert answer.status_code == 200, answer.text
    assert bytes(answer.json()["prompt_token_ids"][-9:]) == b"Hello wor"
    tokens = (await front.http.post("/tokenize", json={"messages": messages, "continue_final_message": True})).json()
    assert tokens["tokens"] == answer.json()["prompt_token_ids"]
    whole = (await front.chat(messages=messages, return_token_ids=True)).json()["prompt_token_ids"]
    assert len(whole) > len(tokens["tokens"])
    refused = await front.chat(chat_template_kwargs={"unfinished": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template_kwargs")
