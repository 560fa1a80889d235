"""A run as text (text.py), as one HTML file, as JSON and as JUnit's XML."""

from __future__ import annotations

from pathlib import Path

from tailrace_conform.report.html import as_html
from tailrace_conform.report.json import as_json
from tailrace_conform.report.junit import as_junit
from tailrace_conform.runner import ConformRun

WRITERS = {"html": as_html, "json": as_json, "junit": as_junit}


def write(run: ConformRun, files: dict[str, Path | None]) -> None:
    """Write the report of each kind of WRITERS that has a file."""
    for kind, file in files.items():
        if file is not None:
            file.write_text(WRITERS[kind](run), encoding="utf-8")


__all__ = ["WRITERS", "write"]
