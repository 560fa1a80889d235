"""The JSON of the scripted server's answers: chunks and whole answers, of chats and of completions."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripted_server.generation import Part
from scripted_server.script import VOCABULARY, Drawn

CREATED = 1_700_000_000


def label(at: int) -> str:
    return VOCABULARY[at].decode(errors="replace") or "<end>"


def top_of(drawn: Drawn, count: int) -> list[tuple[int, float]]:
    order = np.argsort(-np.array(drawn.logprobs), kind="stable")[:count].tolist()
    return [(at, drawn.logprobs[at]) for at in order]


def chat_logprobs(drawn: list[Drawn], count: int) -> dict[str, Any]:
    return {
        "content": [
            {**entry(one.id, one.logprobs[one.id]), "top_logprobs": [entry(*pair) for pair in top_of(one, count)]}
            for one in drawn
        ],
        "refusal": None,
    }


def entry(at: int, logprob: float) -> dict[str, Any]:
    return {"token": label(at), "logprob": finite(logprob), "bytes": list(VOCABULARY[at])}


def finite(logprob: float) -> float:
    """JSON has no infinity."""
    return max(logprob, -9999.0)


def completion_logprobs(drawn: list[Drawn], count: int, offset: int) -> dict[str, Any]:
    texts = [label(one.id) for one in drawn]
    offsets = [offset + sum(map(len, texts[:at])) for at in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [finite(one.logprobs[one.id]) for one in drawn],
        # the drawn token beside the likeliest, as OpenAI has it
        "top_logprobs": [
            {label(at): finite(value) for at, value in [(one.id, one.logprobs[one.id]), *reversed(top_of(one, count))]}
            for one in drawn
        ],
        "text_offset": offsets,
    }


class Shape:
    """How one request's answer is written."""

    def __init__(self, params: dict[str, Any], chat: bool, name: str, fault: str) -> None:
        self.params, self.chat, self.name, self.fault = params, chat, name, fault
        self.before: list[Drawn] = []  # what the last event has reported
        self.wants = bool(params.get("logprobs")) if chat else "logprobs" in params
        self.top = params.get("top_logprobs", 0) if chat else params.get("logprobs", 0)

    def head(self, streamed: bool) -> dict[str, Any]:
        kind = ("chat.completion" + ".chunk" * streamed) if self.chat else "text_completion"
        if self.fault == "chunk-object-wrong" and streamed:
            kind = "chunk"
        return {"id": self.name, "object": kind, "created": CREATED, "model": self.params["model"]}

    def logprobs(self, drawn: list[Drawn]) -> dict[str, Any] | None:
        if not self.wants:
            return None
        if self.fault == "report-last-lost" and len(drawn) > 1:
            drawn = drawn[:-1]
        if self.fault == "stream-report-late" and self.params.get("stream"):
            drawn, self.before = self.before or drawn, drawn
        made = chat_logprobs(drawn, self.top) if self.chat else completion_logprobs(drawn, self.top, 0)
        if self.fault == "chosen-lower":
            for one in made.get("content", ()):
                one["logprob"] -= 0.1
            if "token_logprobs" in made:
                made["token_logprobs"] = [value - 0.1 for value in made["token_logprobs"]]
        return made

    def delta(self, index: int, part: Part, first: bool, call: str | None) -> dict[str, Any]:
        """One event's choice. call: the function's name, with the first of its arguments."""
        made: dict[str, Any] = {"index": index, "finish_reason": part.finish}
        made["logprobs"] = self.logprobs([part.drawn] if part.drawn else []) if part.text or part.drawn else None
        if not self.chat:
            return made | {"text": part.text, "stop_reason": part.stop_reason}
        delta: dict[str, Any] = {}
        if part.channel == "reasoning" and self.fault != "thoughts-in-content":
            delta["reasoning_content"] = part.text
        elif part.channel == "arguments":
            index_of = 1 if self.fault == "call-index-jumps" and not call else 0
            delta["tool_calls"] = [{"index": index_of, "function": {"arguments": part.text}}]
            if call:
                head = {"index": 0, "id": f"call_{self.name}", "type": "function"}
                delta["tool_calls"] = [head | {"function": {"name": call, "arguments": part.text}}]
        elif part.text or not part.finish:
            delta["content"] = part.text
        if first:
            if self.fault != "role-missing":
                delta["role"] = "assistant"
        elif self.fault == "role-in-each":
            delta["role"] = "assistant"
        return made | {"delta": delta, "stop_reason": part.stop_reason}

    def whole(self, index: int, parts: list[Part], call: str | None) -> dict[str, Any]:
        """A choice of a plain answer."""
        drawn = [part.drawn for part in parts if part.drawn]
        made: dict[str, Any] = {"index": index, "finish_reason": parts[-1].finish, "logprobs": self.logprobs(drawn)}
        made["stop_reason"] = parts[-1].stop_reason
        text = {name: "".join(part.text for part in parts if part.channel == name) for name in ("content", "reasoning")}
        if not self.chat:
            return made | {"text": text["content"]}
        message: dict[str, Any] = {"role": "assistant", "content": text["content"]}
        if text["reasoning"]:
            message["reasoning_content"] = text["reasoning"]
            if self.fault == "thoughts-in-content":
                message["content"] = text["reasoning"] + text["content"]
        if call:
            arguments = "".join(part.text for part in parts if part.channel == "arguments")
            function = {"name": call, "arguments": arguments}
            message["tool_calls"] = [{"id": f"call_{self.name}", "type": "function", "function": function}]
            message["content"] = None
        return made | {"message": message}
