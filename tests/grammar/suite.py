"""The JSON-Schema-Test-Suite (suite.md) against what can be written: every instance, in every form that it may have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any, NamedTuple

from grammar.vocabularies import small
from tailrace.errors import ParameterError
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.llguidance import GrammarCompiler
from tailrace.request.options import Grammar

CASES = [json.loads(line) for line in (Path(__file__).parent / "suite.jsonl").read_text().splitlines()]
# Annotations by the standard. Here a format is binding, so the suite's cases of mere annotation are left out.
ANNOTATION = {"format", "content", "optional/content", "optional/format/unknown"}
# A whole number may be spelled in any way. Only in draft 4 is 1.0 none; we write 1.
TOKEN_BYTES = {("4", "optional/zeroTerminatedFloats")}
UNWRITTEN = {  # valid, and left out as docs/api.md says
    ("optional/ecmascript-regex", "\x01"),
    ("optional/ecmascript-regex", "\x0b"),  # control characters
    ("optional/format/hostname", "xn--4gbwdl.xn--wgbh1c"),  # names of other alphabets
    ("optional/format/date-time", "1998-12-31T15:59:60.123-08:00"),  # leap seconds outside of UTC
    ("optional/format/time", "15:59:60-08:00"),
    ("optional/format/time", "01:29:60+01:30"),
    ("optional/format/time", "23:29:60+23:30"),
    ("optional/format/time", "00:29:60-23:30"),
}
FORMS = 50  # of one value


class Verdict(NamedTuple):
    """The verdict on one schema. reason: why it is refused, or "". wrong: invalid instances that can be written.
    missing: valid instances that can't."""

    reason: str
    wrong: list[Any]
    missing: list[Any]


def judged(library: GrammarCompiler, case: dict[str, Any]) -> Verdict:
    grammar = Grammar(kind="json_schema", source=json.dumps(case["schema"]), whitespace=0)
    try:
        compiled = library.load(library.compile(grammar))
    except (UnsupportedError, ParameterError) as error:
        return Verdict(str(error), [], [])
    found: dict[bool, list[Any]] = {True: [], False: []}
    for value, valid in case["tests"]:
        if valid != any(spelled(compiled.matcher(), form) for form in forms(value)):
            found[valid].append(value)
    return Verdict("", found[False], found[True])


def spelled(matcher: Any, text: str) -> bool:
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(small().eos[0])


def forms(value: Any) -> Iterator[str]:
    """Its spellings: names in any order, numbers with and without an exponent or a point."""
    if isinstance(value, float):
        yield from dict.fromkeys(
            (f"{Decimal(repr(value)):f}", repr(value), *([str(int(value))] if value.is_integer() else []))
        )
    elif isinstance(value, list):
        for parts in islice(product(*(list(islice(forms(one), FORMS)) for one in value)), FORMS):
            yield f"[{','.join(parts)}]"
    elif isinstance(value, dict):
        for names in islice(permutations(value), FORMS):
            for parts in islice(product(*(list(islice(forms(value[name]), FORMS)) for name in names)), FORMS):
                fields = (f"{json.dumps(n, ensure_ascii=False)}:{p}" for n, p in zip(names, parts, strict=True))
                yield f"{{{','.join(fields)}}}"
    else:
        yield json.dumps(value, ensure_ascii=False)
