"""Writes the table of docs/integrations/fields.md: what each field does on each path that an engine takes:
`python docs/write_engines.py`.

The cells come from the integrations' own modules `refused_fields.py`, by which their doors refuse. A field that such a
module does not name acts. tests/test_docs.py checks that the table is current and that no cell is empty.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tailrace.params import FIELDS
from tailrace.request.fields import KINDS

PAGE = Path(__file__).parent / "integrations" / "fields.md"
INTEGRATIONS = Path(__file__).parents[1] / "src" / "tailrace" / "integrations"
PLACE = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
ACTS = "acts"
# fields of tailrace's server that are no field of SamplingParams → what they are there
SERVER_FIELDS: dict[str, str] = {
    "preset": "a name of several fields' values: write out the fields",
    "return_sampling_params": "the answer of tailrace's server has a place for it",
    "cfg_scale": "another name of `guidance_scale`",
    "use_beam_search": "a beam search draws nothing",
    "best_of": "a beam search draws nothing",
    "length_penalty": "a beam search draws nothing",
    "early_stopping": "a beam search draws nothing",
    "reasoning_budget_message": "tailrace's engine forces the tokens of a closing message",
    "reasoning_control": "tailrace's engine ends a thought on request",
}
# names over HTTP, which a module may use as well → fields
OVER_HTTP = {field.http_name: name for name, field in FIELDS.items() if field.http_name}
BEAMS = ("use_beam_search", "length_penalty", "early_stopping")


@dataclass(frozen=True)
class EnginePath:
    """A path that a request takes through an engine: its name, the integration and the dict with the refused fields.

    acts: fields of SERVER_FIELDS that the engine has itself, without tailrace.
    """

    name: str
    integration: str
    refused: str
    acts: Collection[str] = ()


PATHS = (
    EnginePath("vLLM V1", "vllm", "V1", BEAMS),
    EnginePath("vLLM V1, drafts", "vllm", "V1_DRAFTS", BEAMS),
    EnginePath("vLLM V2", "vllm", "V2", BEAMS),
    EnginePath("vLLM V2, drafts", "vllm", "V2_DRAFTS", BEAMS),
    EnginePath("SGLang", "sglang", "SGLANG"),
    EnginePath("SGLang, drafts", "sglang", "SGLANG_DRAFTS"),
    EnginePath("`generate`", "transformers", "GENERATE"),
    EnginePath("`generate`, streamer", "transformers", "STREAMED"),
    EnginePath("continuous batching", "transformers", "CONTINUOUS_BATCHING"),
    EnginePath("llama-cpp-python", "llama_cpp", "LLAMA_CPP"),
    EnginePath("Aphrodite", "aphrodite", "APHRODITE", BEAMS),
    EnginePath("exllamav3", "exllamav3", "EXLLAMAV3"),
)


@cache
def read_module(integration: str) -> dict[str, Any]:
    """Return the names of an integration's module, without its package, which may import the engine."""
    return runpy.run_path(str(INTEGRATIONS / integration / "refused_fields.py"))


def read_refused(path: EnginePath) -> dict[str, str]:
    """Return the fields that the path refuses, with the reasons.

    Raises:
        ValueError: the module names a field that does not exist.
    """
    given: dict[str, str] = read_module(path.integration)[path.refused]
    refused = {OVER_HTTP.get(name, name): reason for name, reason in given.items()}
    if unknown := refused.keys() - FIELDS.keys() - SERVER_FIELDS.keys():
        raise ValueError(f"{path.integration}.{path.refused} names no field: {', '.join(sorted(unknown))}")
    return refused


def find_reason(path: EnginePath, field: str) -> str:
    """Return why the path refuses the field; "" if the field acts."""
    refused = read_refused(path)
    if field in refused:
        return refused[field]
    return "" if field in FIELDS or field in path.acts else SERVER_FIELDS[field]


def list_fields() -> Iterator[tuple[str, str]]:
    """Return the fields in the table's order, each with its kind."""
    for kind in KINDS:
        yield from ((name, kind) for name, field in FIELDS.items() if field.kind == kind)
    yield from ((name, "server") for name in SERVER_FIELDS)


def number_reasons() -> dict[str, int]:
    """Return the reasons in the order of their first cell, numbered from 1."""
    found = (find_reason(path, name) for name, _ in list_fields() for path in PATHS)
    return {reason: number for number, reason in enumerate(dict.fromkeys(filter(None, found)), 1)}


def make_table() -> Iterator[tuple[str, ...]]:
    """Return the rows: "acts", or "refused" with the number of the reason."""
    numbers = number_reasons()
    yield ("field", "kind", *(path.name for path in PATHS))
    for name, kind in list_fields():
        reasons = [find_reason(path, name) for path in PATHS]
        yield (f"`{name}`", kind, *(f"refused ({numbers[reason]})" if reason else ACTS for reason in reasons))


def list_reasons() -> Iterator[tuple[str, ...]]:
    """Return the reasons by their numbers."""
    yield "number", "reason"
    yield from ((str(number), reason) for reason, number in number_reasons().items())


TABLES = {"fields": make_table, "reasons": list_reasons}


def format_table(rows: Iterator[tuple[str, ...]]) -> str:
    """Return the rows as Markdown; the first is the head."""
    head, *rest = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * (head.count(" | ") + 1), *rest])


def written(page: str) -> str:
    """Return the page with its tables as they must be."""
    return PLACE.sub(lambda at: f"<!-- table: {at[1]} -->\n{format_table(TABLES[at[1]]())}\n<!-- end -->", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
