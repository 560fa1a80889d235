"""Grammar of Harmony answers (gpt-oss). A Harmony call is a message to a recipient.

text/harmony.py parses the messages of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.text.reasoning import HARMONY_MARKS
from tailrace.text.tool_parsers import ToolFormat
from tailrace.text.tool_parsers.call_parser import CallParser, NotACallError, Parsing
from tailrace.text.tool_parsers.functions import Function
from tailrace.text.tool_parsers.grammar_writer import (
    CallGrammar,
    GrammarWriter,
    quote_literal,
    text_up_to,
    text_without,
)

START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN = HARMONY_MARKS


class Messages:
    """Harmony's shape. Its parser rejects all text, because text/harmony.py reads the calls."""

    def read(self, parser: CallParser, /) -> Parsing[None]:
        raise NotACallError(parser.text)
        yield

    def grammar(self, writer: GrammarWriter, /) -> CallGrammar:
        return harmony_calls(writer)


def harmony_calls(writer: GrammarWriter) -> CallGrammar:
    """Return the grammar of one call, which is a message to a function. The model stops after the message.

    The model writes the recipient after the channel. The template writes it before the channel. The grammar allows
    both.
    """
    channel, constrain, message = (writer.mark(mark) for mark in (CHANNEL, CONSTRAIN, MESSAGE))

    def write_harmony_call(function: Function) -> str:
        arguments = writer.arguments(function)
        behind = f'{channel} {quote_literal(f"commentary to=functions.{function.name} ")} {constrain}? "json"'
        before = f'{quote_literal(f" to=functions.{function.name}")} {channel} "commentary " {constrain}? "json"'
        return f"({behind} | {before}) {message} {arguments}"

    return CallGrammar("", writer.rule("call", " | ".join(map(write_harmony_call, writer.functions))))


def harmony_grammar(writer: GrammarWriter, must: bool, content: Mapping[str, Any] | None = None) -> str:
    """Return the grammar of a whole answer: an optional thought, an optional preamble, then a call or the final
    message.

    Args:
        must: a call is required.
        content: the schema of the final message. None allows any text.

    Raises:
        ParameterError: no grammar can express a schema.
    """
    channel, message, start = (writer.mark(mark) for mark in (CHANNEL, MESSAGE, START))
    if writer.find_marker_id(END) is None:
        writer.rule("BODY", text_up_to(END, *(mark for mark in HARMONY_MARKS if mark != END)))
        body = "BODY"
    else:
        body = f"{writer.rule('TEXT', text_without(*HARMONY_MARKS))} {writer.mark(END)}"
    again = f'{body} {start} "assistant"'
    before = [f'({channel} "{name}" {message} {again})?' for name in ("analysis", "commentary")]
    last = harmony_calls(writer).rest
    if not must:
        said = writer.rule("SAID", text_without(*HARMONY_MARKS)) if content is None else writer.write_json(content)
        last = f'({last} | {channel} "final" {message} {said})'
    writer.rule("start", " ".join([*before, last]))
    return writer.source()


NAMES = ("harmony", "openai", "gpt-oss")  # for --tool-parser: tailrace's name, vLLM's and SGLang's
HARMONY = ToolFormat(Messages(), ((" to=functions.", CALL),), ((CHANNEL, CALL),), "gpt-oss", inner=tuple(HARMONY_MARKS))
