"""One sequence's tokens → its text, ids, logprobs and end, cut at the same place: detokenizer, then stops.

Ids and logprobs are held back with their text, so at every moment the ids sent spell the text sent. Knows nothing of sockets or HTTP;
when a stop string is found, the caller tells the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.text.detokenize import detokenizer
from tailrace.text.stop_strings import Match, matcher
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.utf8 import decoded
from tailrace.wire.messages import FinishReason, TokenLogprobs

OWN: Mapping[int, bytes | None] = MappingProxyType({})  # the text has all bytes of all tokens


class Delta(msgspec.Struct, frozen=True):
    """What is new (or, for the cumulative kind, all so far).

    text; token_ids; logprobs: one per token, or None; finish_reason: set on the last delta; stop_reason: the stop string, the pattern
    or the stop token id that ended it, or the cause that the engine or the server named; None for EOS and the length.
    offsets: one per logprob: where in the text the token begins, in characters. spelt: place in token_ids → the bytes that the text has
    of the token, where these are not all its own: none of EOS, of a token that is hidden, and (None) of one behind a stop.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    offsets: tuple[int, ...] = ()
    spelt: Mapping[int, bytes | None] = OWN


class HeldToken(msgspec.Struct, frozen=True):
    """A token whose text may not be out yet: it begins behind `begin` characters and goes when `end` are out. spelt: see Delta; None: all
    its bytes."""

    id: int
    logprobs: TokenLogprobs | None
    begin: int
    end: int
    spelt: bytes | None


