"""Writes the table of docs/reasoning.md from the declarations of formats: `python docs/write_reasoning.py`.

tests/test_docs.py checks that it is current.
"""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.text.reasoning import REASONING_FORMATS, ReasoningFormat

PAGE = Path(__file__).with_name("reasoning.md")
TABLE = re.compile(r"<!-- table: formats -->\n.*?<!-- end -->", re.DOTALL)
HEAD = ("format", "also called", "models", "markers", "call inside", "more")


def row(name: str, form: ReasoningFormat) -> tuple[str, ...]:
    """A format, as its declaration has it."""
    pairs = zip(form.openings, form.closings, strict=True)
    more = [
        *(["starts inside"] if form.starts_inside else []),
        *(["several"] if form.again else []),
        *([f"label {code(form.label)}"] if form.label else []),
        *([f"template has {code(form.evidence)}"] if form.evidence else []),
        *([f"left out: {' '.join(map(code, form.frame))}"] if form.frame else []),
        *([] if form.split else ["thoughts stay in the content, behind the template's opening marker"]),
    ]
    markers = "; ".join(f"{code(opening)} … {code(closing)}" for opening, closing in pairs)
    return code(name), ", ".join(map(code, form.names)), form.models, markers, form.calls, "; ".join(more)


def code(text: str) -> str:
    """The text as code, with a bar that does not end a cell."""
    return f"`{text.replace(chr(10), chr(92) + 'n')}`".replace("|", "\\|")


def written(page: str) -> str:
    """The page with its table as it must be."""
    rows = [HEAD, ("---",) * len(HEAD), *(row(name, form) for name, form in REASONING_FORMATS.items())]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return TABLE.sub(lambda _: f"<!-- table: formats -->\n{table}\n<!-- end -->", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
