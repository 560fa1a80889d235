"""What the default model says under real JSON schemas, at temperature 1: whatever comes to its end parses and
validates; with guesses token for token the same, with guidance too; and where the output is to be closed in time, all
of it comes to its end."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tailrace.config import CacheConfig, GrammarConfig, SchedulerConfig, SpeculationConfig
from tailrace.drafting.ngram import NGram
from tailrace.engine.engine import Engine
from tailrace.engine.process import token_bytes_of
from tailrace.errors import ParameterError
from tailrace.grammar.completion import shortest_completion
from tailrace.grammar.service import Grammars
from tailrace.models import describe
from tailrace.params import SamplingParams
from tailrace.request.options import Grammar
from tailrace.runners.base import ModelRunner
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import Failed, Submit, Tokens

pytestmark = pytest.mark.model

SCHEMAS = Path(__file__).parents[1] / "grammar" / "schemas.jsonl"
SHOWN = 400  # characters of a schema that the model is shown
AT_ONCE = 64  # requests; more grammars than 128 may not wait to be compiled
ROOM = 10  # more tokens than the shortest known ending takes, for a budget that allows for it


@dataclass(frozen=True)
class Said:
    """What became of one request."""

    tokens: list[int]
    reason: str


class World:
    """Engines over one loaded model, and the schemas that its grammars take."""

    def __init__(self, folder: Path, runner: ModelRunner) -> None:
        self.tokenizer = Tokenizer.load(folder)
        self.info = describe(folder, "small")
        self.runner = runner
        self.token_bytes = token_bytes_of(folder, False, self.info.vocab_size)
        self.grammars = Grammars(
            GrammarConfig(timeout_s=30.0),
            folder,
            self.token_bytes.token_bytes,
            self.token_bytes.special,
            self.info.eos_token_ids,
            self.runner.vocab_size,
        )

    def taken(self, records: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
        """The first so many that a grammar can be made of; the others are refused openly, mostly for keywords that no
        grammar can say (uniqueItems, if)."""
        found, refused = [], 0
        for record in records:
            try:
                self.grammars.compile(grammar_of(record)).result()
                found.append(record)
            except ParameterError:
                refused += 1
            if len(found) == count:
                break
        assert len(found) == count
        assert refused <= count / 4
        return found

    def run(self, records: list[dict[str, Any]], max_tokens: int, *, close=False, drafter=None, **fields) -> list[Said]:
        """One request per schema."""
        engine = Engine(
            self.runner,
            self.info,
            CacheConfig(num_blocks=1024),
            SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=512),
            self.token_bytes,
            self.grammars,
            SpeculationConfig(adaptive=False),
            drafter,
        )
        tokens: dict[str, list[int]] = {str(place): [] for place in range(len(records))}
        reasons: dict[str, str] = {}
        waiting = deque(enumerate(records))
        while waiting or engine.has_work:
            while waiting and len(engine.requests) < AT_ONCE:
                engine.submit(self.request(*waiting.popleft(), close, max_tokens, fields))
            for message in engine.step().get(b"", []):
                if isinstance(message, Tokens):
                    tokens[message.id] += message.token_ids
                else:
                    assert not isinstance(message, Failed), (records[int(message.id)]["name"], message)
                    reasons[message.id] = message.reason
        assert engine.stats().blocks_used == 0
        assert drafter is None or engine.counters.accepted_tokens
        return [Said(tokens[name], reasons[name]) for name in tokens]

    def request(
        self, place: int, record: dict[str, Any], close: bool, max_tokens: int, fields: dict[str, Any]
    ) -> Submit:
        shown = json.dumps(record["schema"])[:SHOWN]
        asked = f"<|im_start|>user\nWrite JSON for {record['name']}: {shown}<|im_end|>\n<|im_start|>assistant\n"
        grammar = grammar_of(record, close)
        params = SamplingParams(temperature=1.0, seed=place, max_tokens=max_tokens, grammar=grammar, **fields)
        return Submit(str(place), 0, self.tokenizer.encode(asked), params)

    def text(self, said: Said) -> str:
        return b"".join(
            self.token_bytes.token_bytes[t] for t in said.tokens if t not in self.info.eos_token_ids
        ).decode()

    def check(self, records: list[dict[str, Any]], outcomes: list[Said], max_tokens: int) -> int:
        """Each that was completed is valid; how many were."""
        for record, said in zip(records, outcomes, strict=True):
            assert len(said.tokens) <= max_tokens
            if said.reason == "stop":
                validates(self.text(said), record["schema"])
        reasons = Counter(said.reason for said in outcomes)
        assert set(reasons) <= {"stop", "length"}
        return reasons["stop"]

    def closable(self, record: dict[str, Any], max_tokens: int) -> bool:
        """The budget allows for an ending that is known at the start."""
        found = shortest_completion(self.grammars.compile(grammar_of(record)).result().matcher(), max_tokens)
        return found is not None and len(found) + ROOM <= max_tokens


def grammar_of(record: dict[str, Any], close: bool = False) -> Grammar:
    source = json.dumps(record["schema"])
    return Grammar(kind="json_schema", source=source, whitespace=2, close_in_time=close)


def validates(text: str, schema: dict[str, Any]) -> None:
    jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).validate(json.loads(text))


@pytest.fixture(scope="module")
def world(model_folder: Path, runner_of) -> Iterator[World]:
    made = World(model_folder, runner_of("bfloat16"))
    yield made
    made.grammars.close()


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in SCHEMAS.read_text().splitlines()]


def drafter(sampler) -> NGram:
    return NGram(min_size=1)


GUIDED = {"guidance_scale": 1.5, "negative_prompt": (1, 2, 3)}


@pytest.mark.long
def test_some_small_schemas(world, records):
    chosen = world.taken([r for r in records if len(json.dumps(r["schema"])) < 250], 2)
    room = 40
    outcomes = world.run(chosen, room, close=True)
    assert world.check(chosen, outcomes, room) == len(chosen)
    outcomes = world.run(chosen, room, close=True, drafter=drafter, **GUIDED)
    assert world.check(chosen, outcomes, room) == len(chosen)


def test_what_does_not_validate_is_seen():
    """The negative control."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    validates('{"a": 1}', schema)
    for wrong in ('{"a": "1"}', "{}", "[1]"):
        with pytest.raises(jsonschema.ValidationError):
            validates(wrong, schema)
    with pytest.raises(json.JSONDecodeError):
        validates('{"a": 1', schema)


