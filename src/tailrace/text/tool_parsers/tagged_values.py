"""Bare text between tags. A text may hold any tag, also the tag that closes it and whole calls: a closing tag counts if
what follows is the next parameter or the end of the call."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cached_property, lru_cache
from typing import NamedTuple

from tailrace.text.tool_parsers.call_parser import WHITE, CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.lookahead import END, KEY, Part, match_sequences, parts_of
from tailrace.text.tool_parsers.resolve import Declared
from tailrace.text.tool_parsers.values import is_json

Sequence = tuple[Part, ...]


class Tags:
    """The tags of a format as sequences. See tagged.Tagged."""

    def __init__(self, opening: str, closing: str, call: str, end: str, parameter: str, close: str) -> None:
        self.close, self.end, self.closing = close, end, closing
        self.head, self.opening = parts_of(parameter), (opening, WHITE)
        last: Sequence = (end, WHITE) if end else ()
        begun = (*parts_of(call), *(() if end else (WHITE,)))
        self.heads = ((WHITE, *self.head),)  # behind a closing tag
        # behind a closing tag: the end of the call as it is written, or with a tag too few
        self.endings = ((WHITE, *last, closing), *(((WHITE, closing),) if end else ()))
        nexts = [(WHITE, *last, opening), *([(WHITE, *last, *begun), (WHITE, *last, END)] if end else [])]
        self.followers = (*self.heads, *self.endings, *nexts)
        self.nested = tuple(
            (opening, WHITE, *begun, *more) for more in ([()] if end else [(str(self.head[0]),), (closing,)])
        )
        self.bare_ending = (*last, closing)  # without a closing tag before it

    @cached_property
    def plain(self) -> re.Pattern[str]:
        """Text in which no tag begins, and no string of JSON."""
        first = {
            mark[0] for mark in (self.close, self.end, self.closing, str(self.head[0]), str(self.opening[0])) if mark
        }
        return re.compile(rf'[^"\\{re.escape("".join(sorted(first)))}]+')


tags_of = lru_cache(maxsize=64)(Tags)


class Found(NamedTuple):
    """A value, and whether its closing tag was read; otherwise another parameter or the end of the call comes next."""

    text: str
    closed: bool


class ValueReader:
    """Reads one value.

    Args:
        others: declared parameters that may follow although the closing tag is missing.
        own_line: tags stand on lines of their own.
        alone: nothing but the end of a call shows where the calls end, since nothing opened them.
    """

    def __init__(
        self, parser: CallParser, tags: Tags, declared: Declared, others: Collection[str], own_line: bool, alone: bool
    ) -> None:
        self.parser, self.tags, self.others, self.own_line = parser, tags, others, own_line
        self.kinds = declared.get_kinds()
        self.followers = (*tags.followers, *(((WHITE, tags.end),) if alone and tags.end else ()))
        self.json = self.nests = True
        self._reset_value()

    def _reset_value(self) -> None:
        self.parts: list[str] = []
        self.length = 0
        self.depth, self.nested = 0, False  # calls inside the text
        self.inside = False  # of a string of JSON
        self.torn = False  # a closing tag of the text was passed over
        self.candidates: list[tuple[int, bool]] = []  # where the value ends if no better end comes; by a closing tag

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
                if parser.ended:
                    return (yield from self._fall_back())
                yield
            if (run := self.tags.plain.match(parser.text, parser.at)) is not None:
                self._take_text(len(run[0]))
            elif self.json and (char := parser.text[parser.at]) in '"\\':
                yield from self._follow_string(char)
            elif (found := (yield from self._read_tag())) is not None:
                return found

    def _take_text(self, length: int) -> None:
        self._keep_text(self.parser.take(length))

    def _keep_text(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self.length += len(text)

    def _follow_string(self, char: str) -> Parsing[None]:
        self._take_text(1)
        if char == '"':
            self.inside = not self.inside
        elif self.inside and not self.parser.finished and (yield from self.parser.peek()) in '"\\':
            self._take_text(1)

    def _read_tag(self) -> Parsing[Found | None]:
        """Read what may be a tag. Return the value if it ends here."""
        parser, tags = self.parser, self.tags
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
        elif not self.inside and not self.depth and (yield from self._is_other_parameter()):
            if self.torn:
                raise NotACallError("a value's end")
            return Found("".join(self.parts), False)
        else:
            self._take_text(1)
        return None

    def _read_closing_tag(self) -> Parsing[Found | None]:
        """Read a closing tag. Return the value if the tag closes it."""
        parser, tags = self.parser, self.tags
        mark: Sequence = (tags.close,)
        if not self.inside and self.depth:
            length = yield from match_sequences(parser, [mark + ending for ending in tags.endings])
            self.depth -= bool(length)
            self._take_text(length or len(tags.close))
            return None
        surely = self.json and self.kinds and "string" not in self.kinds  # then text is no choice
        if self.inside and surely:
            self._take_text(len(tags.close))
            return None
        last = () if parser.cut else ((WHITE, END),)
        followed = surely or (yield from match_sequences(parser, [mark + one for one in (*self.followers, *last)]))
        if followed and not self.inside:
            return self._end_value()
        if followed or (
            not self.inside and tags.end and (yield from match_sequences(parser, [(*mark, WHITE, tags.end)]))
        ):
            self.candidates.append((self.length, True))
        self.torn |= not self.inside
        self._take_text(len(tags.close))
        return None

    def _end_value(self) -> Found:
        """End the value at a closing tag. If it is no JSON although it began like JSON, a quote may have been text."""
        text = "".join(self.parts)
        if self.json and self.candidates and not is_json(text.strip()):
            return self._end_at_candidate()
        self.parser.take(len(self.tags.close))
        return Found(text, True)

    def _is_other_parameter(self) -> Parsing[bool]:
        """True if the tag of another declared parameter comes next."""
        before = self.parts[-1] if self.parts else "\n"
        if not self.others or (self.own_line and not before.endswith("\n") and "".join(self.parts).strip()):
            return False
        parser, head = self.parser, self.tags.head
        if not (yield from match_sequences(parser, [head])):
            return False
        first = str(head[0])
        name = KEY.match(parser.text, parser.at + len(first))
        return name is not None and name[0].strip() in self.others

    def _end_at_candidate(self) -> Found:
        """End the value where it may have ended."""
        place, closed = min(self.candidates)
        text = "".join(self.parts)
        self.parser.give_back(text[place:])
        if closed:
            self.parser.take(len(self.tags.close))
        return Found(text[:place], closed)

    def _fall_back(self) -> Parsing[Found]:
        """The text ends here. Read the value once more, without calls or strings inside; or take the first place where
        it may have ended."""
        text = "".join(self.parts)
        if self.nested and self.nests:
            self.nests = False
        elif self.candidates:
            return self._end_at_candidate()
        elif self.json and not (self.kinds and "string" not in self.kinds):
            self.json = False
        else:
            raise NotACallError("the end of a value")
        self.parser.give_back(text)
        self._reset_value()
        return (yield from self.read())
