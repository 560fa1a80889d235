"""The full answer is the fold of the stream: the same request, asked both ways, says the same."""

from __future__ import annotations

from typing import Any

import pytest

from api.harness import LocalClient, events, front_of, saying

TEXT = "Hé, wörld 🌊! STOP here".encode()
ASKS: list[dict[str, Any]] = [
    {},
    {"n": 3},
    {"max_tokens": 7},  # ends inside a character
    {"stop": "STOP"},
    {"stop": ["🌊", "zz"], "include_stop_str_in_output": True},
    {"stop_token_ids": [ord("!")], "return_token_ids": True},
    {"return_token_ids": True, "stop": "TOP", "n": 2},
]


def chat_from(chunks: list[dict]) -> dict:
    """An independent fold of chat chunks."""
    choices: dict[int, dict] = {}
    for chunk in chunks:
        for c in chunk["choices"]:
            whole = choices.setdefault(c["index"], {"text": "", "logprobs": None, "ids": None})
            whole["text"] += c["delta"].get("content", "")
            if c["logprobs"]:
                whole["logprobs"] = (whole["logprobs"] or []) + c["logprobs"]["content"]
            if "token_ids" in c:
                whole["ids"] = (whole["ids"] or []) + c["token_ids"]
            if c["finish_reason"]:
                whole |= {"finish": c["finish_reason"], "stop": c["stop_reason"]}
    return choices


@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "top_logprobs": 2}])
@pytest.mark.parametrize("ask", ASKS)
async def test_chat(tokenizer, ask, extra):
    async with front_of(LocalClient(saying(TEXT)), tokenizer) as front:
        whole = (await front.chat(**ask, **extra)).json()
        *chunks, done = events(
            (await front.chat(**ask, **extra, stream=True, stream_options={"include_usage": True})).text
        )
        assert done == "[DONE]"
        folded = chat_from(chunks)
        assert sorted(folded) == [c["index"] for c in whole["choices"]]
        for choice in whole["choices"]:
            mine = folded[choice["index"]]
            assert choice["message"]["content"] == mine["text"]
            assert (choice["finish_reason"], choice["stop_reason"]) == (mine["finish"], mine["stop"])
            assert choice.get("token_ids") == mine["ids"]
            assert (choice["logprobs"] or {}).get("content") == mine["logprobs"]
        assert without_cache(whole["usage"]) == without_cache(chunks[-1]["usage"])


@pytest.mark.few(8)
@pytest.mark.parametrize("extra", [{}, {"logprobs": 1}, {"echo": True}])
@pytest.mark.parametrize("ask", ASKS)
async def test_completions(tokenizer, ask, extra):
    async with front_of(LocalClient(saying(TEXT)), tokenizer) as front:
        prompt = ["a=", "bb="]
        whole = (await front.complete(prompt, **ask, **extra)).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, done = events((await front.complete(prompt, **ask, **extra, **options)).text)
        assert done == "[DONE]"
        for choice in whole["choices"]:
            mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
            assert choice["text"] == "".join(c["text"] for c in mine)
            assert (choice["finish_reason"], choice["stop_reason"]) == (
                mine[-1]["finish_reason"],
                mine[-1]["stop_reason"],
            )
            for name in choice["logprobs"] or ():
                assert choice["logprobs"][name] == [x for c in mine if c["logprobs"] for x in c["logprobs"][name]]
            assert choice.get("token_ids") == (
                [i for c in mine for i in c["token_ids"]] if "token_ids" in mine[0] else None
            )
        assert without_cache(whole["usage"]) == without_cache(chunks[-1]["usage"])


def without_cache(usage: dict) -> dict:
    """The second request finds the first one's blocks."""
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}
