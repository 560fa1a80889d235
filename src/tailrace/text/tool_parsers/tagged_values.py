"""Bare text between tags. The text may hold any tag, even its own closing tag and whole calls.

A closing tag therefore counts only if the next parameter or the end of the call follows.
(More than 300 lines: one reader with one state.)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tailrace.text.tool_parsers.argument_stream import ArgumentText
from tailrace.text.tool_parsers.call_parser import WHITE, CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.lookahead import END, KEY, match_sequences
from tailrace.text.tool_parsers.resolve import Declared
from tailrace.text.tool_parsers.tag_sequences import Sequence, Tags
from tailrace.text.tool_parsers.values import is_json


class Found(NamedTuple):
    """A value, and whether its closing tag was read.

    If the tag was not read, another parameter or the end of the call comes next.
    """

    text: str
    closed: bool


class Names(NamedTuple):
    """The declared parameters except the one that is read.

    - `others`: parameters that may follow even if the closing tag is missing.
    - `written`: parameters that can't follow. Their tags are text.
    """

    others: Collection[str]
    written: Collection[str]


class Form(NamedTuple):
    """How the value is written; see `ValueReader`."""

    own_line: bool
    alone: bool


class ValueReader:
    """A reader of one value.

    Args:
        names: other declared parameters. The text may hold their tags.
        form: own_line: tags stand on separate lines.
            alone: no marker opened the calls. Only the end of a call shows where the calls end.
        stream: the sink of a text that leaves as it is read.
    """

    def __init__(
        self,
        parser: CallParser,
        tags: Tags,
        declared: Declared,
        names: Names,
        form: Form,
        stream: ArgumentText | None = None,
    ) -> None:
        self.parser, self.tags, self.stream = parser, tags, stream
        self.own_line, alone = form
        self.others, self.written = names
        self.kinds = declared.get_kinds()
        self.may_be_text = not self.kinds or "string" in self.kinds
        self.endings = (*tags.endings, *(((WHITE, tags.end),) if alone and tags.end else ()))
        self.json = self.nests = True
        self._reset_value()

    def _reset_value(self) -> None:
        self.parts: list[str] = []
        self.length = self.visible = 0  # Of the text, and of the text up to its last part that is not white space.
        self.depth, self.nested = 0, False  # Number of open calls inside the text; the text had any.
        self.inside = False  # The reader is inside a JSON string.
        self.torn = False  # A closing tag was read as text.
        # Parameters that began in the text or after it: they are counted; number of open ones.
        self.counting, self.pairs = False, 0
        self.paired = 0  # Where the last of these parameters was closed.
        # Where the value ends if these parameters are after it; a closing tag is there.
        self.doubt: tuple[int, bool] | None = None
        self.over: int | None = None  # Where the value and its call end if the call has no further tags.
        # Where the value ends if no better end comes; a closing tag is there.
        self.candidates: list[tuple[int, bool]] = []

    def read(self) -> Parsing[Found]:
        """Read the value and its closing tag.

        Raises:
            NotACallError: the text ends before the value does.
        """
        parser, kinds = self.parser, self.kinds
        yield from parser.read_span(WHITE, self._keep_text)
        self.json &= not (kinds and kinds <= {"string", "null"})
        self.json &= not parser.finished and (yield from parser.peek()) in '"[{'
        while True:
            while parser.at >= len(parser.text):
                self._flush_text()
                if parser.ended:
                    return (yield from self._fall_back())
                yield
            if (run := self.tags.plain.match(parser.text, parser.at)) is not None:
                self._take_text(len(run[0]))
            elif self.json and (char := parser.text[parser.at]) in '"\\':
                yield from self._follow_string(char)
            else:
                self._flush_text()
                if (found := (yield from self._read_tag())) is not None:
                    return found

    def _flush_text(self) -> None:
        """Send the text that was read, unless the value may end before its last characters."""
        if self.stream is not None:
            ending = self.over is not None or self.doubt is not None or self.candidates
            self.stream.frozen = bool(ending or self.json or self.nested or self.counting or self.pairs)
            self.stream.flush()

    def _take_text(self, length: int) -> None:
        self._keep_text(self.parser.take(length))

    def _keep_text(self, text: str) -> None:
        if text:
            self.parts.append(text)
            if self.stream is not None:
                self.stream.feed(text)
            self.length += len(text)
            if not text.isspace():
                self.visible = self.length

    def _follow_string(self, char: str) -> Parsing[None]:
        self._take_text(1)
        if char == '"':
            self.inside = not self.inside
        elif self.inside and not self.parser.finished and (yield from self.parser.peek()) in '"\\':
            self._take_text(1)

    def _read_tag(self) -> Parsing[Found | None]:
        """Read text that may be a tag. Return the value if it ends here."""
        parser, tags = self.parser, self.tags
        if self.over is not None:
            return (yield from self._read_after_end(self.over))
        if (yield from match_sequences(parser, [(tags.close,)])):
            return (yield from self._read_closing_tag())
        if not self.inside and self.nests and (length := (yield from match_sequences(parser, tags.nested))):
            self.depth, self.nested = self.depth + 1, True
            self._take_text(len(str(tags.opening[0])))
        elif not self.inside and (length := (yield from match_sequences(parser, [tags.bare_ending]))):
            if self.depth:
                self.depth -= 1
            elif not self.torn and self.nests:
                self.candidates.append((self.length, False))
            self._take_text(length)
        elif not self.inside and not self.depth and (name := (yield from self._peek_parameter())) is not None:
            return self._begin_pair(name)
        else:
            self._take_text(1)
        return None

    def _read_after_end(self, over: int) -> Parsing[Found | None]:
        """Read text after a possible end of the call. Return the value if it ends here.

        The following text is a part of the value if another parameter or a last, complete end of the call follows.
        """
        parser, tags = self.parser, self.tags
        if (yield from match_sequences(parser, [(tags.close,)])):
            if (found := self._settle_doubt()) is not None:
                return found
            if (yield from self._comes_behind((*tags.heads, *tags.last_before_call))):
                parser.take(len(tags.close))
                return Found("".join(self.parts), True)
            if (yield from self._comes_behind([(*one, WHITE, END) for one in (tags.endings[0], *self.endings[2:])])):
                self.over = self.length
            self._take_text(len(tags.close))
            return None
        if (yield from match_sequences(parser, [*tags.calls, tags.opening[:1]])):
            return self._end_at(over, True)
        self._take_text(1)
        return None

    def _begin_pair(self, name: str) -> Found | None:
        """Read the beginning of a parameter's tag. Return the value if it ends before the tag.

        If the value can be text, the parameter may belong to the value. The following text decides: one surplus closing
        tag shows that the parameter belongs to the value.
        """
        if not self.counting and name in self.others:
            self.doubt = self.length, False
            if not self.may_be_text:
                return self._end_at_doubt()
        if self.may_be_text and (name in self.others or name in self.written):
            self.counting, self.json = True, False
        self.pairs += self.counting
        self._take_text(1)
        return None

    def _close_pair(self) -> Parsing[Found | None]:
        """Read a closing tag, which may close a parameter in the text. Return the value if it has ended."""
        self.pairs -= 1
        headed = yield from self._comes_behind(self.tags.heads)
        called = not headed and (yield from self._comes_behind((*self.tags.nexts, *self.last)))
        ended = not (headed or called) and (yield from self._comes_behind(self.endings))
        if self.doubt is None and (headed or called or ended):
            self.doubt = self.length, True
        if ended and not self.pairs and self.doubt == (self.length, True):
            self.over = self.length
        elif (called or ended) and not self.pairs:
            return self._end_at_doubt()
        else:
            yield from self._keep_candidate()
        self._take_text(len(self.tags.close))
        self.paired = self.length
        return None

    def _comes_behind(self, sequences: Collection[Sequence]) -> Parsing[bool]:
        """Return True if one of the sequences follows the closing tag that comes next."""
        return bool((yield from match_sequences(self.parser, [(self.tags.close, *one) for one in sequences])))

    def _keep_candidate(self) -> Parsing[None]:
        """Store the place of a closing tag before the call's end. The tag closes the value if no better tag comes."""
        if self.tags.end and (yield from self._comes_behind([(WHITE, self.tags.end)])):
            self.candidates.append((self.length, True))

    @property
    def last(self) -> tuple[Sequence, ...]:
        """Return sequences for an end of the text that may end the call.

        The text may end after the value or within a last tag. If a limit cut the text, the last tag must not be able to
        become a parameter's tag.
        """
        anywhere, surely = self.tags.torn
        return ((WHITE, surely),) if self.parser.cut else ((WHITE, END), (WHITE, anywhere))

    def _end_at_doubt(self) -> Found:
        """End the value at the place in `doubt`: at a closing tag, or before another parameter."""
        assert self.doubt is not None
        place, closed = self.doubt
        if self.torn and not closed:
            raise NotACallError("a value's end")
        return self._end_at(place, closed)

    def _settle_doubt(self) -> Found | None:
        """Decide at a closing tag whether the counted parameters belong to the value. Return the value if they do not:
        then the closing tag is text of another parameter."""
        if self.doubt is not None and self.doubt[1] and self.visible > self.paired:
            return self._end_at_doubt()
        self.counting, self.doubt = False, None
        return None

    def _read_closing_tag(self) -> Parsing[Found | None]:
        """Read a closing tag. Return the value if the tag closes it."""
        parser, tags = self.parser, self.tags
        if not self.inside and self.depth:
            length = yield from match_sequences(parser, [(tags.close, *ending) for ending in tags.endings])
            self.depth -= bool(length)
            self._take_text(length or len(tags.close))
            return None
        surely = self.json and not self.may_be_text
        if self.inside and surely:
            self._take_text(len(tags.close))
            return None
        if self.pairs:
            return (yield from self._close_pair())
        if (found := self._settle_doubt()) is not None:
            return found
        followers = (*tags.heads, *tags.nexts, *self.last)
        followed = surely or (yield from self._comes_behind(followers))
        ended = not followed and (yield from self._comes_behind(self.endings))
        if (followed or ended) and not self.inside and (found := self._end_value(ended)) is not None:
            return found
        if self.inside and (followed or ended):
            self.candidates.append((self.length, True))
        elif not self.inside and not ended:
            yield from self._keep_candidate()
            self.torn = True
        self._take_text(len(tags.close))
        return None

    def _end_value(self, ended: bool) -> Found | None:
        """End the value at a closing tag. Return None if the value may continue.

        If the value began like JSON but is no JSON, a quote may have been text. Then the value ends at a stored
        candidate.

        Args:
            ended: the end of the call comes next. In a text value, this end may still be text.
        """
        text = "".join(self.parts)
        json = self.json and is_json(text.strip())
        if self.json and self.candidates and not json:
            return self._end_at_candidate()
        if ended and self.may_be_text and not json:
            self.over, self.json = self.length, False
            return None
        self.parser.take(len(self.tags.close))
        return Found(text, True)

    def _peek_parameter(self) -> Parsing[str | None]:
        """Return the name of the parameter whose tag comes next, else None."""
        before = self.parts[-1] if self.parts else "\n"
        if not (self.others or self.written) or (
            self.own_line and not before.endswith(("\n", self.tags.close)) and self.visible
        ):
            return None
        parser, head = self.parser, self.tags.head
        if not (yield from match_sequences(parser, [head])):
            return None
        name = KEY.match(parser.text, parser.at + len(self.tags.first))
        return None if name is None else name[0].strip()

    def _end_at_candidate(self) -> Found:
        """End the value at the first place where it may have ended."""
        return self._end_at(*min(self.candidates))

    def _end_at(self, place: int, closed: bool) -> Found:
        text = "".join(self.parts)
        self.parser.give_back(text[place:])
        if closed:
            self.parser.take(len(self.tags.close))
        return Found(text[:place], closed)

    def _fall_back(self) -> Parsing[Found]:
        """Find the value's end after the text has ended.

        Read the value again without calls or strings inside, or end the value at the first place where it may have
        ended.
        """
        if self.over is not None:
            return self._end_at(self.over, True)
        if self.doubt is not None:
            return self._end_at_doubt()
        text = "".join(self.parts)
        if self.nested and self.nests:
            self.nests = False
        elif self.candidates:
            return self._end_at_candidate()
        elif self.json and self.may_be_text:
            self.json = False
        elif not self.parser.cut and (torn := self.tags.torn_ending.search(text)):
            return self._end_at(torn.start(), False)
        else:
            raise NotACallError("the end of a value")
        self.parser.give_back(text)
        if self.stream is not None:
            self.stream.rewind()
        self._reset_value()
        return (yield from self.read())
