"""Writes the table of docs/api/combinations.md from the one that tests/api/test_field_table.py tests:
`python docs/write_combinations.py`.

tests/test_docs.py checks that it is current.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parent / "api/combinations.md"
TABLE = re.compile(r"<!-- table: fields -->\n.*?<!-- end -->", re.DOTALL)
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from field_table import COLUMNS, ROWS, SCENES_OF, refusal  # noqa: E402


def cells(name: str) -> tuple[str, ...]:
    """Return what the field does in each column."""
    return tuple(cell(name, column) for column in COLUMNS)


def cell(name: str, column: str) -> str:
    """Return "yes", "400", or "in part" where only some scenes of the column are refused."""
    refused = [refusal(name, column, scene) is not None for scene in SCENES_OF[column]]
    return "400" if all(refused) else "in part" if any(refused) else "yes"


def rows() -> Iterator[tuple[str, ...]]:
    """Return the table's rows. Fields without a note and with the same cells share one."""
    yield ("field", "with a grammar", *COLUMNS)
    yield ("---",) * (2 + len(COLUMNS))
    together: dict[tuple[str, ...], list[str]] = {}
    for name, row in ROWS.items():
        if row.note:
            yield (f"`{name}`", row.note, *cells(name))
        else:
            together.setdefault(cells(name), []).append(f"`{name}`")
    for found, names in together.items():
        yield (", ".join(names), "", *found)


def written(page: str) -> str:
    """Return the page with its table as it must be."""
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows())
    return TABLE.sub(lambda _: f"<!-- table: fields -->\n{table}\n<!-- end -->", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
