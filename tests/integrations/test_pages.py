"""The blocks of the pages about integrations run as they stand, with this machine's model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.test_openai_client import Server

PAGES = Path(__file__).resolve().parents[2] / "docs"


def run(page: str, folder: Path, url: str = "") -> dict[str, Any]:
    """The names that the page's blocks leave behind."""
    scope: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL):
        code = block.replace('"HuggingFaceTB/SmolLM2-135M-Instruct"', repr(str(folder)))
        code = code.replace('"http://127.0.0.1:8000"', repr(url))
        exec(compile(code, page, "exec"), scope)
    return scope


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.model
def test_trainers(model_folder):
    """Importance weights are 1 with masks and without truncation, and are not where top-p's masks are left out."""
    server = Server(model_folder, "--dtype", "float32")
    try:
        page = run("trainers.md", model_folder, server.url)
    finally:
        server.stop()
    for found in (page["free"], page["masked"]):
        assert sum(map(len, found)) > 30
        for weights in found:
            assert (weights - 1).abs().max() < 1e-3
    assert torch.cat(page["unmasked"]).mean() < 0.98
    assert (page["old"] - page["policy_logprobs"](page["choice"], 0.8)).abs().max() < 1e-3
