"""What an exchange says, in one shape for all endpoints: chat or completions, plain or streamed (the fold of the
events). Missing parts are empty; nothing is judged here.

Bytes that a server reports as `bytes` stay bytes. Legacy completions report tokens as text alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailrace_conform.exchange import Exchange


@dataclass(frozen=True)
class ReplyToken:
    """A token with its log-probability (natural logarithm). top: (text, bytes, logprob) of the likeliest."""

    text: str
    raw: bytes | None
    logprob: float | None
    top: tuple[tuple[str, bytes | None, float], ...] = ()


@dataclass
class ReplyChoice:
    """One choice. pieces: the deltas of its text (one where the answer is plain). ends: the finish reasons that were
    sent, in order."""

    index: int
    text: str = ""
    reasoning: str = ""
    pieces: list[str] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    stop_reason: Any = None
    tokens: list[ReplyToken] = field(default_factory=list)

    @property
    def said(self) -> str:
        """All that was written, thoughts too; between them a separator, which counts as a space."""
        return self.reasoning + "\x1e" + self.text

    @property
    def blank(self) -> bool:
        """Nothing was written, neither text nor thoughts; spaces are nothing."""
        return not self.said.strip()

    @property
    def finish_reason(self) -> str | None:
        return self.ends[-1] if self.ends else None


@dataclass
class FoldedReply:
    """choices by index; usage as it was reported, or None."""

    choices: dict[int, ReplyChoice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    def choice(self, index: int = 0) -> ReplyChoice:
        """A choice, empty where the server sent none."""
        return self.choices.get(index) or ReplyChoice(index)

    @property
    def text(self) -> str:
        return self.choice().text


def reply(exchange: Exchange) -> FoldedReply:
    """The fold of an exchange."""
    made = FoldedReply()
    bodies = [event.parsed for event in exchange.events] if exchange.streamed else [exchange.parsed]
    for body in bodies:
        if not isinstance(body, dict):
            continue
        for one in body.get("choices") or ():
            if isinstance(one, dict):
                index: Any = one.get("index") if isinstance(one.get("index"), int) else 0
                add(made.choices.setdefault(index, ReplyChoice(index)), one)
        if isinstance(body.get("usage"), dict):
            made.usage = body["usage"]
    return made


def add(choice: ReplyChoice, one: dict[str, Any]) -> None:
    """Append a part of a choice, from one event or a whole answer, to the parts known so far."""
    message = one.get("delta") or one.get("message")
    if isinstance(message, dict):
        text = message.get("content")
        choice.reasoning += message.get("reasoning_content") or message.get("reasoning") or ""
        if message.get("role"):
            choice.roles.append(message["role"])
        for call in message.get("tool_calls") or ():
            add_call(choice.tool_calls, call)
    else:
        text = one.get("text")
    if isinstance(text, str) and text:
        choice.text += text
        choice.pieces.append(text)
    if one.get("finish_reason") is not None:
        choice.ends.append(one["finish_reason"])
    if one.get("stop_reason") is not None:
        choice.stop_reason = one["stop_reason"]
    choice.tokens += tokens_of(one.get("logprobs"))


def add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Streamed calls come in parts with the same index: name once, arguments appended."""
    index = part.get("index", len(calls))
    while len(calls) <= index:
        calls.append({"id": None, "name": "", "arguments": ""})
    call, function = calls[index], part.get("function") or {}
    call["id"] = part.get("id") or call["id"]
    call["name"] += function.get("name") or ""
    call["arguments"] += function.get("arguments") or ""


def tokens_of(logprobs: Any) -> list[ReplyToken]:
    """The tokens of a logprobs object: chat's list of content, or the parallel lists of legacy completions."""
    if not isinstance(logprobs, dict):
        return []
    if isinstance(logprobs.get("content"), list):
        return [
            ReplyToken(
                one.get("token", ""),
                as_bytes(one.get("bytes")),
                one.get("logprob"),
                tuple(
                    (top.get("token", ""), as_bytes(top.get("bytes")), top["logprob"])
                    for top in one.get("top_logprobs") or ()
                ),
            )
            for one in logprobs["content"]
        ]
    texts, tops = logprobs.get("tokens") or [], logprobs.get("top_logprobs") or []
    return [
        ReplyToken(
            text,
            None,
            value,
            tuple((name, None, number) for name, number in (tops[at] or {}).items()) if at < len(tops) else (),
        )
        for at, (text, value) in enumerate(zip(texts, logprobs.get("token_logprobs") or [], strict=False))
    ]


def as_bytes(values: Any) -> bytes | None:
    return bytes(values) if isinstance(values, list) else None
