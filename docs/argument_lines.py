"""`Args:` and `Attributes:` of docstrings, for the site: several share a line in the source, each gets its own. A
griffe extension."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import griffe

SECTION = r"(?P<head>^{}:\n)(?P<body>(?:[ ]+\S.*\n?)+)"


class ArgumentLines(griffe.Extension):
    """Splits `a: …. b: …` where `b` is a name too, and `a, b: …`."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        split(func.docstring, "Args", [parameter.name for parameter in func.parameters])

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        split(cls.docstring, "Args", [parameter.name for parameter in cls.parameters])
        split(cls.docstring, "Attributes", cls.attributes)


def split(docstring: griffe.Docstring | None, section: str, names: Iterable[str]) -> None:
    """Rewrite a section in place."""
    name = "|".join(map(re.escape, names))
    if docstring is None or not name:
        return
    begin = re.compile(rf"(?:^|(?<=[.;:)]) )(?=(?:(?:{name})(?:, )?)+: )")

    def lines(found: re.Match[str]) -> str:
        joined = " ".join(line.strip() for line in found["body"].splitlines())
        parts = [part for part in begin.split(joined) if part]
        return found["head"] + "".join(f"    {entry}\n" for part in parts for entry in entries(part))

    docstring.value = re.sub(SECTION.format(section), lines, docstring.value, flags=re.MULTILINE)


def entries(part: str) -> list[str]:
    """`a, b: …` is said of each."""
    names, _, text = part.partition(": ")
    return [f"{name}: {text}" for name in names.split(", ")]
