"""The blocks of the pages about integrations run as they stand, with this machine's model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs"


def run(page: str, folder: Path) -> dict[str, Any]:
    """The names that the page's blocks leave behind."""
    scope: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL):
        code = block.replace('"HuggingFaceTB/SmolLM2-135M-Instruct"', repr(str(folder)))
        exec(compile(code, page, "exec"), scope)
    return scope


@pytest.mark.model
def test_transformers(model_folder):
    page = run("integrations/transformers.md", model_folder)
    mine, theirs = page["ids"], page["same"]
    width = page["batch"].input_ids.shape[1]
    assert "Paris" in page["tokenizer"].decode(mine[0])
    assert (mine[2, width + 5 :] == page["tokenizer"].pad_token_id).all()
    assert theirs.shape == mine.shape
    assert len(page["result"].sampling_masks[2]) == 4
    assert page["text"]
    assert "\n\n" not in page["text"]
