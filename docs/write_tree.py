"""Writes docs/tree.md from the first sentences of the sources: `python docs/write_tree.py`.

tests/test_docs.py checks that it is current.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tree.md"
FOLDERS = ("src/tailrace", "csrc", "packages/conform/src/tailrace_conform", "bench", "tools")
INTRODUCTION = """# The tree

Each file with the first sentence of its docstring, written by `python docs/write_tree.py`. [Design](design.md) says
which package may import which.
"""


def written() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *(line for folder in FOLDERS for line in list_folder(ROOT / folder))])


def list_folder(folder: Path) -> Iterator[str]:
    """Yield a heading for the folder, its files, and the same for the folders inside."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".py", ".cpp", ".h")]
    opening = folder / "__init__.py"
    if files:
        yield f"## {folder.relative_to(ROOT)}\n"
        if opening in files and (sentence := read_sentence(opening)):
            yield "\n".join(textwrap.wrap(sentence, 120)) + "\n"
        yield from (list_file(path) for path in files if path != opening)
        yield ""
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"):
        yield from list_folder(inner)


def list_file(path: Path) -> str:
    """Return a file's entry, wrapped."""
    entry = f"- `{path.name}`: {read_sentence(path)}"
    return "\n".join(textwrap.wrap(entry, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def read_sentence(path: Path) -> str:
    """Return the first sentence of a file's docstring, or of the comment at its top. A source without one has its
    header's."""
    text = path.read_text()
    if path.suffix == ".py":
        return first_sentence(ast.get_docstring(ast.parse(text)) or "")
    comment = re.match(r"(?:#pragma once\s+)?((?://[^\n]*\n)+)", text)
    if comment is None:
        return f"see `{path.stem}.h`." if path.suffix == ".cpp" and path.with_suffix(".h").exists() else ""
    return first_sentence(re.sub(r"^// ?", "", comment[1], flags=re.MULTILINE))


def first_sentence(text: str) -> str:
    """Return the text up to the first full stop of its first paragraph, on one line."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`\"(])", paragraph)[0]
    sentence = re.sub(r":$", ".", sentence)
    return re.sub(r"(?<!`)<(\w+)>(?!`)", r"&lt;\1&gt;", sentence)


if __name__ == "__main__":
    PAGE.write_text(written())
