"""Each cell of the table in field_table.py, by requests: the field has its effect, or the answer is a 400 that says
why. With markers of one token and of several."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from api.field_world import PIECES, SCENES, Answer, World, make_grammars, make_tokenizer, world_of
from field_table import COLUMNS, ROWS, SCENES_OF, UNTESTED, Case, refusal
from tailrace.api.schema.chat import ChatRequest
from tailrace.api.schema.completions import CompletionRequest
from tailrace.grammar.service import Grammars
from tailrace.sampling import processors
from tailrace.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory) -> Iterator[dict[str, tuple[Tokenizer, Grammars]]]:
    tokenizers = {kind: make_tokenizer(tmp_path_factory.mktemp("vocabulary"), kind) for kind in PIECES}
    found = {kind: (tokenizer, make_grammars(tokenizer)) for kind, tokenizer in tokenizers.items()}
    yield found
    for _, grammars in found.values():
        grammars.close()


@pytest.fixture(autouse=True)
def _processor(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(row, tokens, token):
        row[token] = -float("inf")

    monkeypatch.setitem(processors.REGISTERED, "field-table", forbid)


def test_every_field_of_a_request_has_a_row():
    fields = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    assert fields == {*ROWS, *UNTESTED}
    assert not UNTESTED & set(ROWS)


# of a field with a note every second cell with one kind of markers, of the others every fourth; the rest is long
CELLS = [
    pytest.param(
        name,
        column,
        kind,
        marks=[] if (i + j + k) % (4 if ROWS[name].note else 8) == 0 else pytest.mark.long,
        id=f"{name}-{column}-{kind}",
    )
    for i, name in enumerate(ROWS)
    for j, column in enumerate(COLUMNS)
    for k, kind in enumerate(PIECES)
]


@pytest.mark.parametrize(("name", "column", "kind"), CELLS)
async def test_a_cell(vocabularies, name, column, kind):
    async with world_of(*vocabularies[kind], drafts=column == "drafts") as world:
        for scene in SCENES_OF[column]:
            await check_cell(world, name, column, scene)


async def check_cell(world: World, name: str, column: str, scene: str) -> None:
    row, more = ROWS[name], {"drafts": {}, "n": {"n": 2}, "beams": {"use_beam_search": True, "temperature": None}}
    wants, world.plan.peak = {"letters": row.letters, "thought": row.thought}, row.peak
    [bare] = await world.ask(scene, **wants, **row.bare)
    case = Case(world, scene, SCENES[scene], bare, bare)
    asked: dict[str, Any] = dict(row.asked(case) if callable(row.asked) else row.asked)
    if column == "beams" and row.beams is not None:
        asked = dict(row.beams)
    answers = await world.ask(scene, **wants, **(more.get(column, {}) | asked))
    if (message := refusal(name, column, scene)) is not None:
        assert answers[0].status == 400, (scene, answers[0])
        assert re.search(message, answers[0].error), answers[0].error
        assert any(field in answers[0].error for field in asked), answers[0].error
        return
    assert len(answers) == (2 if column == "n" or name == "n" else 1), answers[0]
    for answer in answers if column != "n" or "seed" not in asked else answers[:1]:
        assert answer.status == 200, (scene, answer.error)
        if column != "beams":
            assert row.holds(Case(world, scene, SCENES[scene], bare, answer)), (scene, shown(bare), shown(answer))


def shown(answer: Answer) -> tuple[Any, ...]:
    """What a failure shows of an answer."""
    return (answer.thought, answer.content, answer.call, answer.finish, answer.stop, answer.ids)
