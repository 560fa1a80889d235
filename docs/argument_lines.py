"""The docstrings' `Args:` for the site: several arguments share a line in the source; here each gets its own. A griffe extension."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"(?P<head>^Args:\n)(?P<body>(?:[ ]+\S.*\n?)+)", re.MULTILINE)


class ArgumentLines(griffe.Extension):
    """Splits `a: …. b: …` where `b` is a parameter too."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        split(func.docstring, [parameter.name for parameter in func.parameters])

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        split(cls.docstring, [parameter.name for parameter in cls.parameters])


def split(docstring: griffe.Docstring | None, names: list[str]) -> None:
    """Rewrite the section in place."""
    if docstring is None or not names:
        return
    name = "|".join(map(re.escape, names))

    def lines(section: re.Match[str]) -> str:
        joined = " ".join(line.strip() for line in section["body"].splitlines())
        parts = re.split(rf"(?:^|(?<=[.;:)]) )(?=(?:(?:{name})(?:, )?)+: )", joined)
        return section["head"] + "".join(f"    {entry}\n" for part in parts if part for entry in entries(part))

    docstring.value = SECTION.sub(lines, docstring.value)


def entries(part: str) -> list[str]:
    """`a, b: …` is said of each."""
    names, _, text = part.partition(": ")
    return [f"{name}: {text}" for name in names.split(", ")]
