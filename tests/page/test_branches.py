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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.fixture(scope="module")
def talk(modules: Page) -> Any:
    """What the page exports after a conversation with thoughts, guesses, a cut, an edit, a call and its result."""
    modules.evaluate(
        """async () => {
          const { say } = await import("/page/js/generate.js");
          const state = await import("/page/js/state.js");
          state.params.value = { seed: 3, top_k: 20, frequency_penalty: 0.1 };
          await say("user", "think draft tool", null);
          const last = state.shownPath.value.at(-1);
          await say("tool", "9 degrees, 20", last.id, { call: last.run.value.calls[0].id });
        }"""
    )
    return exported(modules)


def exported(page: Page) -> Any:
    """As text, which Playwright hands over at once, and objects value by value."""
    asked = """async () => JSON.stringify((await import("/page/js/files.js")).exported())"""
    return json.loads(page.evaluate(asked))


IMPORT = """async (text) => {
  try {
    (await import("/page/js/files.js")).imported(JSON.parse(text));
    return null;
  } catch (error) {
    return error.message;
  }
}"""


def ruin(*names: str | int, value: Any) -> Callable[[Any], Any]:
    """Puts a value at a place: "*" is the first there, "answer" the first answer among the turns, "record" the first
    token's that has edits, refinements and a draft."""

    def key_of(at: Any, name: str | int) -> str | int:
        if name == "*":
            return next(iter(at))
        if name == "answer":
            return next(id for id, node in at.items() if node["kind"] == "answer")
        return name

    def apply(kept: Any) -> Any:
        at = kept
        for name in names[:-1]:
            at = whole_record(at) if name == "record" else at[key_of(at, name)]
        at[key_of(at, names[-1])] = value
        return kept

    return apply


def whole_record(tokens: list[Any]) -> Any:
    records = (token["record"] for token in tokens)
    return next(record for record in records if record["edits"] and record["refinements"] and "draft" in record)


def orphaned(kept: Any) -> Any:
    """With a turn that says where it belongs, where nobody knows of it."""
    nodes = kept["tree"]["nodes"]
    nodes["lost"] = {"id": "lost", "kind": "user", "text": "", "parent": next(iter(nodes)), "children": []}
    return kept


def circular(kept: Any) -> Any:
    """The shown path runs in a circle."""
    first, second = list(kept["tree"]["nodes"])[:2]
    kept["tree"]["chosen"] |= {first: second, second: first}
    return kept


def in_run(*names: str | int, value: Any) -> Callable[[Any], Any]:
    return ruin("tree", "nodes", "answer", "run", *names, value=value)


def in_record(*names: str | int, value: Any) -> Callable[[Any], Any]:
    return in_run("tokens", "record", *names, value=value)


RUINED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda kept: [], "no export"),
    (ruin("format", value="other"), "no export"),
    (ruin("version", value=2), "version 2"),
    (ruin("tree", value=None), "no turns"),
    (ruin("tree", "nodes", "*", "kind", value="robot"), "no known kind"),
    (ruin("tree", "nodes", "*", "children", value=["gone"]), "children"),
    (ruin("tree", "roots", value=["gone"]), "begins below"),
    (orphaned, "hang on no conversation"),
    (circular, "does not stand there"),
    (ruin("tree", "chosen", "", value="gone"), "does not stand there"),
    (ruin("tree", "chosen", "gone", value="gone"), "does not stand there"),
    (ruin("tree", "nodes", "*", "text", value={"__html": "<b>"}), "no text"),
    (in_run("request", "path", value="//other.example/v1/completions"), "its request goes to"),
    (in_run("request", "body", value=[]), "no run"),
    (in_run("calls", value=[{"id": "a"}]), "no content"),
    (in_run("calls", value=[None]), "no content"),
    (in_run("error", value={"message": {}}), "no content"),
    (in_run("fork", value={"node": "a", "at": -1, "token": 3}), "no content"),
    (in_run("tokens", 0, value=None), "token 1 is none"),
    (in_run("tokens", 0, "time_ms", value="1"), "token 1 is none"),
    (in_record("ids", value=[]), "no whole record"),
    (in_record("ids", 0, value="x"), "no whole record"),
    (in_record("tokens", 0, value={"__html": "<b>"}), "no whole record"),
    (in_record("bytes", value=[256]), "no whole record"),
    (in_record("origin", value="toString"), "no whole record"),
    (in_record("removed_by", value=[]), "no whole record"),
    (in_record("model", "ranks", 0, value=None), "no whole record"),
    (in_record("model", "entropy", value="1"), "no whole record"),
    (in_record("edits", 0, value=None), "no whole record"),
    (in_record("edits", 0, "logits", value=None), "no whole record"),
    (in_record("edits", 0, "probabilities", value={}), "no whole record"),
    (in_record("edits", 0, "fields", value=None), "no whole record"),
    (in_record("refinements", 0, "probabilities", value=None), "no whole record"),
    (in_record("refinements", 0, "fields", value=None), "no whole record"),
    (in_record("refinements", 0, "boundary", value="x"), "no whole record"),
    (in_record("draw", "noise", value=[]), "no whole record"),
    (in_record("draw", "margin", value="x"), "no whole record"),
    (in_record("draft", value={"rule": "exact"}), "no whole record"),
    (in_record("sentences", "why_not", value=None), "no whole record"),
]


@pytest.mark.parametrize("cases", [RUINED[::5], pytest.param(RUINED, marks=pytest.mark.long)], ids=["few", "all"])
def test_a_file_that_is_none_of_ours_is_refused_whole(modules: Page, talk: Any, cases):
    text, before = json.dumps(talk), exported(modules)
    for ruined, message in cases:
        assert message in (modules.evaluate(IMPORT, json.dumps(ruined(json.loads(text)))) or "it was taken")
    assert exported(modules) == before
    assert modules.evaluate(IMPORT, text) is None
    assert len(exported(modules)["tree"]["nodes"]) == len(before["tree"]["nodes"]) + len(talk["tree"]["nodes"])


@pytest.mark.long
def test_why_a_file_was_refused_is_said(page: Page, tmp_path: Path):
    say(page, "hello 5")
    page.locator(".tokens .t").first.click()
    kept = json.loads(saved(page, tmp_path).read_text())
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(circular(kept)))
    page.set_input_files(".file input", bad)
    page.wait_for_selector(".branches .error:has-text('bad.json: What is shown')")
    bad.write_text("{")
    page.set_input_files(".file input", bad)
    page.wait_for_selector(".branches .error:has-text('JSON')")
    assert len(page.evaluate(IDS)) == 1
