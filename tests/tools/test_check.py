"""`make check`: which tests it takes as near to a changed file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.check import ROOT, find_module, find_tests


def near(file: str) -> list[str]:
    return [str(test.relative_to(ROOT)) for test in find_tests([ROOT / file])]


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("src/tailrace/text/utf8.py", "tailrace.text.utf8"),
        ("src/tailrace/text/__init__.py", "tailrace.text"),
        ("packages/conform/src/tailrace_conform/__init__.py", "tailrace_conform"),
        ("bench/server/abuse.py", "bench.server.abuse"),
        ("csrc/module.cpp", ""),
    ],
)
def test_a_file_has_the_name_that_tests_import(file: str, module: str):
    assert find_module(ROOT / file) == module


def test_tests_that_import_a_module_come_before_those_of_its_users():
    found = near("src/tailrace/text/utf8.py")
    assert found[0] == "tests/text/test_decoder.py"
    assert found.index("tests/text/test_decoder.py") < found.index("tests/text/test_template.py")


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("tests/text/test_decoder.py", "tests/text/test_decoder.py"),
        ("csrc/sample/sample.cpp", "tests/kernels"),
        ("src/tailrace/page/js/curves.js", "tests/page"),
        ("docs/path.md", "tests/test_docs.py"),
    ],
)
def test_a_file_that_no_test_imports_has_its_tests(file: str, tests: str):
    assert near(file) == [tests]


def test_every_place_of_tests_exists(tmp_path: Path):
    from tools.check import READ_BY

    assert all((ROOT / tests).exists() and (ROOT / folder).exists() for folder, tests in READ_BY.items())
    assert find_tests([tmp_path / "none.txt"]) == []
