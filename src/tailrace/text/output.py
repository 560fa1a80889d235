"""One sequence's tokens → its text, ids, logprobs and end, all cut at the same place: a detokenizer, then stop strings.

Ids and logprobs are held back with their text, so the sent ids always spell the sent text. Knows nothing of sockets or
HTTP. When a stop string is found, the caller reports it to the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from tailrace.errors import ParameterError
from tailrace.explain.record import Explanation
from tailrace.params import SamplingParams
from tailrace.text.delta import Delta, HeldToken, ReportedToken, counted_wrong
from tailrace.text.detokenize import detokenizer
from tailrace.text.stop_strings import Match, stop_search
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.utf8 import decode_utf8
from tailrace.wire.messages import FinishReason, TokenLogprobs


class TextStream:
    """The output stream of a sequence. Feed tokens as they come; flush once the engine has ended the sequence.

    Args:
        eos_token_ids: of the model. The token that ends a sequence (EOS or a stop id) leaves no text, unless
            include_stop_str_in_output is set. Its id stays.
        prompt: the ids before the output. A character that begins in them is returned whole.
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
        self._scored = params.logprobs is not None or params.explain is not None or params.return_sampling_mask
        self._by_library = tokenizer.kind == "library"
        self._hidden = params.hidden(tokenizer.special_ids)
        self._detokenizer = detokenizer(tokenizer, self._hidden, prompt)
        self._stops = stop_search(params)
        self._plain_text, self._passes = self._detokenizer.plain, self._stops.passes
        self._ruled = params.grammar is not None  # then a stop id may be text, until the end is known
        self._ending_ids = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos and not self._ruled else frozenset(eos_token_ids)
        )
        self._straight = params.output_kind == "delta"
        self._min_tokens = params.min_tokens  # earlier tokens complete no stop string
        self._held: deque[HeldToken] = deque()
        self._ending: ReportedToken | None = None
        self._decoded = 0  # characters that the detokenizer has returned
        self._shown = 0  # characters that were sent
        asked = (params.logprobs is not None, params.explain is not None, params.return_sampling_mask)
        logprobs, explanations, survivors = (() if one else None for one in asked)
        self._whole = Delta(logprobs=logprobs, explanations=explanations, survivors=survivors)
        self.num_tokens = 0
        self.finished = False

    def feed(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] | None = None,
        explanations: Sequence[Explanation] | None = None,
        survivors: Sequence[bytes] | None = None,
    ) -> Delta:
        """Add tokens. If a stop string ends in them, the delta reports it and is the last one. Tokens after the stop
        are dropped.

        Raises:
            ParameterError: an id is outside the vocabulary, or the number of reports differs from the tokens'.
            RuntimeError: the stream has ended (a bug in this package).
        """
        if self.finished:
            raise RuntimeError("feed was called after the end of the stream")
        try:
            if logprobs is not None and len(logprobs) != len(token_ids):
                raise counted_wrong("logprobs", len(token_ids), len(logprobs))
            if explanations is not None and len(explanations) != len(token_ids):
                raise counted_wrong("explanations", len(token_ids), len(explanations))
            if survivors is not None and len(survivors) != len(token_ids):
                raise counted_wrong("survivors", len(token_ids), len(survivors))
            straight = self._straight and not self._held and self._ending is None
            if straight and (plain := self._feed_plain_tokens(token_ids, logprobs, explanations, survivors)):
                return plain
        except TypeError as error:
            self._check(token_ids)
            raise ParameterError(f"logprobs must be one per token: {error}", "logprobs") from error
        self._check(token_ids)
        text: list[str] = []
        for i, id in enumerate(token_ids):
            entry = None if logprobs is None else logprobs[i]
            record = None if explanations is None else explanations[i]
            reported = ReportedToken(id, entry, record, None if survivors is None else survivors[i])
            safe, match = self._read_token(reported)
            text.append(safe)
            if match is not None:
                return self._emit_stop("".join(text), match)
            if self._ending is not None and not self._ruled:
                break  # the engine will report the end
        return self._emit_delta("".join(text))

    def flush(self, reason: FinishReason, stop_token_id: int | None = None, cause: str | None = None) -> Delta:
        """Return the rest, once the engine has ended the sequence. cause: the cause that the engine or the server gave,
        if any.

        Raises:
            RuntimeError: the stream has ended already (a bug in this package).
        """
        if self.finished:
            raise RuntimeError("flush was called after the end of the stream")
        text, match = "", None
        if self._ending is not None:
            ended = reason == "stop" and (stop_token_id is not None or not self._ruled)
            if ended and not self._params.include_stop_str_in_output:
                self._held.append(HeldToken(self._ending, self._decoded, self._decoded, b""))
            else:
                text, match = self._add_token(self._ending)
        if match is None:
            rest = self._detokenizer.flush()
            self._decoded += len(rest)
            safe, match = self._stops.feed(rest, self.num_tokens > self._min_tokens)
            text += safe
        if match is not None:  # the last text completed a stop
            return self._emit_stop(text, match)
        named = stop_token_id if stop_token_id in self._params.stop_token_ids else cause
        return self._emit_end(text + self._stops.flush(), reason, named)

    def _feed_plain_tokens(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] | None,
        explanations: Sequence[Explanation] | None,
        survivors: Sequence[bytes] | None,
    ) -> Delta | None:
        """Add tokens on the fast path for nearly all tokens: each is text by itself, and no stop can begin in it.
        Return None if a token is not plain."""
        text, begin = "", self._decoded
        offsets: list[int] = []
        for id in token_ids:
            plain = self._plain_text(id)
            if plain is None or id in self._ending_ids or not self._passes(plain):
                return None
            offsets.append(begin + len(text))
            text += plain
        self.num_tokens += len(token_ids)
        self._decoded += len(text)
        self._shown += len(text)
        entries = None if logprobs is None else tuple(logprobs)
        records = None if explanations is None else tuple(explanations)
        kept = None if survivors is None else tuple(survivors)
        return Delta(text, tuple(token_ids), entries, None, None, tuple(offsets), explanations=records, survivors=kept)

    def _read_token(self, reported: ReportedToken) -> tuple[str, Match | None]:
        """Add one token. Keep a token that may be the end: if another token follows, it was text. Return the result of
        `_add_token`."""
        text = ""
        if self._ending is not None:
            text, match = self._add_token(self._ending)
            self._ending = None
            if match is not None:
                return text, match
        self.num_tokens += 1
        if reported.id in self._ending_ids and (self._ruled or self.num_tokens > self._min_tokens):
            self._ending = reported
            return text, None
        safe, match = self._add_token(reported)
        return text + safe, match

    def _add_token(self, reported: ReportedToken) -> tuple[str, Match | None]:
        """Add one token. Return the text that can be sent, and the stop that ended in the token."""
        detokenizer, id = self._detokenizer, reported.id
        text = detokenizer.feed(id)
        begin = self._decoded + detokenizer.lead
        end = self._decoded = self._decoded + len(text)
        if detokenizer.unfinished:
            end = max(begin, end) + 1
        spelt = self._spell_token(id, text[detokenizer.lead :]) if self._scored else None
        self._held.append(HeldToken(reported, begin, end, spelt))
        return self._stops.feed(text, self.num_tokens > self._min_tokens)

    def _spell_token(self, id: int, own: str) -> bytes | None:
        """Return the bytes of a token in the text, or None if they are the token's own. own: the text that this token
        alone added."""
        if id in self._hidden or self._detokenizer.silent:
            return b""
        whole = self._texts[id] if 0 <= id < len(self._texts) else ""
        part_of_character = whole is None and not self._by_library  # sent when the character is complete
        if whole == own or part_of_character:
            return None
        data = own.encode()
        return None if data == self._bytes_of(id) else data

    def _emit_stop(self, text: str, match: Match) -> Delta:
        """Return the last delta, at a stop that follows the text."""
        shown = text + (match.text if self._params.include_stop_str_in_output else "")
        cut = self._cut_tokens(list(self._held), self._shown + len(shown)) if self._scored else None
        return self._emit_end(shown, "stop", match.stop, cut)

    def _emit_delta(self, text: str, everything: bool = False, cut: dict[int, bytes | None] | None = None) -> Delta:
        """Send the text, and the tokens whose text is sent. cut: `spelt` for the tokens that a stop cuts."""
        shown = self._shown = self._shown + len(text)
        pending, scored = self._held, self._scored
        ids: list[int] = []
        reports: list[ReportedToken] = []
        offsets: list[int] = []
        spelt: dict[int, bytes | None] = {}
        while pending and (everything or pending[0].end <= shown):
            token = pending.popleft()
            offsets.append(token.begin)
            if scored:
                reports.append(token.reported)
                if token.spelt is not None:
                    spelt[len(ids)] = token.spelt
            ids.append(token.id)
        if not scored:
            return self._by_kind(Delta(text, tuple(ids), offsets=tuple(offsets)))
        if cut is not None:
            spelt |= cut
        logprobs = tuple(report.logprobs for report in reports if report.logprobs is not None)
        records = tuple(report.explanation for report in reports if report.explanation is not None)
        survivors = tuple(report.survivors for report in reports if report.survivors is not None)
        whole = self._whole  # shows which reports the request wants
        return self._by_kind(
            Delta(
                text,
                tuple(ids),
                None if whole.logprobs is None else logprobs,
                offsets=tuple(offsets),
                spelt=spelt,
                explanations=None if whole.explanations is None else records,
                survivors=None if whole.survivors is None else survivors,
            )
        )

    def _cut_tokens(self, tokens: list[HeldToken], limit: int) -> dict[int, bytes | None]:
        """Return place → remaining bytes, as in Delta, for tokens of a text that ends after `limit` characters."""
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
                text, begun = decode_utf8(begun + bytes([byte]))
                at += len(text)
                if at >= limit:
                    kept = size if at == limit and not begun else size - 1
                    if kept < len(data):
                        found[place] = data[:kept] or None
                    break
        return found

    def _emit_end(
        self,
        text: str,
        reason: FinishReason,
        stop_reason: str | int | None,
        cut: dict[int, bytes | None] | None = None,
    ) -> Delta:
        self.finished = True
        delta = self._emit_delta(text, everything=True, cut=cut)
        return msgspec.structs.replace(delta, finish_reason=reason, stop_reason=stop_reason)

    def _by_kind(self, delta: Delta) -> Delta:
        """Return the delta in the requested kind: new, cumulative, or nothing before the end."""
        if self._straight:
            return delta
        before = self._whole
        self._whole = Delta(
            before.text + delta.text,
            before.token_ids + delta.token_ids,
            None if before.logprobs is None else before.logprobs + (delta.logprobs or ()),
            explanations=None if before.explanations is None else before.explanations + (delta.explanations or ()),
            survivors=None if before.survivors is None else before.survivors + (delta.survivors or ()),
            offsets=before.offsets + delta.offsets,
            spelt={**before.spelt, **{len(before.token_ids) + place: data for place, data in delta.spelt.items()}},
        )
        return self._whole if self._params.output_kind == "cumulative" or self.finished else Delta()
