"""Check a change to a few files in seconds: ruff and pyright on the files, then the nearest tests.

    make check FILES="src/tailrace/text/utf8.py"

Tests that import a changed module run first, then tests of the modules that import a changed module. Of each group
the tests that import the fewest modules are first. No test starts after `--seconds`; the last line says how many were
left out. `make test` runs them all.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT / "src", ROOT / "packages/conform/src")
# Files that no test imports, by where they are: the tests that read them.
READ_BY = {
    "csrc": "tests/kernels",
    "docs": "tests/test_docs.py",
    "src/tailrace/page": "tests/page",
    "src/tailrace": "tests/test_layers.py",
    "bench": "tests/bench",
}


def find_module(file: Path) -> str:
    """Return the dotted name by which tests import a source file, or "" for a file that is no module of ours."""
    if file.suffix != ".py":
        return ""
    for folder in (*SOURCES, ROOT):
        if file.is_relative_to(folder):
            parts = file.relative_to(folder).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return ""


@cache
def read_imports(file: Path) -> frozenset[str]:
    """Return the modules that a Python file imports anywhere, and the names that it imports from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def find_tests(files: list[Path]) -> list[Path]:
    """Return the test files near the changed files, the nearest first."""
    changed = {name for file in files if (name := find_module(file))}
    sources = [file for folder in SOURCES for file in folder.rglob("*.py")]
    users = {find_module(file) for file in sources if read_imports(file) & changed} - changed
    tests = [file for folder in ("tests", "packages/conform/tests") for file in (ROOT / folder).rglob("test_*.py")]
    imports = {test: read_imports(test) for test in tests}
    found = [file for file in files if file in imports]
    for modules in (changed, users):
        near = [(len(names), test) for test, names in imports.items() if names & modules]
        found += [test for _, test in sorted(near)]
    for file in files:
        read = [tests for folder, tests in READ_BY.items() if file.is_relative_to(ROOT / folder)]
        found += [ROOT / tests for tests in read[:1]]
    return list(dict.fromkeys(found))


def main() -> int:
    """Return 0 if every check passes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=lambda text: Path(text).resolve())
    parser.add_argument("--seconds", type=float, default=15, help="start no test later than this (default: 15)")
    args = parser.parse_args()
    if missing := [str(file) for file in args.files if not file.is_file()]:
        parser.error(f"no such file: {', '.join(missing)}")
    bin = Path(sys.executable).parent
    python = [str(file) for file in args.files if file.suffix == ".py"]
    commands = [[bin / "ruff", "check"], [bin / "ruff", "format", "--check"], [bin / "pyright"]] if python else []
    running = [subprocess.Popen([*command, *python], cwd=ROOT) for command in commands]
    failed = False
    if tests := find_tests(args.files):
        print("tests, the nearest first:", *(test.relative_to(ROOT) for test in tests))
        until = time.time() + args.seconds
        options = ["-m", "not long", "--maxfail", "3", "--until", str(until)]
        failed = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT, check=False
        ).returncode not in (0, 5)
    else:
        print("no test imports these files")
    failures = [process.wait() for process in running]  # all of them, so that each has printed
    return int(any(failures) or failed)


if __name__ == "__main__":
    sys.exit(main())
