"""One sequence's tokens → its text, ids, logprobs and end, cut at the same place: detokenizer, then stops.

Ids and logprobs are held back with their text, so at every moment the ids sent spell the text sent, up to an unfinished
character. Knows nothing of sockets or HTTP; when a stop string is found, the caller tells the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.params import SamplingParams
from tailrace.text.detokenize import detokenizer
from tailrace.text.stops import Match, matcher
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import FinishReason, TokenLogprobs


class Delta(NamedTuple):
    """What is new (or, for the cumulative kind, all so far).

    text; token_ids; logprobs: one per token, or None; finish_reason: set on the last delta; stop_reason: the stop string, the pattern
    or the stop token id that ended it, or the cause that the engine or the server named; None for EOS and the length.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def empty(self) -> bool:
        """Nothing to tell."""
        return not (self.text or self.token_ids or self.finish_reason)


class Pending(NamedTuple):
    """A token whose text may not be out yet: it goes when `end` characters are."""

    id: int
    logprobs: TokenLogprobs | None
    end: int


class TextStream:
    """feed tokens as they come, flush once the engine has ended the sequence.

    Args:
        eos_token_ids: of the model. The text of the token that ends a sequence (EOS or a stop id) is left out, unless
            include_stop_str_in_output asks for it; its id stays.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, eos_token_ids: Sequence[int] = ()) -> None:
        self._params = params
        self._check = tokenizer.check
        self._detokenizer = detokenizer(tokenizer, params.hidden(tokenizer.special_ids))
        self._stops = matcher(params)
        self._plain_text, self._passes = self._detokenizer.plain, self._stops.passes
        self._enders = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        )
        self._straight = params.output_kind == "delta"
        self._pending: deque[Pending] = deque()
        self._ender: tuple[int, TokenLogprobs | None] | None = None
        self._decoded = 0  # characters that left the detokenizer
        self._shown = 0  # of them, out
        self._whole = Delta(logprobs=None if params.logprobs is None else ())
        self.num_tokens = 0
        self.finished = False

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None = None) -> Delta:
        """More tokens. If a stop string ends in them the delta says so and is the last; tokens after it are dropped.

        Raises:
            ValueError: an id is outside the vocabulary. RuntimeError: the stream has ended (our bug).
        """
        if self.finished:
            raise RuntimeError("fed after its end")
        if self._straight and not self._pending and (delta := self._plain(token_ids, logprobs)) is not None:
            return delta
        self._check(token_ids)
        text: list[str] = []
        for i, id in enumerate(token_ids):
            entry = logprobs[i] if logprobs is not None else None
            self.num_tokens += 1
            if id in self._enders and self.num_tokens > self._params.min_tokens:
                self._ender = (id, entry)  # the engine will say that it ended here
                break
            safe, match = self._take(id, entry, self._detokenizer.feed(id))
            text.append(safe)
            if match is not None:
                return self._stop("".join(text), match)
        return self._emit("".join(text))

    def flush(self, reason: FinishReason, stop_token_id: int | None = None, cause: str | None = None) -> Delta:
        """The engine has ended the sequence: everything that is left. `cause`: why, where the engine or the server has a name for it.

        Raises:
            RuntimeError: the stream has ended already (our bug).
        """
        if self.finished:
            raise RuntimeError("flushed after its end")
        text, match = "", None
        if self._ender is not None:
            id, entry = self._ender
            silent = reason == "stop" and not self._params.include_stop_str_in_output
            text, match = self._take(id, entry, "" if silent else self._detokenizer.feed(id))
        if match is None:
            rest = self._detokenizer.flush()
            self._decoded += len(rest)
            safe, match = self._stops.feed(rest, self._armed)
            text += safe
        if match is not None:  # the very last text completed a stop
            return self._stop(text, match)
        named = stop_token_id if stop_token_id in self._params.stop_token_ids else cause
        return self._end(text + self._stops.flush(), reason, named)

    def _plain(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> Delta | None:
        """What nearly all tokens are: text by themselves, in which no stop can begin. None if they are not."""
        text = ""
        for id in token_ids:
            plain = self._plain_text(id)
            if plain is None or id in self._enders or not self._passes(plain):
                return None
            text += plain
        self.num_tokens += len(token_ids)
        self._decoded += len(text)
        self._shown += len(text)
        return Delta(text, tuple(token_ids), None if logprobs is None else tuple(logprobs))

    @property
    def _armed(self) -> bool:
        """Stop strings count: they may end only in the text of tokens beyond min_tokens."""
        return self.num_tokens > self._params.min_tokens

    def _take(self, id: int, logprobs: TokenLogprobs | None, text: str) -> tuple[str, Match | None]:
        """One token and the text it completes → what can go out, and the stop that ended in it."""
        self._decoded += len(text)
        self._pending.append(Pending(id, logprobs, self._decoded))
        return self._stops.feed(text, self._armed)

    def _stop(self, text: str, match: Match) -> Delta:
        """The end, at a stop that follows the text."""
        return self._end(text + (match.text if self._params.include_stop_str_in_output else ""), "stop", match.stop)

    def _emit(self, text: str, everything: bool = False) -> Delta:
        """Let the text go, and the tokens whose text is out."""
        self._shown += len(text)
        gone: list[Pending] = []
        while self._pending and (everything or self._pending[0].end <= self._shown):
            gone.append(self._pending.popleft())
        logprobs = None
        if self._params.logprobs is not None:
            logprobs = tuple(token.logprobs for token in gone if token.logprobs is not None)
        return self._by_kind(Delta(text, tuple(t.id for t in gone), logprobs))

    def _end(self, text: str, reason: FinishReason, stop_reason: str | int | None) -> Delta:
        self.finished = True
        delta = self._emit(text, everything=True)
        return delta._replace(finish_reason=reason, stop_reason=stop_reason)

    def _by_kind(self, delta: Delta) -> Delta:
        """Delta as asked: new, all so far, or nothing before the end."""
        if self._params.output_kind == "delta":
            return delta
        logprobs = None if self._whole.logprobs is None else self._whole.logprobs + (delta.logprobs or ())
        self._whole = Delta(
            self._whole.text + delta.text,
            self._whole.token_ids + delta.token_ids,
            logprobs,
        )
        return self._whole if self._params.output_kind == "cumulative" or self.finished else Delta()
