"""docs/models.md is what the outcomes say."""

from __future__ import annotations

from architectures.page import PAGE, kept, page


def test_the_page_is_made_of_the_outcomes():
    assert PAGE.read_text() == page(kept())


def test_nothing_on_the_page_is_wrong_or_tells_nothing():
    bad = {name: of for outcomes in kept().values() for name, of in outcomes.items() if of[0] in ("wrong", "crashed")}
    assert not bad
