"""What ends a thought besides the model: a budget with closing words, a loop, the client. The answer follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from api.harness import EOS, START, VOCAB, LocalClient, events, front_of
from tailrace.config import ServerConfig
from tailrace.engine.token_bytes import TokenBytes
from tailrace.text.tokenizer import Tokenizer

MARK = b"assistant\n"
LOOPS = {"repetition_detection": {"max_pattern_size": 10, "min_pattern_size": 2, "min_count": 3}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def thinking(thought: bytes, answer: bytes, circles: bool = True) -> Callable[[list[int]], int]:
    """A model that thinks in circles until its thought is closed, and then answers."""

    def script(ids: list[int]) -> int:
        said = bytes(id for id in ids[len(ids) - ids[::-1].index(START) + len(MARK) :] if id < 256)
        inside, closed, after = said.partition(b"</think>")
        if closed:
            return answer[len(after)] if len(after) < len(answer) else EOS
        if not inside.startswith(b"<think>"):
            return b"<think>"[len(inside)]
        place = len(inside) - len(b"<think>")
        return thought[place % len(thought)] if circles or place < len(thought) else ord("a") + place * place % 26

    return script


def serve(tokenizer: Tokenizer, script: Callable[[list[int]], Any], **config: Any) -> Any:
    """A front end whose engine knows what tokens spell."""
    client = LocalClient(script, tick_s=0.001)
    client.token_bytes = TokenBytes.of(tokenizer, VOCAB)
    return front_of(client, tokenizer, ServerConfig(reasoning_parser="think", tool_parser="hermes", **config))


async def ask(front: Any, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    """The thought, the content, and the whole answer; the stream says the same."""
    response = await front.chat(**fields)
    assert response.status_code == 200, response.text
    answer = response.json()
    [choice] = answer["choices"]
    streamed = [e for e in events((await front.chat(stream=True, **fields)).text) if e != "[DONE]"]
    deltas = [c["delta"] for event in streamed for c in event["choices"]]
    thought, content = (choice["message"].get(name) or "" for name in ("reasoning_content", "content"))
    assert thought == "".join(d.get("reasoning_content") or "" for d in deltas)
    assert content == "".join(d.get("content") or "" for d in deltas)
    return thought, content, answer


# ---- closing words


async def test_closing_words_are_written_before_the_end_of_the_thought_and_counted(tokenizer):
    async with serve(tokenizer, thinking(b"abcdefgh", b"Yes.")) as front:
        words = " That is enough.\n"
        before = await ask(front, thinking_token_budget=5)
        assert before[:2] == ("abcde", "Yes.")
        thought, content, answer = await ask(front, thinking_token_budget=5, reasoning_budget_message=words)
        assert (thought, content) == ("abcde" + words, "Yes.")
        usage = answer["usage"]
        assert usage["completion_tokens"] == before[2]["usage"]["completion_tokens"] + len(words)
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 5 + len(words)
        again = await ask(front, thinking_token_budget=5, reasoning_budget_message=words)
        assert again[:2] == (thought, content)
        assert (await ask(front, thinking_token_budget=5, reasoning_budget_message=""))[:2] == before[:2]
        # a thought that begins with a budget of 0 has the words alone
        assert (await ask(front, thinking_token_budget=0, reasoning_budget_message=words))[:2] == (words, "Yes.")


async def test_the_server_has_closing_words_of_its_own(tokenizer):
    async with serve(tokenizer, thinking(b"abcdefgh", b"Yes."), reasoning_budget_message=" Stop.") as front:
        assert (await ask(front, thinking_token_budget=3))[0] == "abc Stop."
        assert (await ask(front, thinking_token_budget=3, reasoning_budget_message=" Now."))[0] == "abc Now."
        assert (await ask(front, thinking_token_budget=3, reasoning_budget_message=""))[0] == "abc"
        # who turns thinking off has no thought, and no words
        assert (await ask(front, enable_thinking=False))[:2] == ("", "Yes.")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_the_other_endpoints_have_closing_words(tokenizer, path):
    async with serve(tokenizer, thinking(b"abcdefgh", b"Yes.")) as front:
        body = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
        body |= {"max_output_tokens": 100, "thinking_token_budget": 3} if "input" in body else {}
        if path == "/v1/messages":
            body |= {"max_tokens": 100, "thinking": {"type": "enabled", "budget_tokens": 3}}
        answer = await front.http.post(path, json=body | {"reasoning_budget_message": " Stop.", "temperature": 0})
        assert answer.status_code == 200, answer.text
        assert "abc Stop." in answer.text


@pytest.mark.parametrize("words", ["so </think> no", "<think>", "x<|im_end|>", "<tool_call>", "a" * 4097])
async def test_closing_words_that_would_be_more_than_a_thought_are_refused(tokenizer, words):
    async with serve(tokenizer, thinking(b"abcdefgh", b"Yes.")) as front:
        answer = await front.chat(thinking_token_budget=3, reasoning_budget_message=words, tools=TOOLS)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_budget_message")


async def test_closing_words_need_to_know_how_the_model_thinks(front):
    answer = await front.chat(reasoning_budget_message="x")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_budget_message")
    assert (await front.chat(reasoning_budget_message="")).status_code == 200
    assert (await front.complete(reasoning_budget_message="x")).status_code == 400


# ---- loops


async def test_a_loop_in_a_thought_ends_the_thought_alone(tokenizer):
    async with serve(tokenizer, thinking(b"round and ", b"So: yes.")) as front:
        thought, content, answer = await ask(front, max_tokens=150, **LOOPS)
        assert (thought, content) == ("round and " * 3, "So: yes.")
        assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("stop", None)
        words = await ask(front, max_tokens=150, reasoning_budget_message="Enough.", **LOOPS)
        assert words[:2] == ("round and " * 3 + "Enough.", "So: yes.")
        # a budget ends it before
        assert (await ask(front, max_tokens=150, thinking_token_budget=7, **LOOPS))[0] == "round a"


async def test_a_loop_in_the_answer_ends_the_answer(tokenizer):
    async with serve(tokenizer, thinking(b"round and ", b"la la la la la la")) as front:
        thought, content, answer = await ask(front, max_tokens=150, **LOOPS)
        assert (thought, content) == ("round and " * 3, "la la la ")
        assert answer["choices"][0]["stop_reason"] == "repetition"


async def test_a_loop_in_a_call_within_a_thought_ends_the_answer(tokenizer):
    async with serve(tokenizer, thinking(b'<tool_call>{"name": "f", "arguments": {"x": "' + b"ab" * 20, b"")) as front:
        _, _, answer = await ask(front, max_tokens=150, tools=TOOLS, **LOOPS)
        assert answer["choices"][0]["stop_reason"] == "repetition"


async def test_with_banned_text_a_loop_in_a_thought_ends_the_answer(tokenizer):
    """Forced tokens leave no choice, so no text can be banned among them."""
    async with serve(tokenizer, thinking(b"round and ", b"So: yes.")) as front:
        thought, content, answer = await ask(front, max_tokens=150, banned_strings=["zz"], **LOOPS)
        assert (thought, content) == ("round and " * 3, "")
        assert answer["choices"][0]["stop_reason"] == "repetition"


# ---- the client


async def control(front: Any, id: str, action: str = "reasoning_end", **headers: str) -> tuple[int, dict[str, Any]]:
    answer = await front.http.post(f"/v1/chat/completions/{id}/control", json={"action": action}, headers=headers)
    front.client.hold = answer.status_code != 200 and front.client.hold
    return answer.status_code, answer.json()


async def begin(front: Any, **fields: Any) -> asyncio.Task[Any]:
    """An answer that is being written, and rests until the engine goes on."""
    running = asyncio.ensure_future(front.chat(request_id="mine", max_tokens=180, **fields))
    await front.until(lambda: any(s.num_output > 12 for s in front.client.engine.running))
    front.client.hold = True
    return running


@pytest.mark.parametrize("in_path", [True, False])
@pytest.mark.parametrize("words", ["", " Enough."])
async def test_a_client_ends_a_running_thought(tokenizer, in_path, words):
    async with serve(tokenizer, thinking(b"hm", b"So: yes.")) as front:
        running = await begin(front, reasoning_control=True, reasoning_budget_message=words)
        if in_path:
            done = await control(front, "chatcmpl-mine")
        else:
            body = {"id": "chatcmpl-mine", "action": "reasoning_end"}
            answer = await front.http.post("/v1/chat/completions/control", json=body)
            done = answer.status_code, answer.json()
            front.client.hold = False
        assert done == (200, {"id": "chatcmpl-mine", "success": True})
        [choice] = (await running).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("So: yes.", "stop")
        assert choice["message"]["reasoning_content"].startswith("hm")
        assert choice["message"]["reasoning_content"].endswith(words)
        assert len(choice["message"]["reasoning_content"]) < 100
        await front.until(front.client.idle)
        assert (await control(front, "chatcmpl-mine"))[0] == 404


@pytest.mark.parametrize("armed", [True, False])
async def test_a_client_ends_an_answer(tokenizer, armed):
    async with serve(tokenizer, thinking(b"hm", b"So: yes.")) as front:
        running = await begin(front, reasoning_control=armed)
        assert await control(front, "chatcmpl-mine", "answer_end") == (200, {"id": "chatcmpl-mine", "success": True})
        [choice] = (await running).json()["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("abort", "cancelled")
        await front.until(front.client.idle)


async def test_a_thought_that_nobody_watches_goes_on(tokenizer):
    async with serve(tokenizer, thinking(b"hm", b"So: yes.")) as front:
        running = await begin(front)
        status, said = await control(front, "chatcmpl-mine")
        assert (status, said["success"]) == (200, False)
        assert "reasoning_control" in said["message"]
        assert (await running).json()["choices"][0]["finish_reason"] == "length"


async def test_an_end_of_a_thought_behind_the_thought_does_nothing(tokenizer):
    script = thinking(b"hm", b"x" * 120)
    async with serve(tokenizer, script) as front:
        running = await begin(front, reasoning_control=True, thinking_token_budget=1)
        assert (await control(front, "chatcmpl-mine"))[1]["success"]
        message = (await running).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("h", "x" * 120)


async def test_another_users_answer_can_not_be_controlled(tokenizer):
    script = thinking(b"hm", b"So: yes.")
    async with serve(tokenizer, script, api_keys="one, two") as front:
        front.http.headers["authorization"] = "Bearer one"
        running = await begin(front, reasoning_control=True)
        for action in ("reasoning_end", "answer_end"):
            other = await control(front, "chatcmpl-mine", action, authorization="Bearer two")
            absent = await control(front, "chatcmpl-nine", action, authorization="Bearer two")
            assert other[0] == absent[0] == 404
            assert other[1]["error"]["message"] == absent[1]["error"]["message"].replace("nine", "mine")
        assert (await control(front, "chatcmpl-mine"))[1]["success"]
        assert (await running).json()["choices"][0]["message"]["content"] == "So: yes."


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "action"), ({"action": "pause"}, "action"), ({"action": "reasoning_end"}, "id")],
    ids=str,
)
async def test_a_control_that_can_not_be(front, body, param):
    answer = await front.http.post("/v1/chat/completions/control", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    answer = await front.http.post("/v1/chat/completions/a/control", json={"action": "answer_end", "id": "b"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "id")


async def test_control_and_bans(tokenizer):
    async with serve(tokenizer, thinking(b"hm", b"So.")) as front:
        answer = await front.chat(reasoning_control=True, banned_strings=["x"])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "banned_strings")
        assert "can't be had with reasoning_control: " in answer.json()["error"]["message"]


async def test_control_and_beams(tokenizer):
    async with serve(tokenizer, thinking(b"hm", b"So.")) as front:
        answer = await front.chat(reasoning_control=True, use_beam_search=True, n=2, temperature=0)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_control")
