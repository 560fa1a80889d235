"""New output of a sequence: its text, its tokens, and the reports on them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from tailrace.errors import ParameterError
from tailrace.explain.record import Explanation
from tailrace.wire.messages import FinishReason, TokenLogprobs

UNCUT: Mapping[int, bytes | None] = MappingProxyType({})  # every token has all its bytes in the text


class Delta(msgspec.Struct, frozen=True):
    """New output of a sequence (for the cumulative kind: everything so far).

    - text, token_ids: new text and its tokens.
    - logprobs, explanations, survivors: one per token, or None.
    - offsets: one per token: its place in the text, in characters.
    - finish_reason: set on the last delta.
    - stop_reason: the stop string, pattern or stop token id that ended the text, or the cause that the engine or the
      server gave. None for EOS and the length.
    - spelt: place in token_ids → the token's bytes in the text, if they differ from the token's own bytes. b"" for EOS
      and for hidden tokens, None for tokens after a stop.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    offsets: tuple[int, ...] = ()
    spelt: Mapping[int, bytes | None] = UNCUT
    explanations: tuple[Explanation, ...] | None = None
    survivors: tuple[bytes, ...] | None = None

    @property
    def cut(self) -> bool:
        """Whether a limit, a stop string or an error ended the text, not the model itself."""
        return self.finish_reason != "stop" or isinstance(self.stop_reason, str)


class ReportedToken(NamedTuple):
    """A token with its reports, if the request wants them."""

    id: int
    logprobs: TokenLogprobs | None
    explanation: Explanation | None
    survivors: bytes | None


class HeldToken(msgspec.Struct, frozen=True):
    """A token whose text may not have been sent yet. It begins after `begin` characters, and is sent once `end`
    characters are sent. spelt: see Delta; None: all its bytes."""

    reported: ReportedToken
    begin: int
    end: int
    spelt: bytes | None

    @property
    def id(self) -> int:
        """Its token id."""
        return self.reported.id


def counted_wrong(name: str, tokens: int, given: int) -> ParameterError:
    """Return the error for a number of reports that differs from the number of tokens."""
    return ParameterError(f"{name} must be one per token, {tokens}; got {given}", name)
