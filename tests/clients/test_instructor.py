"""Instructor: in the mode that needs no grammar, where the model is asked for JSON in a code block, and in those that
do.

A model of 135M parameters knows what to write but copies the schema first; `forced_token_ids` begin its answer, and the
values are then its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import instructor
import openai
import pytest
from instructor.core import InstructorRetryException
from pydantic import BaseModel, field_validator
from transformers import AutoTokenizer

from .conftest import NAME, Server

TURNS = [
    {"role": "user", "content": "Extract: Mary is 25 years old."},
    {"role": "assistant", "content": '```json\n{"name": "Mary", "age": 25}\n```'},
    {"role": "user", "content": "Extract: John is 30 years old."},
]


class Person(BaseModel):
    """What to find."""

    name: str
    age: int


JOHN = ("John", 30)


@pytest.fixture(scope="module")
def calling(serve) -> Iterator[Server]:
    """Where it is known how the model writes calls."""
    with serve("--tool-parser", "hermes") as running:
        yield running


@pytest.fixture
def ask(tokenizer_folder: str) -> dict[str, Any]:
    """What every call says."""
    begin = AutoTokenizer.from_pretrained(tokenizer_folder).encode('```json\n{"name": "')
    return {
        "model": NAME,
        "messages": TURNS,
        "temperature": 0,
        "max_tokens": 60,
        "response_model": Person,
        "extra_body": {"forced_token_ids": begin},
    }


def client_of(server: Server, mode: instructor.Mode = instructor.Mode.MD_JSON) -> instructor.Instructor:
    return instructor.from_openai(openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0), mode=mode)


def test_create(server, ask):
    person, answer = client_of(server).create_with_completion(**ask)
    assert (person.name, person.age) == JOHN
    assert answer.choices[0].finish_reason == "stop"


def test_partial(server, ask):
    """The object grows while it streams."""
    seen = list(client_of(server).create_partial(**ask))
    assert len(seen) > 2
    assert (seen[-1].name, seen[-1].age) == JOHN


def test_async(server, ask):
    async def create() -> Person:
        async with openai.AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0) as client:
            return await instructor.from_openai(client, mode=instructor.Mode.MD_JSON).create(**ask)

    person = asyncio.run(create())
    assert (person.name, person.age) == JOHN


def test_an_answer_that_does_not_pass_is_asked_for_again(server, ask):
    """With what was wrong with it as another turn; the usage is that of both."""
    refused = []

    class Fussy(Person):
        @field_validator("age")
        @classmethod
        def refuse_once(cls, age: int) -> int:
            if not refused:
                refused.append(age)
                raise ValueError("look again")
            return age

    once = client_of(server).create_with_completion(**ask)[1].usage
    again, answer = client_of(server).create_with_completion(**ask | {"response_model": Fussy, "max_retries": 1})
    assert refused == [30]
    assert again.name
    assert answer.usage.prompt_tokens > 2 * once.prompt_tokens


def test_any_json_object(server, ask):
    """This mode tells the schema to the model alone; so small a one answers with a schema, but in JSON."""

    class Anything(BaseModel, extra="allow"):
        pass

    found = client_of(server, instructor.Mode.JSON).create(
        **ask | {"extra_body": {}, "max_retries": 0, "response_model": Anything, "max_tokens": 200}
    )
    assert found.model_extra


@pytest.mark.parametrize("mode", [instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS])
def test_modes_of_a_grammar(calling, ask, mode):
    """Nothing is forced but the form; each answer passes at the first try."""
    person, answer = client_of(calling, mode).create_with_completion(**ask | {"extra_body": {}, "max_retries": 0})
    assert isinstance(person.name, str)
    assert isinstance(person.age, int)
    assert answer.choices[0].finish_reason == "stop"  # also of a call, where the function is named
    assert bool(answer.choices[0].message.tool_calls) == (mode is instructor.Mode.TOOLS)


def test_without_a_known_form_of_calls_none_can_be_forced(server, ask):
    with pytest.raises(InstructorRetryException) as refused:
        client_of(server, instructor.Mode.TOOLS).create(**ask | {"max_retries": 0})
    cause = refused.value.__cause__
    while cause is not None and not isinstance(cause, openai.BadRequestError):
        cause = cause.__cause__
    assert cause is not None, "another error than a 400"
    assert cause.param == "tool_choice"
