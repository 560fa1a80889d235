"""docs/models.md is what the outcomes say."""

from __future__ import annotations

from architectures.page import CELLS, PAGE, kept, page


def test_the_page_is_made_of_the_outcomes():
    assert PAGE.read_text() == page(kept())


def test_nothing_on_the_page_is_wrong_or_tells_nothing():
    bad = {name: of for outcomes in kept().values() for name, of in outcomes.items() if of[0] in ("wrong", "crashed")}
    assert not bad


def test_rows_have_the_layers_that_the_models_are_known_for():
    rows = kept()[max(kept())]
    assert "conv" in rows["lfm2|"][4]
    assert "sliding attention" in rows["laguna|"][4]
    assert "indexed attention" in rows["qwen4_exp|"][4]


def test_each_model_that_is_served_reuses_prefixes():
    """Of those that were judged since the page has the column."""
    whole = {name: row for name, row in kept()[max(kept())].items() if len(row) == CELLS}
    assert len(whole) > 90
    assert [name for name, (kind, _, _, reused, _) in whole.items() if kind == "equal" and not reused] == []