class TextStream:
    """feed tokens as they come, flush once the engine has ended the sequence.

    Args:
        eos_token_ids: of the model. The text of the token that ends a sequence (EOS or a stop id) is left out, unless
            include_stop_str_in_output asks for it; its id stays.
        prompt: the ids that come before; a character that begins in them comes out whole.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        eos_token_ids: Sequence[int] = (),
        prompt: Sequence[int] = (),
    ) -> None:
        self._params = params
        self._check, self._bytes_of, self._texts = tokenizer.check, tokenizer.bytes_of, tokenizer.texts
        self._scored = params.logprobs is not None
        self._by_library = tokenizer.kind == "library"
        self._hidden = params.hidden(tokenizer.special_ids)
        self._detokenizer = detokenizer(tokenizer, self._hidden, prompt)
        self._stops = matcher(params)
        self._plain_text, self._passes = self._detokenizer.plain, self._stops.passes
        self._enders = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        )
        self._straight = params.output_kind == "delta"
        self._min_tokens = params.min_tokens  # stop strings may end only in the text of tokens beyond them
        self._pending: deque[HeldToken] = deque()
        self._ender: tuple[int, TokenLogprobs | None] | None = None
        self._decoded = 0  # characters that left the detokenizer
        self._shown = 0  # of them, out
        self._whole = Delta(logprobs=None if params.logprobs is None else ())
        self.num_tokens = 0
        self.finished = False

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None = None) -> Delta:
        """More tokens. If a stop string ends in them the delta says so and is the last; tokens after it are dropped.

        Raises:
            ParameterError: an id is outside the vocabulary, or there are not as many logprobs. RuntimeError: the stream has ended (our
                bug).
        """
        if self.finished:
            raise RuntimeError("fed after its end")
        try:
            if logprobs is not None and len(logprobs) != len(token_ids):
                raise ParameterError(
                    f"logprobs must be one per token, {len(token_ids)}; got {len(logprobs)}", "logprobs"
                )
            if self._straight and not self._pending and (delta := self._plain(token_ids, logprobs)) is not None:
                return delta
        except TypeError as error:
            self._check(token_ids)
            raise ParameterError(f"logprobs must be one per token: {error}", "logprobs") from error
        self._check(token_ids)
        text: list[str] = []
        for i, id in enumerate(token_ids):
            entry = logprobs[i] if logprobs is not None else None
            self.num_tokens += 1
            if id in self._enders and self.num_tokens > self._min_tokens:
                self._ender = (id, entry)  # the engine will say that it ended here
                break
            safe, match = self._take(id, entry)
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
            if reason == "stop" and not self._params.include_stop_str_in_output:
                self._pending.append(HeldToken(id, entry, self._decoded, self._decoded, b""))
            else:
                text, match = self._take(id, entry)
        if match is None:
            rest = self._detokenizer.flush()
            self._decoded += len(rest)
            safe, match = self._stops.feed(rest, self.num_tokens > self._min_tokens)
            text += safe
        if match is not None:  # the very last text completed a stop
            return self._stop(text, match)
        named = stop_token_id if stop_token_id in self._params.stop_token_ids else cause
        return self._end(text + self._stops.flush(), reason, named)

    def _plain(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> Delta | None:
        """What nearly all tokens are: text by themselves, in which no stop can begin. None if they are not."""
        text, begin = "", self._decoded
        offsets: list[int] = []
        for id in token_ids:
            plain = self._plain_text(id)
            if plain is None or id in self._enders or not self._passes(plain):
                return None
            if logprobs is not None:
                offsets.append(begin + len(text))
            text += plain
        self.num_tokens += len(token_ids)
        self._decoded += len(text)
        self._shown += len(text)
        if logprobs is None:
            return Delta(text, tuple(token_ids))
        return Delta(text, tuple(token_ids), tuple(logprobs), None, None, tuple(offsets))

    def _take(self, id: int, logprobs: TokenLogprobs | None) -> tuple[str, Match | None]:
        """One token → what can go out, and the stop that ended in it."""
        detokenizer = self._detokenizer
        text = detokenizer.feed(id)
        begin = self._decoded + detokenizer.lead
        end = self._decoded = self._decoded + len(text)
        if detokenizer.unfinished:
            end = max(begin, end) + 1
        spelt = self._spelt(id, text[detokenizer.lead :]) if self._scored else None
        self._pending.append(HeldToken(id, logprobs, begin, end, spelt))
        return self._stops.feed(text, self.num_tokens > self._min_tokens)

    def _spelt(self, id: int, own: str) -> bytes | None:
        """The bytes that the text has of a token, None where they are its own. own: the text that came with it alone."""
        if id in self._hidden or self._detokenizer.silent:
            return b""
        whole = self._texts[id] if 0 <= id < len(self._texts) else ""
        if whole == own or (
            whole is None and not self._by_library
        ):  # bytes of a character, which comes when it is whole
            return None
        data = own.encode()
        return None if data == self._bytes_of(id) else data

    def _stop(self, text: str, match: Match) -> Delta:
        """The end, at a stop that follows the text."""
        shown = text + (match.text if self._params.include_stop_str_in_output else "")
        cut = self._cut(list(self._pending), self._shown + len(shown)) if self._scored else None
        return self._end(shown, "stop", match.stop, cut)

    def _emit(self, text: str, everything: bool = False, cut: dict[int, bytes | None] | None = None) -> Delta:
        """Let the text go, and the tokens whose text is out. cut: spelt, for those that a stop cuts."""
        shown = self._shown = self._shown + len(text)
        pending, scored = self._pending, self._scored
        ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        offsets: list[int] = []
        spelt: dict[int, bytes | None] = {}
        while pending and (everything or pending[0].end <= shown):
            token = pending.popleft()
            if scored:
                offsets.append(token.begin)
                if token.logprobs is not None:
                    logprobs.append(token.logprobs)
                if token.spelt is not None:
                    spelt[len(ids)] = token.spelt
            ids.append(token.id)
        if not scored:
            return self._by_kind(Delta(text, tuple(ids)))
        if cut is not None:
            spelt |= cut
        return self._by_kind(Delta(text, tuple(ids), tuple(logprobs), None, None, tuple(offsets), spelt))

    def _cut(self, tokens: list[HeldToken], limit: int) -> dict[int, bytes | None]:
        """What the text has of these tokens where it ends behind `limit` characters, in the middle of them: place → as in Delta."""
        begun = b""
        found: dict[int, bytes | None] = {}
        at = tokens[0].begin if tokens else 0
        for place, token in enumerate(tokens):
            data = self._bytes_of(token.id) if token.spelt is None else token.spelt
            at = at if begun else token.begin
            if at >= limit and (data or found):
                found[place] = None
                continue
            for size, byte in enumerate(data, start=1):
                text, begun = decoded(begun + bytes([byte]))
                at += len(text)
                if at >= limit:
                    kept = size if at == limit and not begun else size - 1
                    if kept < len(data):
                        found[place] = data[:kept] or None
                    break
        return found

    def _end(
        self,
        text: str,
        reason: FinishReason,
        stop_reason: str | int | None,
        cut: dict[int, bytes | None] | None = None,
    ) -> Delta:
        self.finished = True
        delta = self._emit(text, everything=True, cut=cut)
        return msgspec.structs.replace(delta, finish_reason=reason, stop_reason=stop_reason)

    def _by_kind(self, delta: Delta) -> Delta:
        """Delta as asked: new, all so far, or nothing before the end."""
        if self._straight:
            return delta
        before = self._whole
        self._whole = Delta(
            before.text + delta.text,
            before.token_ids + delta.token_ids,
            None if before.logprobs is None else before.logprobs + (delta.logprobs or ()),
            offsets=before.offsets + delta.offsets,
            spelt={**before.spelt, **{len(before.token_ids) + place: data for place, data in delta.spelt.items()}},
        )
        return self._whole if self._params.output_kind == "cumulative" or self.finished else Delta()
