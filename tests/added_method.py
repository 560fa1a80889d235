"""What the two methods of docs/add/method.md do in a package that has them, as JSON on stdout.

tests/test_method_guide.py runs this file in a process that imports such a package:

    python tests/added_method.py DOCS FOLDER

DOCS is the copy of docs/. FOLDER is an empty folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

import tailrace
from api.harness import VOCAB, LocalClient, front_of, make_tokenizer, random_row
from tailrace.cli.flags import add_sampling_flags, given_sampling
from tailrace.errors import ParameterError
from tailrace.explain.record import ExplainOptions
from tailrace.explain.sentences import sentences_of
from tailrace.sampling import Rows, Sampler, SamplingParams, Slots

ROW = [3.0, 2.5, 1.5, 1.0, 2.9, 0.0, -1.0, 2.0]
PROMPT = "x="


def draw(backend: str, **fields: Any) -> dict[str, Any]:
    """Return the tokens of 40 positions, and the ids that survived at the first one."""
    slots = Slots(1, len(ROW))
    slots.add(0, SamplingParams(return_sampling_mask=True, **fields), key=7, prompt=[1])
    sampler, tokens, masks = Sampler(slots, backend), [], []
    for position in range(40):
        out = sampler(torch.tensor([ROW]), Rows.plain([0], [0], [position]))
        assert out.sampling_mask is not None
        tokens += out.token_ids.flatten().tolist()
        masks += [part.tolist() for part in out.sampling_mask.parts()]
    return {"tokens": sorted(set(tokens)), "mask": masks[0]}


def explain(**fields: Any) -> list[str]:
    """Return the sentences about the methods, and the reason why token 3 did not come."""
    slots = Slots(1, len(ROW))
    slots.add(0, SamplingParams(**fields), key=7, prompt=[1])
    [[record]] = Sampler(slots).explain(torch.tensor([ROW]), Rows.plain([0], [0]), ExplainOptions())
    said = sentences_of(record, str)
    return [*said.edits, *said.refinements, said.why_not[record.ids.index(3)]]


def refuse(**fields: Any) -> str:
    """Return the error about these parameters."""
    try:
        SamplingParams(**fields)
    except ParameterError as error:
        return str(error)
    raise AssertionError(f"{fields} are accepted")


def read_flags(*line: str) -> dict[str, Any]:
    """Return the sampling fields that a command line gives."""
    parser = argparse.ArgumentParser()
    add_sampling_flags(parser)
    return given_sampling(parser.parse_args(line))


async def ask(folder: Path) -> dict[str, Any]:
    """Return the answers of the HTTP endpoints."""
    fields = {"temperature": 1.0, "logit_gap": 1.0, "id_step": 2, "return_sampling_mask": True}
    found: dict[str, Any] = {}
    async with front_of(LocalClient(random_row), make_tokenizer(folder)) as front:
        body = {"max_tokens": 6, "seed": 5, "return_token_ids": True, "explain": True, **fields}
        answer = await front.complete(PROMPT, **body)
        found["completion"] = answer.json()
        mask = fields.pop("return_sampling_mask")
        native = {"text": PROMPT, "return_sampling_mask": mask}
        native["sampling_params"] = {"max_new_tokens": 6, "sampling_seed": 5, **fields}
        found["native"] = (await front.http.post("/generate", json=native)).json()
        found["chat"] = (await front.chat(**fields, max_tokens=3, seed=5)).status_code
        found["refused"] = (await front.complete(PROMPT, logit_gap=-1.0)).json()
        found["page"] = (await front.http.get("/page/fields.json")).json()
        found["openapi"] = (await front.http.get("/openapi.json")).json()
    ids = list(PROMPT.encode())
    found["rows"] = []
    for token in found["completion"].get("choices", [{}])[0].get("token_ids", []):
        row = random_row(ids)
        found["rows"].append([i for i in range(0, VOCAB, 2) if row[i] >= row[::2].max() - 1.0])
        ids.append(token)
    return found


def write_tables(docs: Path) -> dict[str, str]:
    """Return the pages with the tables that the two programs write."""
    for name in ("write_fields.py", "write_combinations.py"):
        runpy.run_path(str(docs / name), run_name="__main__")
    return {name: (docs / name).read_text() for name in ("sampling.md", "api/combinations.md")}


if __name__ == "__main__":
    docs, folder = map(Path, sys.argv[1:])
    both: dict[str, Any] = {"logit_gap": 2.0, "id_step": 2}
    json.dump(
        {
            "package": tailrace.__file__,
            "kernels": draw("cpu", **both),
            "reference": draw("reference", **both),
            "gap": draw("cpu", logit_gap=0.2),
            "step": draw("cpu", id_step=3),
            "greedy": draw("cpu", id_step=3, temperature=0.0),
            "sentences": explain(**both),
            "reordered": explain(**both, top_k=2, sampler_order=("logit_gap", "top_k")),
            "errors": [
                refuse(return_sampling_mask=True),
                refuse(mirostat=2, logit_gap=1.0),
                refuse(logit_gap=-1.0),
                refuse(id_step=1.5),
            ],
            "flags": read_flags("--logit-gap", "1.5", "--id-step", "2"),
            "http": asyncio.run(ask(folder)),
            "tables": write_tables(docs),
        },
        sys.stdout,
    )
