"""docs/library.md: its blocks run as they stand, and its table of fields is whole and right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tailrace.params import SamplingParams
from tailrace.sampling.validation import CALLER_FIELDS

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "library.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def page(model_folder: Path) -> dict[str, Any]:
    """The names that the page's blocks leave behind, run in order, with the model of this machine."""
    scope: dict[str, Any] = {}
    for block in BLOCKS:
        exec(
            compile(
                block.replace('"HuggingFaceTB/SmolLM2-135M-Instruct"', repr(str(model_folder))), "library.md", "exec"
            ),
            scope,
        )
    return scope


def test_the_loop_has_thirty_lines():
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) <= 32  # with its imports and the model
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in BLOCKS[0]


@pytest.mark.long
@pytest.mark.model
def test_the_greedy_row_is_what_transformers_generates(page):
    with torch.inference_mode():
        batch = page["tokenizer"](page["prompts"], padding=True, return_tensors="pt")
        theirs = page["model"].generate(**batch, max_new_tokens=20, do_sample=False)
    [mine, *_] = page["outputs"]
    assert len(mine) == 20 or mine[-1] in page["EOS"]
    assert theirs[0, batch.input_ids.shape[1] :].tolist()[: len(mine)] == mine


@pytest.mark.long
@pytest.mark.model
def test_the_batch_is_four_texts_and_seeds_say_the_same_again(page):
    again = [[] for _ in page["prompts"]]
    params = [SamplingParams(temperature=0.0), *(SamplingParams(temperature=0.8, seed=seed) for seed in (7, 8, 7))]
    page["generate"](page["prompts"], params, lambda row, new: again[row].extend(new))
    once_more = [[] for _ in page["prompts"]]
    page["generate"](page["prompts"], params, lambda row, new: once_more[row].extend(new))
    assert again == once_more
    assert again[0] == page["outputs"][0]
    assert len({tuple(ids) for ids in page["outputs"]}) == 4


@pytest.mark.long
@pytest.mark.model
def test_texts_end_before_their_stops(page):
    texts = page["texts"]
    assert "Paris" in texts[0]
    for text, params in zip(texts, page["params"], strict=True):
        assert not any(stop in text for stop in params.stop)
    assert [stream.finished for stream in page["streams"]] == [True] * 4
    ids: list[int] = []
    page["generate"](page["prompts"][3:], [SamplingParams(temperature=0.0)], lambda row, new: ids.extend(new))
    assert texts[3] == page["tokenizer"].decode(ids, skip_special_tokens=True)


@pytest.mark.long
@pytest.mark.model
def test_drafts_change_speed_alone(page):
    prompt = "The cat sat on the mat. The cat sat on the mat. The cat sat on"
    for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, top_p=0.9, seed=3)):
        plain: list[int] = []
        page["generate"]([prompt], [params], lambda row, new, plain=plain: plain.extend(new))
        drafted, calls = page["generate_with_drafts"](prompt, params)
        assert drafted == plain
        assert calls <= len(drafted)
    assert page["calls"] < len(page["drafted"]), "nothing was guessed right on text that repeats itself"


@pytest.mark.long
@pytest.mark.model
def test_the_stateless_call_draws_what_slots_draw(page):
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.8, top_p=0.95, seed=7),
        SamplingParams(temperature=0.8, seed=8),
        SamplingParams(temperature=1.2, top_p=0.9, seed=9),
    ]
    by_slots = [[] for _ in params]
    page["generate"](page["prompts"], params, lambda row, new: by_slots[row].extend(new))
    assert [ids[: len(mine)] for ids, mine in zip(page["stateless"], by_slots, strict=True)] == by_slots
    assert all(len(mine) == 20 or mine[-1] in page["EOS"] for mine in by_slots)
    assert set(page["token_ids"].tolist()) <= {2, 3}
    assert page["found"].top_ids.shape == (2, 5)


def rows_of_fields() -> dict[str, str]:
    """Field → whose, as the page's table has them."""
    table = PAGE[PAGE.index("## Whose field is it") : PAGE.index("## What differs over HTTP")]
    found: dict[str, str] = {}
    for fields, whose in re.findall(r"^\| (`.*?`) \| (\w+) \|", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", fields):
            assert name not in found, f"{name} is there twice"
            found[name] = whose
    return found


def test_every_field_is_marked_as_somebodys():
    found = rows_of_fields()
    assert set(found) < {field.name for field in msgspec.structs.fields(SamplingParams)}
    assert {name for name, whose in found.items() if whose != "sampler"} == set(CALLER_FIELDS)
    assert "| every other field of [the table](sampling.md#fields) | sampler | |" in PAGE


def test_what_is_the_texts_is_read_there():
    folder = Path(__file__).resolve().parents[1] / "src" / "tailrace"
    sources = [folder / "params.py", *(folder / "text").glob("*.py")]
    read = " ".join(path.read_text() for path in sources)
    for name, whose in rows_of_fields().items():
        if whose == "text":
            assert re.search(rf"(params|self|_params)\.{name}\b", read), name
