"""From token ids to an answer's text: whole characters, the earliest stop, and no more held back than may become one.

Written for clearness: the whole text is searched anew with every token.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class AnswerText:
    """`feed` takes a token's bytes and returns the text that may be sent; `ended` says that a stop was found."""

    def __init__(self, stops: Sequence[str], include: bool = False, fault: str = "", streamed: bool = False) -> None:
        self.stops, self.include, self.fault, self.streamed = stops, include, fault, streamed
        self.text, self.sent = "", 0
        self.stop_reason: str | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def ended(self) -> bool:
        return self.stop_reason is not None

    def feed(self, data: bytes, last: bool = False, may_stop: bool = True) -> str:
        """last: nothing follows; a character that is not whole is left out."""
        if self.fault == "characters-split" and self.streamed:
            self.text += data.decode(errors="replace")
        else:
            self.text += self._decoder.decode(data)
        splits = "last-character-split" if self.streamed else "plain-last-character-split"
        if last and self.fault == splits and self.text[-1:] > "\x7f":
            self.text = self.text[:-1] + "\ufffd"
        if may_stop and (found := self._earliest()):
            at, self.stop_reason = found
            return self._send(self._cut(at, self.stop_reason))
        return self._send(len(self.text) - (0 if last else self._held()))

    def _earliest(self) -> tuple[int, str] | None:
        """Where the earliest match begins, and which stop it is: the longest where several begin there."""
        found = [(at, -len(stop), stop) for stop in self.stops if (at := self.text.find(stop)) >= 0]
        if not found:
            return None
        if self.fault == "stop-first-listed":
            at, _, stop = found[0]
        else:
            at, _, stop = min(found)
        return at, stop

    def _cut(self, at: int, stop: str) -> int:
        if self.fault == "stop-one-late":
            return at + 1
        if self.fault == "stop-to-token-end":  # all of the token that completes it is shown
            return len(self.text)
        if self.include and self.fault != "include-ignored":
            return at + len(stop) - (self.fault == "include-one-short")
        return at

    def _held(self) -> int:
        """Characters at the end that may become a stop: the longest suffix of the text that begins one."""
        if self.fault == "stop-leaks" and self.streamed:
            return 0
        if self.fault == "held-too-long":
            return min(len(self.text), max((len(stop) - 1 for stop in self.stops), default=0))
        return max(
            (n for stop in self.stops for n in range(1, len(stop)) if self.text.endswith(stop[:n])),
            default=0,
        )

    def _send(self, end: int) -> str:
        end = max(end, self.sent)
        part, self.sent = self.text[self.sent : end], end
        return part
