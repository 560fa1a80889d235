"""What ends an answer, over HTTP: patterns, stops in the content alone, thinking budgets, loops; streamed and whole
alike."""

from __future__ import annotations

import pytest

from api.harness import VOCAB, LocalClient, events, front_of, saying
from tailrace.config import ServerConfig
from tailrace.engine.token_bytes import TokenBytes

THINKS = ServerConfig(reasoning_parser="think", tool_parser="hermes")
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CALL = b'<tool_call>{"name": "f", "arguments": {"x": "END"}}</tool_call>'


async def said(tokenizer, text: bytes, known: bool = True, **fields) -> tuple[dict, dict]:
    """The whole answer's choice, and the engine's counters; the streamed answer is checked to be the same."""
    client = LocalClient(saying(text))
    client.token_bytes = TokenBytes.of(tokenizer, VOCAB) if known else TokenBytes()
    async with front_of(client, tokenizer, THINKS) as front:
        answer = await front.chat(**fields)
        assert answer.status_code == 200, answer.text
        [choice] = answer.json()["choices"]
        drawn = client.engine.stats().generated_tokens
        streamed = [e for e in events((await front.chat(stream=True, **fields)).text) if e != "[DONE]"]
        deltas = [c for event in streamed for c in event["choices"]]
        for name in ("content", "reasoning_content"):
            assert "".join(c["delta"].get(name) or "" for c in deltas) == (choice["message"].get(name) or "")
        last = deltas[-1]
        assert (last["finish_reason"], last["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
        await front.until(client.idle)
        return choice, {"drawn": drawn, "wasted": front.metric("tailrace_wasted_tokens_total")}


@pytest.mark.parametrize("known", [True, False])
async def test_a_pattern_stops(tokenizer, known):
    fields = {"stop_regex": [r"\n\n+User:", r"[0-9]{3}"]}
    choice, counts = await said(tokenizer, b"It is 12 or 1234.", known, **fields)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is 12 or ", "stop")
    assert choice["stop_reason"] == "[0-9]{3}"
    if known:
        assert counts == {"drawn": len("It is 12 or 123"), "wasted": 0}
    choice, _ = await said(tokenizer, b"It is 12 or 1234.", known, include_stop_str_in_output=True, **fields)
    assert choice["message"]["content"] == "It is 12 or 123"
    choice, _ = await said(tokenizer, b"a\n\n\nUser: b", known, stop_regex=r"\n\n+User:", stop=["zz"])
    assert choice["message"]["content"] == "a"


@pytest.mark.parametrize(
    ("expression", "why"),
    [("(", "can't be read"), ("^a", "not supported"), ("a*", "matches the empty text"), ("a{999}", "more than 256")],
)
async def test_a_pattern_that_cannot_be(front, expression, why):
    for path in ("chat", "complete"):
        answer = await getattr(front, path)(stop_regex=[expression])
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "stop_regex")
        assert why in error["message"]
    assert (await front.chat(stop_regex=["a"] * 17)).status_code == 400
    assert (await front.chat(stop_regex=[""])).status_code == 400


@pytest.mark.parametrize("known", [True, False])
async def test_case_20_stops_in_all_or_in_the_content_alone(tokenizer, known):
    text = b"<think>the END of it</think>So: " + CALL + b" and the END."
    choice, counts = await said(tokenizer, text, known, stop=["END"], stop_scope="content", tools=TOOLS)
    assert choice["message"]["reasoning_content"] == "the END of it"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"x": "END"}'
    assert (choice["message"]["content"], choice["stop_reason"]) == ("So:  and the ", "END")
    assert choice["finish_reason"] == "tool_calls"
    if known:
        assert counts == {"drawn": len(text) - 1, "wasted": 0}
    for scope in ({}, {"stop_scope": "all"}):
        choice, _ = await said(tokenizer, text, known, stop=["END"], tools=TOOLS, **scope)
        assert choice["message"]["reasoning_content"] == "the "
        assert (choice["message"]["content"], choice["stop_reason"]) == ("", "END")


async def test_case_20_a_marker_and_a_stop_in_one_step(tokenizer):
    """The stop begins with the last character of the marker: it is no content, so it is none."""
    choice, _ = await said(tokenizer, b"<think>a</think>>b", stop=[">>"], stop_scope="content")
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (">b", "stop", None)
    choice, _ = await said(tokenizer, b"<think>a</think>>b", stop=[">>"], stop_scope="all")
    assert choice["stop_reason"] == ">>"


async def test_thoughts_have_a_budget(tokenizer):
    text = b"<think>abcdefgh</think>So."
    whole, _ = await said(tokenizer, text)
    assert whole["message"]["reasoning_content"] == "abcdefgh"
    assert (await said(tokenizer, text, thinking_token_budget=8))[0] == whole
    # the script goes by what has been said, so after the forced marker it goes on at the same length
    choice, counts = await said(tokenizer, text, thinking_token_budget=3)
    assert choice["message"]["reasoning_content"] == "abc"
    assert (
        choice["message"]["content"]
        == (text[: len("<think>abc")] + b"</think>" + text[len("<think>abc</think>") :]).decode()[18:]
    )
    assert counts["drawn"] == len(text) + 1
    choice, _ = await said(tokenizer, text, thinking_token_budget=0, separate_reasoning=False)
    assert choice["message"]["content"].startswith("<think></think>")


