"""Text up to the mark that closes it. The text itself may hold that mark, and whole calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.text.tool_parsers.argument_stream import ArgumentText
from tailrace.text.tool_parsers.call_parser import WHITE, CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.lookahead import END, Part, match_sequences


class Closing(NamedTuple):
    """The mark that closes a text, and the sequences before which the mark counts.

    - followers: the mark closes the text if a follower comes next and the mark is in no call inside the text.
    - ends: the complete end of the call first. A mark before one of these also closes the text, unless the text
      continues. It continues up to a later mark before a follower. It also continues up to a later mark before the
      complete end, if another call or the end of the answer follows.
    - loose: if no mark closes the text, the first mark before one of these closes it.
    """

    mark: str
    followers: Sequence[tuple[Part, ...]]
    ends: Sequence[tuple[Part, ...]]
    loose: Sequence[tuple[Part, ...]]


class Enclosure:
    """The marks that close texts of a format.

    Args:
        call: the sequence that begins a call. It starts with the block's opening marker.
        closing: the block's closing marker.
        between: the sequence between two calls. Outside of calls, no text holds it.
    """

    def __init__(self, call: tuple[Part, ...], closing: str, between: tuple[Part, ...]) -> None:
        self.call, self.opening, self.closing, self.between = call, str(call[0]), closing, between

    def read(self, parser: CallParser, closing: Closing, stream: ArgumentText | None = None) -> Parsing[str]:
        """Read the text and the mark that closes it. `stream`: the sink of a text that leaves as it is read.

        Raises:
            NotACallError: the text ends before a mark closes it.
        """
        found, _ = yield from self.search(parser, closing, stream)
        if found is None:
            raise NotACallError(closing.mark)
        return found

    def search(
        self, parser: CallParser, closing: Closing, stream: ArgumentText | None = None
    ) -> Parsing[tuple[str | None, str]]:
        """Read the text and the mark that closes it, like `read`. Return the text, and everything that was read.

        The text is None if no mark closes it.
        """
        text, place = yield from self._read_enclosed(parser, closing, True, stream)
        if place is None:
            parser.give_back(text)
            if stream is not None:
                stream.rewind()
            text, place = yield from self._read_enclosed(parser, closing, False, stream)
        if place is None:
            return None, text
        if place < len(text):
            parser.give_back(text[place:])
        parser.take(len(closing.mark))
        return text[:place], text

    def _read_enclosed(
        self, parser: CallParser, closing: Closing, nests: bool, stream: ArgumentText | None
    ) -> Parsing[tuple[str, int | None]]:
        """Read up to the mark that closes the text, or else to the end.

        Return everything that was read, and the place in it where the text ends. The place is None if no mark closes
        the text. (More than 40 lines: one loop over marks.)
        """
        close, followers, ends, loose = closing
        parts, depth = list[str](), 0
        place: int | None = None
        over: int | None = None  # where the text ends if the same call does not continue
        # after a possible end of the call: sequences that show that the text continues up to the mark before them
        later = [one for one in followers if END not in one and one != (WHITE, self.call[-1])]
        later += [(*one, WHITE, *self.call) for one in ends[:1]]
        while True:
            if stream is not None:
                stream.frozen |= bool(depth) or place is not None or over is not None
            sink = None if stream is None else stream.take
            part, mark = yield from parser.up_to(close, self.opening, self.closing, str(self.between[0]), sink=sink)
            parts.append(part)
            if not mark or (
                not depth and mark == self.between[0] and (yield from match_sequences(parser, [self.between]))
            ):
                return "".join(parts), place if over is None else over
            if over is not None:
                if mark == self.opening:
                    return "".join(parts), over
                if mark == close:
                    if (yield from match_sequences(parser, [(close, *one) for one in later])):
                        text = "".join(parts)
                        return text, len(text)
                    if (yield from match_sequences(parser, [(close, *ends[0], WHITE, END)])):
                        over = len("".join(parts))
            elif mark == self.opening and (yield from match_sequences(parser, [self.call])):
                depth += nests
            elif mark == self.closing and depth:
                depth -= 1
            elif mark == close and not depth:
                if (yield from match_sequences(parser, [(close, *one) for one in followers])):
                    text = "".join(parts)
                    return text, len(text)
                if (yield from match_sequences(parser, [(close, *one) for one in ends])):
                    over = len("".join(parts))
                elif place is None and (yield from match_sequences(parser, [(close, *one) for one in loose])):
                    place = len("".join(parts))
            parts.append(parser.take(len(mark)))
            if stream is not None:
                stream.feed(mark)
