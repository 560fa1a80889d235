"""`truncation: auto`: the oldest messages are left out until the prompt fits."""

from __future__ import annotations

import pytest

from api.talks import CALL, TOOL, talk_to
from tailrace.api.schema.chat import ChatMessage
from tailrace.api.truncation import Cuts


def messages_of(words: str) -> list[ChatMessage]:
    """s: instructions, u: the user, a: an answer, c1: a call, t1: its result."""
    found: list[ChatMessage] = []
    for word in words.split():
        role = {"s": "system", "u": "user", "a": "assistant", "c": "assistant", "t": "tool"}[word[0]]
        message = ChatMessage(role=role, content=word)
        if word[0] == "c":
            message.tool_calls = [{"id": word[1:], "function": {"name": "f", "arguments": "{}"}}]
        message.tool_call_id = word[1:] if word[0] == "t" else None
        found.append(message)
    return found


@pytest.mark.parametrize(
    ("words", "cuts"),
    [
        ("u", []),
        ("s u", []),
        ("s u a", []),
        ("s u1 a u2", ["s u2"]),
        ("s u1 a u2 a u3", ["s u2 a u3", "s u3"]),
        ("u1 c1 t1 a u2 c2 t2", ["u2 c2 t2"]),
        ("s u1 a u2 c1 t1 c2 t2 c3 t3", ["s u2 c1 t1 c2 t2 c3 t3", "s u2 c2 t2 c3 t3", "s u2 c3 t3"]),
        ("u1 c1 u2 t1 a u3", ["u2 a u3", "u3"]),  # a result never stays without its call
        ("u1 s a u2", ["s u2"]),
        ("c1 t1 c2 t2", ["c2 t2"]),
    ],
)
def test_what_may_be_left_out(words, cuts):
    assert [" ".join(str(message.content) for message in cut) for cut in Cuts(messages_of(words))] == cuts


def turn(role: str, letter: str) -> dict[str, str]:
    return {"role": role, "content": letter * 100}


LONG = [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d"), turn("user", "e")]


async def test_the_prompt_fits_then(tmp_path):
    async with talk_to(tmp_path, context=500) as talk:
        error = (await talk.post(input=LONG, status=400))["error"]
        assert error["code"] == "context_length_exceeded"
        await talk.post(input=LONG, truncation="disabled", status=400)
        made = await talk.post(input=LONG, truncation="auto", instructions="Be kind.")
        [prompt] = talk.prompts
        assert made["truncation"] == "auto"
        assert "Be kind." in prompt
        assert "aaa" not in prompt
        assert "bbb" not in prompt
        assert all(letter * 100 in prompt for letter in "e")
        assert len(prompt) + 500 // 8 <= 500
        await talk.post(input=LONG[:3], truncation="auto")
        assert "a" * 100 in talk.prompts[1]  # it fits whole


async def test_room_for_the_answer(tmp_path):
    async with talk_to(tmp_path, context=500) as talk:
        await talk.post(input=LONG[:3], truncation="auto", max_output_tokens=200)
        assert "aaa" not in talk.prompts[0]
        await talk.post(input=LONG[:3], max_output_tokens=200, status=400)
        error = (await talk.post(input=LONG[:3], truncation="auto", max_output_tokens=490, status=400))["error"]
        assert error["param"] == "max_output_tokens"
        error = (await talk.post(input="x" * 600, truncation="auto", status=400))["error"]
        assert error["code"] == "context_length_exceeded"


async def test_a_long_task_keeps_its_question_and_its_pairs(tmp_path):
    async with talk_to(tmp_path, f"So {CALL}", context=700) as talk:
        items = [{"role": "user", "content": "the task"}]
        for i in range(6):
            items.append({"type": "function_call", "call_id": f"id{i}", "name": "add", "arguments": f'{{"i": {i}}}'})
            items.append({"type": "function_call_output", "call_id": f"id{i}", "output": str(i) * 100})
        made = await talk.post(input=items, truncation="auto", tools=[TOOL])
        [prompt] = talk.prompts
        assert "the task" in prompt
        kept = [i for i in range(6) if f'{{"i": {i}}}' in prompt]
        assert kept == [i for i in range(6) if str(i) * 100 in prompt]
        assert 0 < len(kept) < 6
        assert kept[-1] == 5
        whole = await talk.get(f"/v1/responses/{made['id']}/input_items?limit=100")
        assert len(whole["data"]) == 13  # the store has what was left out
