"""Grammar of calls of some functions: calls only, or calls beside other text. It selects the format and knows no
request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailrace.errors import ParameterError
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter, text_ending, text_up_to, text_without

if TYPE_CHECKING:
    from tailrace.text.tool_parsers.formats import ToolFormat


def forced_grammar(format: ToolFormat, writer: GrammarWriter) -> str:
    """Return a grammar of calls only.

    Raises:
        ParameterError: a schema can't be enforced in this format.
    """
    written = format.grammar(writer)
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
    if content is not None:
        if not written.opening:
            raise ParameterError(
                "tools: this model's calls can't be told apart from JSON, so calls and a JSON answer can't be combined",
                "tools",
            )
        writer.rule("start", f"{writer.mark(written.opening)} {written.rest} | {writer.write_json(content)}")
        return writer.source()
    openings = tuple(opening for opening, _ in format.markers)
    text = writer.rule("SAID", text_without(*openings))
    if not written.opening:
        text = writer.rule("OTHER", f"{text} & ~/({written.alike})/")
        writer.rule("start", f"{text} | {written.rest}")
    elif (halves := writer.head_of(written.opening))[1]:
        head, token = halves
        before = writer.rule("BEFORE", text_ending(head, openings)) if head else text
        writer.rule("start", f"{text} | {before} {token} {written.rest}")
    else:
        others = [opening for opening in openings if opening != written.opening]
        writer.rule("start", f"{text} | {writer.rule('BEFORE', text_up_to(written.opening, *others))} {written.rest}")
    return writer.source()
