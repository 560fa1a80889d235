"""A run as one HTML file that needs nothing else: no script, no font, no address of anywhere. The evidence is folded
in.

What a server says is text: it is escaped, and what can't be printed is made visible.
"""

from __future__ import annotations

import json
from html import escape

from tailrace_conform.exchange import Exchange
from tailrace_conform.plain import quoted
from tailrace_conform.report.text import printable, shortened, summary
from tailrace_conform.runner import ConformRun, JudgedLaw
from tailrace_conform.verdict import KINDS

SHOWN, SAID = 4_000, 140  # characters of a body or an answer, and of what is said in a law's line
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fdfdfc; --soft: #6b6b76; --line: #d9d9e0;
  --holds: #15803d; --broken: #b91c1c; --ignored: #b45309; --not_offered: #6b6b76; --inconclusive: #4f46a5; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf1; --paper: #17171b; --soft: #9a9aa6; --line: #36363f;
  --holds: #4ade80; --broken: #f87171; --ignored: #f0a35e; --not_offered: #9a9aa6; --inconclusive: #a5a0f0; } }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.25rem; } h2 { font-size: 1rem; color: var(--soft); margin: 1.8rem 0 .4rem; }
pre, code, summary code { font-family: ui-monospace, monospace; } .soft, dt { color: var(--soft); }
pre { border: 1px solid var(--line); border-radius: .4rem; padding: .6rem .8rem; margin: .2rem 0 .8rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
details { border-top: 1px solid var(--line); } summary { cursor: pointer; padding: .35rem 0; }
details details { margin-left: 1rem; } dt { font-size: .85rem; } dd { margin: 0 0 .5rem; }
.kind { display: inline-block; min-width: 8.5rem; font-weight: 600; }
.holds { color: var(--holds); } .broken { color: var(--broken); } .ignored { color: var(--ignored); }
.not_offered { color: var(--not_offered); } .inconclusive { color: var(--inconclusive); }
"""


def shown(text: str) -> str:
    """The text, printable, shortened and escaped."""
    more = f"\n… {len(text) - SHOWN:,} more characters" if len(text) > SHOWN else ""
    return escape(printable(text[:SHOWN]) + more)


def evidence(made: Exchange) -> str:
    """A folded exchange."""
    body = made.body if isinstance(made.body, str) else json.dumps(made.body, ensure_ascii=False, indent=1)
    ended = made.failure or f"status {made.status}"
    return (
        f"<details><summary><code>{escape(made.method)} {escape(made.path)}</code> "
        f"<span class=soft>{shown(ended)}, {made.elapsed_s:.2f} s</span></summary>"
        f"<pre>{shown('' if made.body is None else body)}</pre><pre>{shown(made.text)}</pre></details>"
    )


def law(one: JudgedLaw, url: str) -> str:
    """A folded law, with what it is, what was seen and the exchanges that show it; open where it is a finding."""
    kind, found = one.verdict.kind, one.verdict
    rows = [
        ("Law", one.law.sentence),
        ("Why", one.law.why),
        ("Test", one.law.method),
        ("A violation", one.law.violation),
    ]
    rate = f"at most {one.law.error_rate:.2g} for a false “broken”" if one.law.error_rate else "exact"
    rows += [("Error rate", rate), ("Seen", found.said)]
    rows += [(name, quoted(value)) for name, value in found.figures.items()]
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{shown(text)}</dd>" for name, text in rows)
    command = found.curl(url)
    repeated = f"<pre>{shown(command)}</pre>" if command else ""
    opened = " open" if kind in ("broken", "ignored") else ""
    return (
        f"<details{opened} id='{escape(one.law.id)}'><summary><span class='kind {kind}'>{KINDS[kind]}</span> "
        f"<code>{escape(one.law.id)}</code> <span class=soft>{shown(shortened(found.said, SAID))}</span></summary>"
        f"<dl>{listed}</dl>{repeated}{''.join(evidence(made) for made in found.evidence)}</details>"
    )


def as_html(run: ConformRun) -> str:
    """The whole report."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>tailrace conform</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body><h1>{shown(run.model)} at {shown(run.url)}</h1>",
        f"<p>{escape(summary(run))}</p>",
        f"<p class=soft>{escape(run.begun)}, budget {escape(run.budget)}, seed {run.seed}</p>",
    ]
    parts += [
        f"<p><a href='#{escape(one.law.id)}' class={one.verdict.kind}><code>{escape(one.law.id)}</code></a> "
        f"{shown(shortened(one.verdict.said, SAID))}</p>"
        for one in run.findings
    ]
    family = ""
    for one in run.judged:
        if one.law.family != family:
            family = one.law.family
            parts.append(f"<h2>{escape(family)}</h2>")
        parts.append(law(one, run.url))
    if run.unjudged:
        names = ", ".join(law.id for law in run.unjudged)
        parts.append(f"<h2>left out: the run was interrupted</h2><p>{escape(names)}</p>")
    offers = ", ".join(f"{name}: {offer}" for name, offer in run.capabilities.found.items())
    parts.append(f"<h2>what the server offers</h2><p class=soft>{escape(offers)}</p></body></html>")
    return "\n".join(parts) + "\n"
