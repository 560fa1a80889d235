"""A run as text: a line per law, as it is judged; at the end each finding with its request."""

from __future__ import annotations

from tailrace_conform.runner import ConformRun, JudgedLaw
from tailrace_conform.verdict import KINDS

SIGNS = {"holds": "✓", "broken": "✗", "not_offered": "·", "ignored": "!", "inconclusive": "?"}
SAID = 100  # characters of a verdict's sentence, in a line
SHOWN = 1_000  # characters of a command


def printable(text: str) -> str:
    """The text with what can't be printed as escapes: what a server says must not reach the terminal as it is."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def shortened(text: str, most: int) -> str:
    """Return the text as a line with a limited number of characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def line(one: JudgedLaw) -> str:
    """A law's line."""
    kind = one.verdict.kind
    said = shortened(printable(one.verdict.said), SAID)
    return f"{SIGNS[kind]} {one.law.id:<28} {KINDS[kind]:<16} {said}".rstrip()


def finding(one: JudgedLaw, url: str) -> str:
    """A finding with its sentence, what was seen, and the request to see it again."""
    lines = [
        f"{one.law.id}: {KINDS[one.verdict.kind]}",
        f"  {one.law.sentence}",
        f"  Seen: {printable(one.verdict.said)}",
    ]
    if command := one.verdict.curl(url):
        shown = command if len(command) < SHOWN else command[:SHOWN] + "… (whole in the JSON report)"
        lines.append(f"  {printable(shown)}")
    return "\n".join(lines)


def summary(run: ConformRun) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in run.counts().items() if count)
    why = "the server is gone" if run.gone else "interrupted"
    laws = "law" if len(run.unjudged) == 1 else "laws"
    left = f"; {why}, {len(run.unjudged)} {laws} left out" if run.interrupted else ""
    return f"{counts or 'nothing judged'} ({run.num_requests} requests, {run.seconds:.0f} s){left}"


def ending(run: ConformRun) -> str:
    """What follows the lines of the laws: the findings, what was judged, and the sum."""
    parts = ["", *(finding(one, run.url) + "\n" for one in run.findings)]
    parts += [f"{printable(run.model)} at {run.url}, budget {run.budget}, seed {run.seed}", summary(run)]
    return "\n".join(parts) + "\n"
