"""A run as JSON: everything that was found, with the evidence."""

from __future__ import annotations

import json
from typing import Any

from tailrace_conform.exchange import Exchange
from tailrace_conform.runner import ConformRun, JudgedLaw

VERSION = 1  # of this report's form
KEPT = 20_000  # characters of an answer that are kept


def exchange(one: Exchange) -> dict[str, Any]:
    """What was asked and answered."""
    return {
        "method": one.method,
        "path": one.path,
        "body": one.body,
        "status": one.status,
        "failure": one.failure,
        "elapsed_s": round(one.elapsed_s, 4),
        "answer": one.text[:KEPT],
    }


def law(one: JudgedLaw, url: str) -> dict[str, Any]:
    """A law with its verdict."""
    return {
        "id": one.law.id,
        "verdict": one.verdict.kind,
        "said": one.verdict.said,
        "sentence": one.law.sentence,
        "error_rate": one.law.error_rate,
        "figures": dict(one.verdict.figures),
        "requests": one.num_requests,
        "seconds": round(one.seconds, 3),
        "curl": one.verdict.curl(url),
        "evidence": [exchange(made) for made in one.verdict.evidence],
    }


def as_json(run: ConformRun) -> str:
    """The whole report."""
    found = {
        "version": VERSION,
        "url": run.url,
        "model": run.model,
        "budget": run.budget,
        "seed": run.seed,
        "begun": run.begun,
        "seconds": round(run.seconds, 3),
        "requests": run.num_requests,
        "tokens": run.num_tokens,
        "interrupted": run.interrupted,
        "counts": run.counts(),
        "offers": run.capabilities.found,
        "laws": [law(one, run.url) for one in run.judged],
        "left_out": [one.id for one in run.unjudged],
    }
    return json.dumps(found, indent=1, default=str) + "\n"
