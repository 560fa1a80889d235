"""Branches: another candidate and what follows it; the tree; files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from page.conftest import answered, say, sent

if TYPE_CHECKING:
    from playwright.sync_api import Page

TURNS = ".said-text, .turn .tokens"
IDS = """async () => { const state = await import('/page/js/state.js');
  return Object.values(state.tree.value.nodes).filter(node => node.run)
    .map(node => node.run.value.tokens.map(token => token.record.token_id)); }"""


def branch(page: Page, index: int) -> None:
    """Takes the first other candidate at one place, and waits for what follows it."""
    page.locator(f".turn.answer:last-of-type [data-i='{index}']").click()
    page.wait_for_selector(".rung")
    page.locator(".rung").first.locator(".candidate:not(.came) .candidate-button").first.click()
    before = page.locator(".siblings").count() and page.locator(".siblings").last.inner_text()
    page.get_by_role("button", name=re.compile("^Continue with")).click()
    page.wait_for_function("before => document.querySelector('.siblings')?.innerText !== before", arg=before or None)
    answered(page)


def test_another_candidate_is_followed_under_the_same_seed(page: Page):
    asked = sent(page)
    say(page, "hello 40")
    branch(page, 15)
    first, second = page.evaluate(IDS)
    bodies = [body for path, body in asked if path == "/v1/chat/completions"]
    assert bodies[1]["forced_token_ids"] == second[:16]
    assert second[:15] == first[:15]
    assert second[15] != first[15]
    assert {name: bodies[1][name] for name in ("seed", "messages")} == {
        name: bodies[0][name] for name in ("seed", "messages")
    }
    assert page.locator(".tokens .mark.parts").get_attribute("data-i") == "15"
    assert page.locator(".tokens .o-forced").count() == 16
    assert page.locator(".tokens .t.sel").get_attribute("data-i") == "15"  # the ladder goes on with it
    page.wait_for_selector(".place:has-text('Token 16 of 41')")
    page.get_by_role("button", name="Branch before").click()
    assert page.locator(".tokens .mark.parts").get_attribute("data-i") == "15"
    assert page.locator(".tokens .o-forced").count() == 0


def test_a_branch_of_a_branch_is_forced_by_its_own_tokens(page: Page):
    asked = sent(page)
    say(page, "hello 40")
    branch(page, 15)
    branch(page, 25)
    _, second, third = page.evaluate(IDS)
    assert third[:25] == second[:25]
    assert asked[-1][1].get("forced_token_ids", third[:26]) == third[:26]
    page.get_by_role("button", name="Branched at token 26").click()
    assert page.locator(".siblings").inner_text().split() == ["‹", "2/3", "›"]


def test_the_tree_is_walked_and_two_answers_are_compared(page: Page):
    say(page, "hello 40")
    branch(page, 15)
    page.locator(".tokens .t").first.click()
    page.get_by_role("tab", name="Branches").click()
    nodes = page.locator(".branch-button")
    assert nodes.count() == 3
    assert page.locator(".fork").inner_text() == "↳ 16"
    nodes.nth(1).click()
    assert page.locator(".siblings").inner_text().split() == ["‹", "1/2", "›"]
    for box in page.locator(".compare-mark input").all():
        box.check()
    assert "They part at token 16" in page.locator(".comparison [role=status]").inner_text()
    for side in page.locator(".compared").all():
        mark = side.locator(".mark.parts")
        assert mark.get_attribute("data-i") == "15"
        box, frame = mark.bounding_box(), side.locator(".tokens").bounding_box()
        assert box
        assert frame
        assert frame["y"] <= box["y"] <= frame["y"] + frame["height"]


def saved(page: Page, folder: Path) -> Path:
    page.get_by_role("tab", name="Branches").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export as JSON").click()
    download.value.save_as(folder / "kept.json")
    return folder / "kept.json"


def test_what_was_exported_is_imported_whole(page: Page, open_page: Callable[..., Page], tmp_path: Path):
    page.locator(".system summary").click()
    page.get_by_label("System prompt").last.fill("Be brief.")
    say(page, "hostile draft think 80")
    branch(page, 30)
    say(page, "and on 12")
    before = page.evaluate(IDS)
    texts = page.locator(TURNS).all_inner_texts()
    page.locator(".tokens .t").first.click()
    kept = saved(page, tmp_path)
    other = open_page(page.url)
    say(other, "already there 5")
    other.locator(".tokens .t").first.click()
    other.get_by_role("tab", name="Branches").click()
    for _ in range(2):  # twice: each under ids of its own
        other.set_input_files(".file input", kept)
        other.wait_for_function("count => document.querySelectorAll('.tree > li').length === count", arg=2 + _)
    assert other.evaluate(IDS)[1:] == before + before
    assert other.locator(TURNS).all_inner_texts() == texts
    other.locator(".turn.answer .t").nth(3).click()
    other.get_by_role("tab", name="Why").click()
    other.wait_for_selector(".rung")
    say(other, "more 5")


def ruin(*names: str | int, value: Any) -> Callable[[Any], Any]:
    def apply(kept: Any) -> Any:
        at = kept
        for name in names[:-1]:
            at = at[next(iter(at))] if name == "*" else at[name]
        at[names[-1]] = value
        return kept

    return apply


def orphaned(kept: Any) -> Any:
    """With a turn that says where it belongs, where nobody knows of it."""
    nodes = kept["tree"]["nodes"]
    nodes["lost"] = {"id": "lost", "kind": "user", "text": "", "parent": next(iter(nodes)), "children": []}
    return kept


@pytest.mark.parametrize(
    ("ruined", "message"),
    [
        (lambda kept: [], "no export"),
        (ruin("format", value="other"), "no export"),
        (ruin("version", value=2), "version 2"),
        (ruin("tree", value=None), "no turns"),
        (ruin("tree", "nodes", "*", "kind", value="robot"), "no known kind"),
        (ruin("tree", "nodes", "*", "children", value=["gone"]), "children"),
        (ruin("tree", "roots", value=["gone"]), "begins below"),
        (orphaned, "hang on no conversation"),
        (ruin("tree", "nodes", "*", "text", value={"__html": "<b>"}), "no text"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_whole(page: Page, tmp_path: Path, ruined: Any, message: str):
    say(page, "hello 5")
    page.locator(".tokens .t").first.click()
    kept = json.loads(saved(page, tmp_path).read_text())
    (tmp_path / "bad.json").write_text(json.dumps(ruined(kept)))
    page.set_input_files(".file input", tmp_path / "bad.json")
    page.wait_for_selector(".branches .error")
    assert message in page.locator(".branches .error").inner_text()
    assert len(page.evaluate(IDS)) == 1
    (tmp_path / "bad.json").write_text("{")
    page.set_input_files(".file input", tmp_path / "bad.json")
    page.wait_for_function("text => document.querySelector('.branches .error').innerText !== text", arg=message)
