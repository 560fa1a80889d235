"""No grammar of a request reads a file: a name of one is a name that does not exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grammar.vocabularies import small
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.llguidance import GrammarCompiler
from tailrace.request.options import Grammar

COMPILER = GrammarCompiler(small())
GRAMMARS = [  # FILE is a path without its suffix, where both a schema and a grammar are
    ("json_schema", '{"$ref": "file://FILE.json"}'),
    ("json_schema", '{"$ref": "FILE.json"}'),
    ("json_schema", '{"$id": "file://FILE", "$ref": "secret.json"}'),
    ("json_schema", '{"$dynamicRef": "file://FILE.json#"}'),
    ("lark", "start: A\n%import FILE.A"),
    ("lark", "start: A\n%import .secret.A"),
    ("lark", 'start: A\n%import "FILE.lark"'),
    ("lark", 'start: %json {"$ref": "file://FILE.json"}'),
]


@pytest.mark.parametrize(("kind", "source"), GRAMMARS)
def test_a_file_is_no_part_of_a_grammar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, source: str):
    (tmp_path / "secret.json").write_text(json.dumps({"const": "a"}))
    (tmp_path / "secret.lark").write_text('A: "a"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedError):
        COMPILER.compile(Grammar(kind=kind, source=source.replace("FILE", str(tmp_path / "secret"))))
