"""The page and the real server: what the other tests' server says has the real one's shape, and the way through the
page, from a prompt to a comparison, goes over the real one too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest
import torch

from api.harness import EOS, NAME, START, VOCAB, LocalClient, events, make_tokenizer
from api.harness import served as serving
from page import fake_server
from page.conftest import Served, a_port, answered, say, sent
from page.test_branches import IDS, IMPORT, branch, exported
from page.test_compare import compare
from tailrace.api.app import create_app
from tailrace.api.schema.chat import ChatChunk, ChatChunkChoice, ChatDelta
from tailrace.api.schema.completions import Completion, CompletionChoice
from tailrace.api.schema.explain import ExplainAnswer, TokenExplanation
from tailrace.config import ServerConfig

if TYPE_CHECKING:
    from playwright.sync_api import Page

PROMPTS = ("think draft tool", "hostile emoji 80", "grammar draft 30")
PARAMS: tuple[dict[str, Any], ...] = (
    {"seed": 3},
    {"seed": 4, "temperature": 0},
    {"seed": 5, "temperature": 0.7, "min_p": 0.05, "top_k": 20, "top_p": 0.9},
    {"seed": 6, "logit_bias": {"70": 3.0}, "frequency_penalty": 0.3, "max_tokens": 9, "forced_token_ids": [70, 71]},
)


def of_the_servers_type(record: dict[str, Any]) -> None:
    """As the real server would have written it: no field more, none less, none that it leaves out."""
    assert msgspec.to_builtins(msgspec.convert(record, TokenExplanation)) == record


def known(said: dict[str, Any], *types: type[msgspec.Struct]) -> None:
    assert said.keys() <= {name for kind in types for name in kind.__struct_fields__}


@pytest.mark.few(3)
@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("text", PROMPTS)
def test_the_tests_server_speaks_as_the_real_one(served: Served, text: str, params: dict[str, Any]):
    with httpx.Client(base_url=served.url) as http:
        shown = {"explain": True, "return_sampling_params": True, "stream": True}
        chat = {"messages": [{"role": "user", "content": text}], **shown, **params}
        output = []
        for event in events(http.post("/v1/chat/completions", json=chat).text)[:-1]:
            known(event, ChatChunk)
            for choice in event["choices"]:
                known(choice, ChatChunkChoice)
                known(choice["delta"], ChatDelta)
                for record in choice.get("explanations", []):
                    of_the_servers_type(record)
                    output.append(record["token_id"])
        for event in events(http.post("/v1/completions", json={"prompt": text, **shown, **params}).text)[:-1]:
            known(event, Completion)
            for choice in event["choices"]:
                known(choice, CompletionChoice)
        asked = {**chat, "output_token_ids": output, "positions": [0, 5], "explain": {"top": 20, "ids": [1]}}
        answer = http.post("/v1/explain", json={**asked, "what_if": {"top_p": 0.5}}).json()
        assert answer.keys() == set(ExplainAnswer.__struct_fields__)
        assert len(answer["explanations"]) == 2
        for record in answer["explanations"]:
            of_the_servers_type(record)


@pytest.mark.parametrize(
    "more", [{"probability": 0.5}, {"model": {"logit": []}}, {"edits": [{"method": "grammar"}]}, {"draft": None}]
)
def test_another_shape_would_be_seen(more: dict[str, Any]):
    script = fake_server.script_for("hello 3")
    record = next(fake_server.records_of(script, {"seed": 1}, [], {}))
    of_the_servers_type(record)
    with pytest.raises((AssertionError, msgspec.ValidationError)):
        of_the_servers_type(record | more)


# ---- the real server

LETTERS = torch.tensor([*range(ord("a"), ord("z") + 1), ord(" ")])


def rambling(ids: list[int]) -> torch.Tensor:
    """Logits that depend on all that came before: another token leads elsewhere. Letters and spaces only, no end."""
    logits = torch.full((VOCAB,), -30.0)
    generator = torch.Generator().manual_seed(hash(tuple(ids)) % 2**31)
    logits[LETTERS] = 2.0 * torch.randn(len(LETTERS), generator=generator)
    logits[[START, EOS]] = -40.0
    return logits


class RoomyClient(LocalClient):
    context = 1024


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the real server, its engine's model being a script."""
    tokenizer, port = make_tokenizer(tmp_path_factory.mktemp("bytes")), a_port()
    app = create_app(RoomyClient(rambling), tokenizer, ServerConfig(port=port), NAME)
    with serving(app, port) as url:
        yield f"{url}/"


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[str]:
    """The address of the real server, which takes its time for each token."""
    port = a_port()
    app = create_app(RoomyClient(rambling, tick_s=0.03), make_tokenizer(tmp_path), ServerConfig(port=port), NAME)
    with serving(app, port) as url:
        yield f"{url}/"


def knob(page: Page, name: str, value: str) -> None:
    page.locator(f".knobs-panel [data-field={name}] input[type=text]").first.fill(value)


