"""Which field of a tool a Lark grammar can't express: the writer of a grammar names the field of each terminal and of
each schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tailrace.base.extras import require_extra
from tailrace.grammar.llguidance_errors import TOO_MANY_STATES, readable_error
from tailrace.grammar.llguidance_sources import json_parts, rewrite_lark
from tailrace.request.options import Grammar

with require_extra("grammar"):
    from llguidance import LLMatcher

LABEL = re.compile(r'^// ([A-Z]\w*): ("(?:[^"\\\n]|\\.)*")$', re.MULTILINE)
TERMINAL = re.compile(r"^([A-Z]\w*): (.*)$", re.MULTILINE)
NAME = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|([A-Z]\w*)')
SHOWN = 3  # fields in a message


def text_fields(grammar: Grammar) -> dict[str, str]:
    """The labelled terminals of a grammar, each with its field."""
    labels = LABEL.findall(grammar.source) if grammar.kind == "lark" else ()
    return {name: json.loads(field) for name, field in labels}


def terminal_grammars(grammar: Grammar) -> Iterator[tuple[str, str]]:
    """Yield the field of each labelled terminal, and a grammar of that terminal alone."""
    bodies = dict(TERMINAL.findall(grammar.source))
    for name, field in text_fields(grammar).items():
        needed, waiting = dict[str, str](), [name]
        while waiting:
            if (one := waiting.pop()) not in needed:
                needed[one] = bodies[one]
                waiting += [found for found in NAME.findall(bodies[one]) if found in bodies]
        yield field, rewrite_lark("\n".join([f"start: {name}", *(f"{one}: {body}" for one, body in needed.items())]))


def with_field(grammar: Grammar, message: str) -> str:
    """The message with the fields that it is about, if a schema is known to be refused or texts are too long."""
    if message == TOO_MANY_STATES and (fields := sorted({*text_fields(grammar).values()})):
        more = f" and {len(fields) - SHOWN} more" if len(fields) > SHOWN else ""
        return f"{', '.join(fields[:SHOWN])}{more}: {message}"
    for part in json_parts(grammar.source) if grammar.kind == "lark" else ():
        alone = LLMatcher.grammar_from_json_schema(json.dumps(part.schema))
        if part.field and (complaint := LLMatcher.validate_grammar(alone)):
            return f"{part.field}: {readable_error(complaint)}"
    return message
