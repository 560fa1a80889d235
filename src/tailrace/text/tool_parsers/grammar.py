"""Grammar of calls of some functions: calls only, or calls beside other text. It selects the format and knows no
request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailrace.errors import ParameterError
from tailrace.text.tool_parsers.frame import FrameWriter, has_frame
from tailrace.text.tool_parsers.grammar_writer import (
    CallGrammar,
    GrammarWriter,
    text_ending,
    text_up_to,
    text_without,
)

if TYPE_CHECKING:
    from tailrace.text.tool_parsers.formats import ToolFormat


def forced_grammar(format: ToolFormat, writer: GrammarWriter) -> str:
    """Return a grammar of calls only.

    Raises:
        ParameterError: a schema can't be enforced in this format.
    """
    written = format.grammar(writer)
    if (frame := make_frame_writer(format, writer, written)) is not None:
        writer.rule("start", frame.write_forced())
        return writer.source()
    opening = f"{writer.mark(written.opening)} " if written.opening else ""
    writer.rule("start", f"{opening}{written.rest}")
    return writer.source()


def optional_grammar(format: ToolFormat, writer: GrammarWriter, content: Mapping[str, Any] | None = None) -> str:
    """Return a grammar of text with optional calls after it.

    If `content` is a schema, the answer is either JSON that fits the schema, or calls.

    Raises:
        ParameterError: see `forced_grammar`. Or calls of this format can't be told apart from other JSON.
    """
    written = format.grammar(writer)
    frame = make_frame_writer(format, writer, written)
    if content is not None and not written.opening:
        raise ParameterError(
            "tools: this model's calls can't be told apart from JSON, so calls and a JSON answer can't be combined",
            "tools",
        )
    if content is not None:
        calls = f"{writer.mark(written.opening)} {written.rest}"
        either = frame.write_content(content) if frame is not None else f"{calls} | {writer.write_json(content)}"
        writer.rule("start", either)
        return writer.source()
    forbidden = list_openings(format) if frame is None else frame.forbidden
    text = writer.rule("SAID", text_without(*forbidden))
    if not written.opening:
        text = writer.rule("OTHER", f"{text} & ~/({written.alike})/")
    calls = f"{write_before(writer, written.opening, text, forbidden)} {written.rest}"
    writer.rule("start", f"{text} | {calls}" if frame is None else frame.write_free(text, calls))
    return writer.source()


def list_openings(format: ToolFormat) -> tuple[str, ...]:
    """Return the opening markers of the format."""
    return tuple(opening for opening, _ in format.markers)


def make_frame_writer(format: ToolFormat, writer: GrammarWriter, calls: CallGrammar) -> FrameWriter | None:
    """Return a writer of whole answers if the model writes the format's frame, else None."""
    if format.frame is None or not has_frame(format.frame, writer):
        return None
    return FrameWriter(format.frame, writer, calls, list_openings(format))


def write_before(writer: GrammarWriter, opening: str, text: str, forbidden: tuple[str, ...]) -> str:
    """Return the grammar of any text, and the calls' opening marker after it.

    Args:
        text: the rule of a text. forbidden: what the text can't hold.
    """
    if not opening:
        return ""
    head, token = writer.head_of(opening)
    if token:
        before = writer.rule("BEFORE", text_ending(head, forbidden)) if head else text
        return f"{before} {token}"
    return writer.rule("BEFORE", text_up_to(opening, *(one for one in forbidden if one != opening)))
