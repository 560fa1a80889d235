"""Writes the table of docs/conformance.md from the laws: `python docs/write_laws.py`.

tests/test_docs.py checks that it is current.
"""

from __future__ import annotations

import re
from pathlib import Path

from tailrace_conform.law import Law
from tailrace_conform.laws import all_laws

PAGE = Path(__file__).with_name("conformance.md")
TABLE = re.compile(r"<!-- table: laws -->\n.*?<!-- end -->", re.DOTALL)


def row(law: Law) -> str:
    """A law's line of the table."""
    rate = f"{law.error_rate:.1g}" if law.error_rate else "exact"
    cells = (f"`{law.id}`", law.sentence, law.why, law.method, rate)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def written(page: str) -> str:
    """The page with its table as it must be."""
    head = ["| law | | why | how it is tested | error rate |", "|---|---|---|---|---|"]
    table = "\n".join([*head, *map(row, all_laws())])
    return TABLE.sub(lambda _: f"<!-- table: laws -->\n{table}\n<!-- end -->", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
