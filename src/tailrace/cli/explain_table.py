"""Why tokens came, for a terminal: a line for each token, or one token's ladder with its sentences.

The model's text must never act as a terminal command: every character that can't be printed is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.api.schema.explain import TokenExplanation
from tailrace.explain.numbers import format_digits, format_percent, format_probability

WIDTH = 18  # of a token in a table
COLUMN = 12
COLUMNS = ("#", "token", "came", "model", "rank", "left", "p", "won by", "over", "ended")
WIDTHS = (5, WIDTH, 9, 8, 6, 7, 8, 7, WIDTH, 9)

LEGEND = "left: tokens that could be drawn; p: with which this one was. --token N shows one token's ladder."


def printable(text: str) -> str:
    """Return the text with every character escaped that can't be printed: control, format and private ones, line ends,
    and blanks except the space."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shown(token: str, width: int = WIDTH) -> str:
    """Return a token in quotation marks, cut to a width."""
    text = f"“{printable(token)}”"
    return text if len(text) <= width else f"{text[: width - 1]}…"


def table(records: Sequence[TokenExplanation]) -> list[str]:
    """Return a line for each token, below a line of headings."""
    lines = [columns(COLUMNS)]
    for record in records:
        at, draw = record.ids.index(record.token_id), record.draw
        names = dict(zip(record.ids, record.tokens, strict=True))
        p, left = draw.probabilities[at], record.refinements[-1].kept if record.refinements else None
        left = left or (record.edits[-1].left if record.edits else None)
        lines.append(
            columns(
                (
                    str(record.index),
                    shown(record.token),
                    record.origin,
                    format_percent(record.model.probabilities[at]),
                    f"{record.model.ranks[at]:,}",
                    "all" if left is None else f"{left:,}",
                    "–" if p is None else format_probability(p),
                    "–" if draw.margin is None or draw.winner != record.token_id else format_digits(draw.margin),
                    "" if draw.runner_up is None else shown(names[draw.runner_up]),
                    record.ended or "",
                )
            )
        )
    return [*lines, "", LEGEND]


def columns(cells: Sequence[str]) -> str:
    """Return cells side by side: tokens and words to the left, numbers to the right."""
    aligned = (
        cell.ljust(width) if name in ("token", "came", "over", "ended") else cell.rjust(width)
        for name, cell, width in zip(COLUMNS, cells, WIDTHS, strict=True)
    )
    return "  ".join(aligned).rstrip()


def ladder(record: TokenExplanation) -> list[str]:
    """Return one token's steps in sentences, and the probabilities of its candidates after each step."""
    said = record.sentences
    lines = [
        f"Token {record.index}, {shown(record.token, 60)}: {record.origin}, at position {record.position} with key "
        f"{record.key}.",
        "",
        *map(printable, (said.model, *said.edits, *said.refinements, said.draw, *ending(record))),
        "",
    ]
    steps = [("model", record.model.probabilities)]
    steps += [(step.method, step.probabilities) for step in record.edits]
    steps += [(step.method, step.probabilities) for step in record.refinements]
    lines.append("token".ljust(WIDTH) + "".join(f"{name[: COLUMN - 1]:>{COLUMN}}" for name, _ in steps))
    for i, token in enumerate(record.tokens):
        cells = "".join(f"{cell(values[i]):>{COLUMN}}" for _, values in steps)
        came = "  ← came" if record.ids[i] == record.token_id else ""
        lines.append(f"{shown(token, WIDTH):<{WIDTH}}{cells}{came}")
    answers = [
        f"Why not {shown(token, 60)}? {printable(why)}"
        for token, why in zip(record.tokens, said.why_not, strict=True)
        if why
    ]
    return [*lines, "", *answers]


def ending(record: TokenExplanation) -> list[str]:
    """Return a sentence on what the token ended, if anything."""
    if record.ended is None:
        return []
    if record.ended == "thinking_token_budget":
        return ["With it the thinking budget was used up."]
    if record.ended == "thought":
        return ["With it the thought was ended: it repeated itself, or the client ended it."]
    return [f"The output ended with it: {record.ended}."]


def cell(p: float | None) -> str:
    """Return a probability, or a dot for a token that can't come."""
    return "·" if not p else format_percent(p)
