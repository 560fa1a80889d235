"""The verdict on a law, one of five, with the exchanges that show it and the smallest request as curl."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tailrace_conform.exchange import Exchange

Kind = Literal["holds", "broken", "not_offered", "ignored", "inconclusive"]
KINDS: dict[Kind, str] = {
    "holds": "holds",
    "broken": "broken",
    "not_offered": "not offered",
    "ignored": "silently ignored",
    "inconclusive": "inconclusive",
}
SHOWN = 4  # exchanges that a verdict keeps; the first is the smallest request that shows it


@dataclass(frozen=True)
class Verdict:
    """kind: one of KINDS. said: one sentence of what was seen. evidence: exchanges, the smallest request first.
    figures: numbers behind it, for statistical laws (counts, e-values)."""

    kind: Kind
    said: str
    evidence: tuple[Exchange, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def curl(self, url: str) -> str | None:
        """The smallest request that shows it, as a command; None without evidence. url: the server's base."""
        return curl(self.evidence[0], url) if self.evidence and self.kind in ("broken", "ignored") else None


def holds(said: str, **figures: Any) -> Verdict:
    """The law was tested, and nothing speaks against it."""
    return Verdict("holds", said, figures=figures)


def broken(said: str, *evidence: Exchange, **figures: Any) -> Verdict:
    """The law is violated, as the exchanges show."""
    return Verdict("broken", said, evidence[:SHOWN], figures)


def ignored(said: str, *evidence: Exchange, **figures: Any) -> Verdict:
    """The field was accepted, but has no effect."""
    return Verdict("ignored", said, evidence[:SHOWN], figures)


def not_offered(said: str, *evidence: Exchange) -> Verdict:
    """The server says clearly that it does not do this."""
    return Verdict("not_offered", said, evidence[:SHOWN])


def inconclusive(said: str, *evidence: Exchange, **figures: Any) -> Verdict:
    """The budget, or the server's features, do not suffice for a verdict."""
    return Verdict("inconclusive", said, evidence[:SHOWN], figures)


def curl(exchange: Exchange, url: str) -> str:
    """The request of an exchange as a shell command. The API key, if there is one, is left to the shell."""
    parts = ["curl", "-sN" if exchange.streamed else "-s", shlex.quote(url.rstrip("/") + exchange.path)]
    if exchange.needs_key:
        parts.append('-H "Authorization: Bearer $API_KEY"')
    if exchange.method == "POST":
        body = exchange.body if isinstance(exchange.body, str) else json.dumps(exchange.body, ensure_ascii=False)
        parts += ["-H 'Content-Type: application/json'", "-d " + shlex.quote(body)]
    elif exchange.method != "GET":
        parts.append(f"-X {exchange.method}")
    return " ".join(parts)
