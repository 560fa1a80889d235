"""Patterns as ECMA-262 has them, formats as their standards do, and characters that JSON can't write as they are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from grammar.test_schema import spells, taken

# control characters that JSON spells by a letter are written so; the others can't be, nor DEL
SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
ODD = [*map(chr, range(1, 32)), "\x7f", "\u2028", "\u2029", "\x85", "\ufeff", '"', "\\", "/", "é", "😀", "\ud800"]


@pytest.mark.few(30)
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{ord(odd):04X}")
@pytest.mark.parametrize("kind", ["const", "enum", "deep", "pattern", "class"])
def test_an_odd_character_is_written_as_json_requires_or_refused(odd: str, kind: str):
    value = f"a{odd}b"
    pattern = f"^a{re.escape(odd) if odd.isascii() and odd.isprintable() else odd}b$"
    schema: dict[str, Any] = {
        "const": {"const": value},
        "enum": {"enum": ["x", value]},
        "deep": {"const": [{"k": value}]},
        "pattern": {"type": "string", "pattern": pattern},
        "class": {"type": "string", "pattern": f"^a[{pattern[2:-2]}]b$"},
    }[kind]
    compiled = taken(schema)
    writable = odd in SHORT or (odd.isascii() and odd.isprintable()) or "\x7f" < odd != "\ud800"
    assert (compiled is not None) == writable
    if compiled is None:
        return
    text = f'"a{SHORT.get(odd) or json.dumps(odd, ensure_ascii=False)[1:-1]}b"'
    before, after = ('[{"k":', "}]") if kind == "deep" else ("", "")
    assert spells(compiled.matcher(), before + text + after)
    for other in ('"ab"', f'"a{odd}b"', f'"a\\u{ord(odd):04x}b"'):
        assert other == text or not spells(compiled.matcher(), before + other + after)


@pytest.mark.few(20)
@pytest.mark.parametrize("odd", ODD[:-1], ids=lambda odd: f"{ord(odd):04X}")
def test_an_odd_name_is_spelled_in_one_way(odd: str):
    """Declared, it is spelled as JSON requires; no other name can be spelled as it."""
    compiled = taken({"properties": {odd: {"const": 1}}, "additionalProperties": {"const": 2}})
    names = {json.dumps(odd, ensure_ascii=False), json.dumps(odd), f'"\\u{ord(odd) % 2**16:04x}"', f'"{odd}"'}
    assert sum(spells(compiled.matcher(), f"{{{name}:1}}") for name in names) == 1
    assert not any(spells(compiled.matcher(), f"{{{name}:2}}") for name in names)


PATTERNS: list[tuple[str, str, str]] = [  # pattern, texts that match, texts that don't; by ECMA-262
    (r"^\s$", " \t\xa0\ufeff\u2028", "\x85a"),
    (r"^\S$", "\x85aé", " \xa0\ufeff\n"),
    (r"^\d$", "5", "٣a"),
    (r"^\D$", "٣a", "5"),
    (r"^\w$", "a_9", "éß"),
    (r"^\W$", "é-", "a_"),
    ("^.$", "a\x85😀", "\n\r\u2028"),
    (r"^[\w-]$", "a-", "é,"),
    (r"^[^\W]$", "a", "é-"),
    ("^[[a]$", "[a", "]"),
    ("^[a&&b]$", "a&b", "c"),
    ("^[a~~b]$", "a~b", "c"),
    ("^[^]$", "a]^", ""),
    (r"^[\b]$", "\b", "b"),
    (r"^\u0041\x42?$", "A", "B"),
    (r"^\ud83d\ude00$", "😀", "a"),
    (r"^\u{1F600}$", "😀", "u"),
    (r"^\cI$", "\t", "I"),
    (r"^\-\/?$", "-", "/"),
    (r"^\p{L}$", "aé", "5"),
    (r"^\p{Script=Greek}$", "α", "a"),
    (r"^\P{Lu}$", "a5", "A"),
    ("^(?<x>a|b)$", "ab", "c"),
    ("^{$", "{", "a"),
    ("^a?|b$", "ax", ""),
    ("[xy]", "xy", "a"),
    ("^[^a]$", 'b"\\', "a"),
]
NO_PATTERNS = [
    r"\a",
    r"\Z",
    r"(?i)a",
    r"(?=a)",
    r"(?<!a)b",
    r"\1",
    r"\k<x>",
    r"\bA",
    "*",
    "a**",
    "(",
    ")",
    "[",
    "a{2,1}",
    "[b-a]",
    "[a--b]",
    r"\p{digit}",
    r"\u{110000}",
    r"\ud800",
    "a{99999999}",
]


@pytest.mark.parametrize(("pattern", "good", "bad"), PATTERNS)
def test_patterns_mean_what_ecma_262_says(pattern: str, good: str, bad: str):
    compiled = taken({"type": "string", "pattern": pattern})
    assert (compiled is None) == (pattern in NO_PATTERNS)
    for text, fits in [(text, True) for text in good] + [(text, False) for text in bad]:
        assert spells(compiled.matcher(), json.dumps(text, ensure_ascii=False)) == fits, text


@pytest.mark.parametrize("pattern", NO_PATTERNS)
def test_what_is_no_pattern_or_none_here_is_refused(pattern: str):
    assert taken({"type": "string", "pattern": pattern}) is None
    assert taken({"type": "object", "patternProperties": {pattern: {}}}) is None


FORMATS: dict[str, tuple[str, str]] = {
    "date": (
        "2024-02-29 2000-02-29 1999-12-31 0400-02-29",
        "2023-02-29 1900-02-29 2023-04-31 0000-01-01 2023-13-01 23-01-01",
    ),
    "time": (
        "23:59:59Z 23:59:60Z 00:00:00.5+23:59 23:59:60-00:00",
        "24:00:00Z 12:00:60Z 23:59:60+01:00 12:00:00 12:00Z",
    ),
    "date-time": (
        "2024-02-29T23:59:60Z 2023-01-01t00:00:00.123-08:00",
        "2023-02-29T00:00:00Z 2023-01-01T00:00:00 2023-01-01",
    ),
    "hostname": (
        f"a.b {'a' * 63}.com a-b 9.9 {'.'.join(['a' * 63] * 3)}.{'a' * 61}",
        f"-a a- a..b a. {'a' * 64} ab--c {'.'.join(['a' * 63] * 3)}.{'a' * 62} a_b",
    ),
    "email": ("a@b a.b+c@d.e a@[127.0.0.1] a@[IPv6:::1]", "a@ @b a..b@c a@b@c .a@b a@-b"),
    "ipv4": ("0.0.0.0 255.255.255.255", "256.0.0.1 1.2.3 01.2.3.4 1.2.3.4.5"),
    "ipv6": (
        ":: ::1 1:2:3:4:5:6:7:8 1::8 ::ffff:1.2.3.4 1:2:3:4:5:6:1.2.3.4 1:2:3:4:5:6:7::",
        "1:2:3:4:5:6:7 ::: 1::2::3 12345:: ::1.2.3 1:2:3:4:5:6:7:8::",
    ),
    "uuid": (
        "123e4567-e89b-12d3-a456-426614174000",
        "123e4567e89b12d3a456426614174000 123e4567-e89b-12d3-a456-42661417400g",
    ),
    "duration": ("P1Y2M3DT4H5M6S P4W PT0S P1YT1H", "P PT P1D2H P1Y2W P1YT 1Y"),
    "uri": ("http://a/b?c#d urn:a:b mailto:a@b http://[::1]:80/ a:", "a /b http://[1 1a:b http://a/%zz"),
    "uri-reference": ("/a ../b?c #d a:b //h", "a\\b http://a/%z :a"),
    "json-pointer": ("/a/b~0~1 /", "a /~2 /~"),
    "relative-json-pointer": ("0 1/a 2#", "01 -1 /a #"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_those_of_their_standards(name: str):
    compiled, (good, bad) = taken({"type": "string", "format": name}), FORMATS[name]
    wrong = [text for text in good.split() if not spells(compiled.matcher(), json.dumps(text))]
    assert wrong + [text for text in bad.split() if spells(compiled.matcher(), json.dumps(text))] == []
