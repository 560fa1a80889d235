"""The tags of a format as sequences of literals, names and white space. Readers of bare values match them."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

from tailrace.text.tool_parsers.call_parser import WHITE
from tailrace.text.tool_parsers.lookahead import END, Part, make_torn_end, parts_of

Sequence = tuple[Part, ...]


class Tags:
    """The tags of a format as sequences. `tagged.Tagged` describes the tags."""

    def __init__(self, opening: str, closing: str, call: str, end: str, parameter: str, close: str) -> None:
        self.close, self.end, self.closing = close, end, closing
        self.head, self.opening = parts_of(parameter), (opening, WHITE)
        self.first = str(self.head[0])
        last: Sequence = (end, WHITE) if end else ()
        begun = (*parts_of(call), *(() if end else (WHITE,)))
        self.heads = ((WHITE, *self.head),)  # after a value's closing tag: the next parameter
        # after a value's closing tag: the complete end of the call, or the end without the call's own tag
        self.endings = ((WHITE, *last, closing), *(((WHITE, closing),) if end else ()))
        # after a value's closing tag: the next call, or the end of the text
        self.nexts = ((WHITE, *last, opening), *([(WHITE, *last, *begun), (WHITE, *last, END)] if end else []))
        self.nested = tuple((opening, WHITE, *begun, *more) for more in ([()] if end else [(self.first,), (closing,)]))
        self.calls = (*self.nested, *((begun,) if end else ()))
        # after a value's closing tag: the end of the call, and the next call
        ends = (self.endings[0], *(((WHITE, end),) if end else ()))
        self.last_before_call = tuple((*one, WHITE, *call) for one in ends for call in self.calls)
        self.bare_ending = (*last, closing)  # the end of the call without a value's closing tag

    @cached_property
    def torn(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """Return two patterns of an incomplete last tag at the end of the text.

        The first matches any incomplete tag. The second matches only a tag that can't become a parameter's tag.
        """
        return make_torn_end((self.end, self.closing), ()), make_torn_end((self.end, self.closing), (self.first,))

    @cached_property
    def torn_ending(self) -> re.Pattern[str]:
        """Return a pattern of an incomplete end of the call, if the value's closing tag is missing or incomplete."""
        torn = make_torn_end((self.close, self.end, self.closing), (), shortest=2)
        return re.compile(rf"(?:{re.escape(self.end)}\s*)?{torn.pattern}")

    @cached_property
    def _at_end(self) -> re.Pattern[str]:
        """Return a pattern of a tag at the end of a text, complete or not. The value's closing tag may be torn, see
        `tagged.make_torn_pattern`."""
        close = self.close
        tags = [write_beginnings(tag) for tag in (close, close[1:], self.end, self.closing) if tag]
        tags += [
            write_beginnings(close[:i], f".{{0,2}}(?:{write_beginnings(close[i + 1 :])})?")
            for i in range(1, len(close))
        ]
        return re.compile(rf"(?:{'|'.join(tags)})\Z", re.DOTALL)

    def is_certain(self, text: str) -> int:
        """Return the number of characters that belong to a value of this text, whatever follows.

        White space and tags at the end may be no part of the value.
        """
        rest = text.rstrip()
        longest = len(self.close) + len(self.end) + len(self.closing)
        while found := self._at_end.search(rest, max(0, len(rest) - longest)):
            rest = rest[: found.start()].rstrip()
        return len(rest)

    @cached_property
    def plain(self) -> re.Pattern[str]:
        """Return a pattern of text in which no tag and no JSON string begins."""
        first = {mark[0] for mark in (self.close, self.end, self.closing, self.first, str(self.opening[0])) if mark}
        return re.compile(rf'[^"\\{re.escape("".join(sorted(first)))}]+')


def write_beginnings(text: str, then: str = "") -> str:
    """Return the source of a pattern of the text's beginnings. `then`: the source of what may follow the whole text."""
    found = then
    for char in reversed(text):
        found = re.escape(char) + (f"(?:{found})?" if found else "")
    return found


tags_of = lru_cache(maxsize=64)(Tags)
