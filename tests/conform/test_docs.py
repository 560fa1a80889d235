"""The guide's table of laws is what the laws say."""

from __future__ import annotations

import runpy
from pathlib import Path

from tailrace.conform.laws import all_laws

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_laws_is_current():
    script = runpy.run_path(str(ROOT / "docs/write_laws.py"))
    page = script["PAGE"].read_text()
    assert page == script["written"](page), "run python docs/write_laws.py"
    changed = page.replace("| `stops.cut` |", "| `stops.cutt` |")
    assert script["written"](changed) == page != changed


def test_the_readme_counts_the_laws():
    assert f"by {len(all_laws())} laws" in (ROOT / "README.md").read_text()