RECORD = """async () => (await import('/page/js/state.js')).record.value"""
WINNER = """async () => (await import('/page/js/whatif.js')).outcome.value.record.draw.winner"""


@pytest.mark.long
def test_from_a_prompt_to_a_comparison(open_page: Callable[..., Page], real: str, tmp_path: Path):
    page = open_page(real)
    asked = sent(page)
    for name, value in (("seed", "7"), ("max_tokens", "40"), ("min_p", "0.02")):
        knob(page, name, value)
    say(page, "Say something.")
    assert len(page.evaluate(IDS)[0]) == 40

    page.locator(".tokens .t").nth(12).click()
    page.wait_for_selector(".place:has-text('Token 13 of 40')")
    page.wait_for_function("async () => (await import('/page/js/state.js')).record.value.ids.length >= 20")
    record = page.evaluate(RECORD)
    assert [step["method"] for step in record["refinements"]] == ["min_p"]
    heads = page.locator(".rung h3").all_inner_texts()
    assert heads == ["The model", "Min-p", "The draw"]
    assert page.locator(".sentence").all_inner_texts()[1] == record["sentences"]["refinements"][0]

    page.locator(".whatif summary").click()
    page.locator(".whatif").get_by_label("top_k", exact=True).fill("1")
    page.locator(".whatif").get_by_label("top_k", exact=True).press("Tab")
    page.wait_for_selector(".verdict-box")
    assert page.evaluate(WINNER) == record["ids"][record["model"]["ranks"].index(1)]
    page.locator(".whatif").get_by_label("top_k as it was").click()

    branch(page, 12)
    first, second = page.evaluate(IDS)
    assert asked[-1][1].get("forced_token_ids", second[:13]) == second[:13]
    assert (second[:12], len(second)) == (first[:12], 40)
    assert second[12] != first[12]
    page.get_by_role("tab", name="Branches").click()
    for box in page.locator(".compare-mark input").all():
        box.check()
    assert "They part at token 13" in page.locator(".comparison [role=status]").inner_text()

    page.get_by_role("tab", name="Code").click()
    page.locator(".used tbody tr").first.wait_for()
    rows = [row.inner_text().split("\t") for row in page.locator(".used tbody tr").all()]
    assert [row for row in rows if row[0] in ("min_p", "max_tokens", "temperature", "explain")] == [
        ["min_p", "0.02", "the request"],
        ["max_tokens", "40", "the request"],
        ["explain", '{"top":3}', "this page"],
    ]

    kept = exported(page)
    assert page.evaluate(IMPORT, json.dumps(kept)) is None
    assert page.evaluate(IDS) == [first, second] * 2

    compare(page, "Say it twice.", {}, {"top_k": "1"})
    page.get_by_text("In the right one top-k 1 cut").wait_for()
    assert "They part at token" in page.locator(".verdict").inner_text()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Chat", "Raw text"])
def test_an_answer_goes_on_after_a_reload(open_page: Callable[..., Page], slow: str, kind: str):
    page = open_page(slow)
    for name, value in (("seed", "7"), ("max_tokens", "120")):
        knob(page, name, value)
    page.get_by_label(kind).check(force=True)
    page.fill(".composer textarea", "Say something.")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".tokens [data-i='20']")
    page.reload()
    page.wait_for_selector(".turn.answer .tokens[aria-busy=true]")
    answered(page)
    page.get_by_role("button", name="Again").click()
    page.wait_for_selector(".siblings:has-text('2/2')")
    answered(page)
    first, second = page.evaluate(IDS)
    assert len(first) == 120
    assert first == second


@pytest.mark.long
def test_stop_ends_a_resumable_request(open_page: Callable[..., Page], slow: str):
    page = open_page(slow)
    knob(page, "max_tokens", "800")
    page.fill(".composer textarea", "Say something.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tokens [data-i='5']")
    with page.expect_response(lambda answer: answer.request.method == "DELETE") as ended:
        page.get_by_role("button", name="Stop").click()
    assert ended.value.status == 200
    page.get_by_text("Stopped by you.").wait_for()


@pytest.mark.long
def test_an_edited_answer_is_continued(open_page: Callable[..., Page], real: str):
    page = open_page(real)
    knob(page, "max_tokens", "12")
    say(page, "Say something.")
    page.locator(".turn.answer").get_by_role("button", name="Edit").click()
    field = page.get_by_label("Edit the answer")
    text = field.input_value()[:5] + "É 漢 <b>"
    field.fill(text)
    page.get_by_role("button", name="Save as a branch").click()
    page.wait_for_selector(".siblings:has-text('2/2')")
    answered(page)
    size = len(text.encode())  # a token is a byte
    assert len(page.evaluate(IDS)[1]) == size
    assert page.locator(".tokens .t").evaluate_all("all => all.map((each) => each.textContent).join('')") == text
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector(".siblings:has-text('3/3')")
    answered(page)
    edited, continued = page.evaluate(IDS)[1:]
    assert continued[:size] == edited
    assert len(continued) == size + 12
