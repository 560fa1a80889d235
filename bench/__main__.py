"""The list of benchmarks: `python -m bench`."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

from bench import AREAS

WIDTH = 100


def list_benchmarks() -> dict[str, str]:
    """Return NAME → the first sentence of its file, of every file that has a `main(argv)`."""
    found: dict[str, str] = {}
    for area in AREAS:
        for path in sorted((Path(__file__).parent / area).glob("*.py")):
            text = path.read_text()
            if re.search(r"^def main\(argv", text, re.MULTILINE):
                described = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
                found[area if path.stem == "__main__" else path.stem] = re.split(r"(?<=\.) ", described)[0]
    return found


def main() -> None:
    """Print each benchmark's name and what it measures."""
    print("python -m bench.NAME [--json FILE] [its own flags; --help lists them]\n")
    for name, described in list_benchmarks().items():
        print(textwrap.fill(f"{name:22}{described}", WIDTH, subsequent_indent=" " * 22))


if __name__ == "__main__":
    main()