@pytest.mark.parametrize(
    "fields", [{"thinking": {"type": "enabled", "budget_tokens": 3}}, {"reasoning": {"max_tokens": 3}}], ids=str
)
async def test_the_budget_has_the_names_of_others(tokenizer, fields):
    text = b"<think>abcdefgh</think>So."
    assert (await said(tokenizer, text, **fields)) == (await said(tokenizer, text, thinking_token_budget=3))


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": False},
        {"thinking": {"type": "disabled"}},
        {"reasoning": {"effort": "none"}},
        {"think": False},
        {"enable_reasoning": False},
        {"thinking_budget": 0},
        {"max_reasoning_tokens": 0},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking_mode": "disabled"}},
        {"chat_template_kwargs": {"reasoning_effort": "none"}},
    ],
    ids=str,
)
async def test_thinking_that_the_template_cannot_turn_off_is_closed_at_once(tokenizer, fields):
    text = b"<think>abcdefgh</think>So."
    assert (await said(tokenizer, text, **fields)) == (await said(tokenizer, text, thinking_token_budget=0))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"enable_thinking": False}, "enable_thinking"),
        ({"thinking": {"type": "disabled"}}, "thinking.type"),
        ({"reasoning_effort": "none"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 3}}, "thinking.budget_tokens"),
        ({"reasoning": {"max_tokens": 3}}, "reasoning.max_tokens"),
        ({"thinking_token_budget": 3}, "thinking_token_budget"),
    ],
    ids=str,
)
async def test_thoughts_that_must_be_closed_exclude_beams_and_bans(tokenizer, fields, name):
    client = LocalClient(saying(b"<think>ab</think>So."))
    async with front_of(client, tokenizer, THINKS) as front:
        client.engine.token_bytes = TokenBytes.of(tokenizer, VOCAB)
        answer = await front.chat(**fields, use_beam_search=True, n=2, temperature=0)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert answer.json()["error"]["message"].startswith(f"{name} can't be had with use_beam_search")
        for bans in ({"banned_strings": ["x"]}, {"banned_regex": ["x+"]}):
            answer = await front.chat(**fields, **bans)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(bans)))
            assert f"can't be had with {name}: " in answer.json()["error"]["message"]


async def test_a_budget_needs_to_know_how_the_model_thinks(tokenizer):
    async with front_of(LocalClient(saying(b"Hi")), tokenizer) as front:
        answer = await front.chat(thinking_token_budget=5)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "thinking_token_budget")
    client = LocalClient(saying(b"Hi"))
    async with front_of(client, tokenizer, THINKS) as front:
        answer = await front.chat(thinking_token_budget=5)  # this engine does not know what tokens spell
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "thinking_token_budget")
        client.engine.token_bytes = TokenBytes.of(tokenizer, VOCAB)
        for wrong in (-1, 2**40):
            answer = await front.chat(thinking_token_budget=wrong)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "thinking_token_budget")
        for field in ({"thinking_token_budget": 3}, {"stop_scope": "content"}):
            answer = await front.complete(**field)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(field)))
        answer = await front.chat(thinking_token_budget=3, banned_strings=["x"])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "banned_strings")


@pytest.mark.parametrize("known", [True, False])
async def test_loops_end_with_a_reason_of_their_own(tokenizer, known):
    text = b"It goes round and round and round and round and round."
    fields = {"repetition_detection": {"max_pattern_size": 10, "min_pattern_size": 4, "min_count": 3}}
    choice, counts = await said(tokenizer, text, known, **fields)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "repetition")
    assert choice["message"]["content"] == text.decode()[: len("It goes") + 30]
    assert counts["wasted"] == 0
    choice, _ = await said(tokenizer, text, known, min_tokens=50, **fields)
    assert len(choice["message"]["content"]) == 51
    choice, _ = await said(tokenizer, b"no loop here", known, **fields)
    assert (choice["message"]["content"], choice["stop_reason"]) == ("no loop here", None)


async def test_loops_are_checked(front):
    for wrong in (
        {"max_pattern_size": -1, "min_count": 2},
        {"max_pattern_size": 4},
        {"max_pattern_size": 4, "min_count": 1},
        3,
    ):
        answer = await front.chat(repetition_detection=wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("repetition_detection")


@pytest.mark.parametrize("field", ["stop", "banned_strings"])
async def test_stops_are_bounded_in_all(front, field):
    answer = await front.chat(**{field: ["😀" * 1000] * 3})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert "8192 bytes" in answer.json()["error"]["message"]
