"""Real schemas (schemas.md): texts written under the masks validate by jsonschema (default model's tokenizer)."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import pytest

from tailrace.errors import ParameterError
from tailrace.grammar.check import UnsupportedError
from tailrace.grammar.completion import shortest_completion
from tailrace.grammar.llguidance import GrammarCompiler
from tailrace.grammar.matcher import GrammarMatcher
from tailrace.grammar.vocabulary import Vocabulary
from tailrace.request.options import Grammar
from tailrace.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model
RECORDS = [json.loads(line) for line in (Path(__file__).parent / "schemas.jsonl").read_text().splitlines()]
STEPS = 25  # tokens drawn at random before the text is closed


@lru_cache
def library_of(folder: Path) -> GrammarCompiler:
    tokenizer = Tokenizer.load(folder)
    config = json.loads((folder / "config.json").read_text())
    size = config["vocab_size"]
    spelled = [tokenizer.bytes_of(i) for i in range(size)]
    vocabulary = Vocabulary.of(folder, spelled, frozenset(tokenizer.special_ids), [config["eos_token_id"]], size)
    return GrammarCompiler(vocabulary)


def written(matcher: GrammarMatcher, seed: int) -> str | None:
    """A random text, completed after a while; None: no completion was found."""
    rng, path = numpy.random.default_rng(seed), []
    eos = matcher.vocabulary.eos[0]
    while len(path) < STEPS:
        token = int(rng.choice(matcher.get_allowed().nonzero()[0]))
        assert matcher.accept(token)
        if token == eos:
            break
        path.append(token)
    else:
        if (rest := shortest_completion(matcher, 1000)) is None:
            return None
        assert all(matcher.accept(token) for token in [*rest, eos])
        path += rest
    assert matcher.finished
    return b"".join(matcher.vocabulary.token_bytes[i] for i in path).decode()


def validates(text: str, schema: dict[str, Any]) -> None:
    jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).validate(json.loads(text))


def run(library: GrammarCompiler, records: list[dict[str, Any]]) -> tuple[int, int]:
    """How many are accepted, and how many of the texts could not be closed."""
    accepted = unclosed = 0
    for seed, record in enumerate(records):
        source = json.dumps(record["schema"])
        try:
            compiled = library.load(library.compile(Grammar(kind="json_schema", source=source, whitespace=2)))
        except (UnsupportedError, ParameterError):
            continue
        accepted += 1
        matcher = compiled.matcher()
        assert isinstance(matcher, GrammarMatcher)
        if (text := written(matcher, seed)) is None:
            unclosed += 1
        else:
            validates(text, record["schema"])
    return accepted, unclosed


def test_the_corpus_is_large_and_diverse():
    assert len(RECORDS) >= 250
    assert len({json.dumps(record["schema"]) for record in RECORDS}) == len(RECORDS)
    assert {record["source"] for record in RECORDS} == {"bfcl-eval", "schemastore", "check-jsonschema"}


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_what_is_written_validates(model_folder: Path, every: int):
    accepted, unclosed = run(library_of(model_folder), RECORDS[::every])
    assert accepted >= 210 // every
    assert unclosed <= max(1, 0.02 * accepted)