@pytest.fixture(scope="module")
def many(world, records) -> list[dict[str, Any]]:
    return world.taken(records, 80)


@pytest.mark.long
def test_many_schemas_with_and_without_guesses(world, many):
    outcomes = world.run(many, 160)
    completed = world.check(many, outcomes, 160)
    print(f"{completed} of {len(many)} came to their end")
    assert completed >= len(many) / 4
    assert world.run(many, 160, drafter=drafter) == outcomes


@pytest.mark.long
def test_many_schemas_with_guidance(world, many):
    outcomes = world.run(many, 160, **GUIDED)
    completed = world.check(many, outcomes, 160)
    print(f"{completed} of {len(many)} came to their end")
    assert completed >= len(many) / 4
    assert world.run(many[:20], 160, drafter=drafter, **GUIDED) == outcomes[:20]


@pytest.mark.long
@pytest.mark.parametrize("room", [60, 160])
def test_many_schemas_closed_in_time(world, many, room):
    outcomes = world.run(many, room, close=True, drafter=drafter)
    completed = world.check(many, outcomes, room)
    closable = [world.closable(record, room) for record in many]
    print(f"{completed} of {len(many)} came to their end; {sum(closable)} could be closed in {room} tokens")
    left = [r["name"] for r, said, able in zip(many, outcomes, closable, strict=True) if able and said.reason != "stop"]
    assert not left
