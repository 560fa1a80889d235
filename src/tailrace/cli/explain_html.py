"""Why tokens came, as one HTML file that needs nothing else: no script, no font, no external address.

The model's text is escaped, and every character that can't be printed is made visible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from unicodedata import bidirectional

from tailrace.api.schema.explain import TokenExplanation
from tailrace.cli.explain_table import ending, printable
from tailrace.explain.numbers import format_percent

LEVELS = 6  # of surprise: 0, 1, 2 … bits, of the model's own probability
LINES = "\n\t"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fdfdfc; --soft: #6b6b76; --line: #d9d9e0; --bar: #2b6cb0;
  --came: #b45309; --s0: transparent; --s1: #e0f2fe; --s2: #bae0fb; --s3: #fde9c8; --s4: #fbcf8f; --s5: #f7a95c; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf1; --paper: #17171b; --soft: #9a9aa6; --line: #36363f;
  --bar: #63a4e8; --came: #f0a35e; --s1: #10293d; --s2: #16405f; --s3: #4a3413; --s4: #6b4513; --s5: #8f5414; } }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.25rem; } h2 { font-size: 1rem; color: var(--soft); margin: 1.5rem 0 .4rem; }
pre, .text, code, td:first-child, summary b { font-family: ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
pre { border: 1px solid var(--line); border-radius: .4rem; padding: .6rem .8rem; margin: 0; }
.text { line-height: 2; } .text a { color: inherit; text-decoration: none; border-radius: .2rem; padding: .15rem 0; }
.text a:hover, .text a:focus { outline: 2px solid var(--bar); }
.forced, .accepted { border-bottom: 2px dotted var(--soft); } .replaced { border-bottom: 2px solid var(--came); }
.s1 { background: var(--s1); } .s2 { background: var(--s2); } .s3 { background: var(--s3); }
.s4 { background: var(--s4); } .s5 { background: var(--s5); }
.legend span { padding: .1rem .45rem; border: 1px solid var(--line); color: var(--ink); }
.legend { color: var(--soft); }
details { border-top: 1px solid var(--line); } summary { cursor: pointer; padding: .35rem 0; }
summary small, .why { color: var(--soft); } ol { margin: .3rem 0 .8rem; padding-left: 1.4rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .875rem; margin: .3rem 0 1.2rem; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, th:last-child, td:first-child, td.why { text-align: left; }
td.why { white-space: normal; min-width: 16rem; }
td i { display: block; height: .3rem; background: var(--bar); margin-left: auto; border-radius: .1rem; }
tr.came td { font-weight: 600; } tr.came i { background: var(--came); } td.gone { color: var(--soft); }
"""


def page(prompt: str, params: Mapping[str, Any], records: Sequence[TokenExplanation]) -> str:
    """Return the whole file. params: the sampling fields of the request."""
    asked = ", ".join(f"{name} {value}" for name, value in params.items()) or "all parameters at their defaults"
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><title>Why these tokens</title>',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{STYLE}</style></head><body>",
            "<h1>Why these tokens</h1>",
            f'<h2>Prompt</h2><pre dir="auto">{text_of(prompt, LINES)}</pre>',
            f"<h2>Parameters</h2><p>{text_of(asked)}</p>",
            f'<h2>Answer</h2><p class="text" dir="{direction(records)}">{"".join(map(span, records))}</p>',
            legend(),
            "<h2>Tokens</h2>",
            *map(token_details, records),
            "</body></html>",
            "",
        )
    )


def text_of(text: str, keep: str = "") -> str:
    """Return the text escaped. Characters that can't be printed are made visible, except those in `keep`."""
    return escape("".join(char if char in keep else printable(char) for char in text))


def isolated(token: str) -> str:
    """Return a token whose own direction of writing moves nothing around it."""
    return f"<bdi>{text_of(token)}</bdi>"


def direction(records: Iterable[TokenExplanation]) -> str:
    """Return the direction in which the answer's tokens follow each other: that of its first letter.

    dir="auto" does not read isolated parts.
    """
    kinds = (bidirectional(char) for record in records for char in record.token)
    return "rtl" if next((kind for kind in kinds if kind in ("L", "R", "AL")), "L") != "L" else "ltr"


def level(record: TokenExplanation) -> int:
    """Return how surprising the token was to the model: 0 … LEVELS − 1."""
    p = record.model.probabilities[record.ids.index(record.token_id)]
    return LEVELS - 1 if p <= 0.0 else min(LEVELS - 1, int(-math.log2(p)))


def span(record: TokenExplanation) -> str:
    """Return a token within the answer, coloured, as a link to its details."""
    # A line end is shown, and also breaks the line.
    shown = "".join(text_of(char) + ("\n" if char == "\n" else "") for char in record.token)
    return f'<a class="s{level(record)} {record.origin}" href="#t{record.index}"><bdi>{shown}</bdi></a>'


def legend() -> str:
    """Return the legend of the colours."""
    names = [f"{bits} bits" if bits != 1 else "1 bit" for bits in range(LEVELS - 1)] + [f"{LEVELS - 1} and more"]
    shown = " ".join(f'<span class="s{bits}">{name}</span>' for bits, name in enumerate(names))
    return f'<p class="legend">Surprise, −log₂ of the model’s own probability: {shown}</p>'


def token_details(record: TokenExplanation) -> str:
    """Return a token's ladder: sentences, and the candidates after each step. A link to a part of it opens it."""
    said = record.sentences
    p = record.model.probabilities[record.ids.index(record.token_id)]
    facts = f"{record.origin}, {format_percent(p)} by the model, position {record.position}, key {record.key}"
    sentences = items((said.model, *said.edits, *said.refinements, said.draw, *ending(record)))
    return (
        f"<details><summary><b>{record.index} “{isolated(record.token)}”</b> <small>{facts}</small></summary>\n"
        f'<ol id="t{record.index}">{sentences}</ol>\n{candidates(record)}</details>'
    )


def items(sentences: Iterable[str]) -> str:
    """Return the items of a list."""
    return "".join(f"<li>{text_of(sentence)}</li>" for sentence in sentences)


def candidates(record: TokenExplanation) -> str:
    """Return a table with a row for each shown token and a column for each step, all bars on one axis."""
    steps: list[tuple[str, Sequence[float | None]]] = [("model", record.model.probabilities)]
    steps += [(step.method, step.probabilities) for step in record.edits]
    steps += [(step.method, step.probabilities) for step in record.refinements]
    heads = "".join(f"<th>{text_of(name)}</th>" for name in ("token", *(name for name, _ in steps), "why not"))
    rows = []
    for i, token in enumerate(record.tokens):
        came = ' class="came"' if record.ids[i] == record.token_id else ""
        cells = "".join(bar(values[i]) for _, values in steps)
        why = text_of(record.sentences.why_not[i])
        rows.append(f'<tr{came}><td>“{isolated(token)}”</td>{cells}<td class="why">{why}</td></tr>')
    return f'<div class="wide"><table><tr>{heads}</tr>{"".join(rows)}</table></div>'


def bar(p: float | None) -> str:
    """Return a probability with its bar, or a dash for a token that can't come."""
    if not p:
        return '<td class="gone">–</td>'
    return f'<td>{format_percent(p)}<i style="width:{100.0 * p:.2f}%"></i></td>'
