"""Lark grammars of custom tools in each format of calls: what a model writes at random is text of the grammar."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch

from api.harness import EOS, VOCAB, LocalClient, front_of
from api.test_chat_tools import ASK, NAMED, grammar
from api.test_forced_tools import HOW, read, vocabulary
from api.test_tool_kinds import post
from tailrace.api.chat_tools import flatten_tools
from tailrace.config import GrammarConfig, ServerConfig
from tailrace.errors import ParameterError
from tailrace.grammar.service import Grammars
from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.text.tool_parsers.functions import Function, functions_of
from tailrace.text.tool_parsers.grammar import forced_grammar, optional_grammar
from tailrace.text.tool_parsers.grammar_writer import GrammarWriter
from tailrace.text.tool_parsers.harmony import harmony_grammar
from tailrace.text.tool_parsers.lark_source import LarkGrammar
from text.test_lark_source import NESTED, takes
from text.test_lark_source import PATCH as SOURCE

ENDS = tuple(text for end in ("", "*** End", '*** End"', "+") for text in (f"\n{end}", rf"\n{end}"))
JSON_SHAPES = ("JsonCalls", "Sectioned", "Mistral", "Pythonic", "Headed")
JSON_TEXTS = [name for name, form in TOOL_FORMATS.items() if type(form.shape).__name__ in JSON_SHAPES]
PLAIN = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
OTHER = {"type": "function", "function": {"name": "other", "parameters": PLAIN, "strict": True}}
SMALL = 'start: ("a" | "\\"" | "\\n" | "</")~1..4 "b"'


def make_functions(source: str) -> tuple[list[dict[str, Any]], list[Function]]:
    flat = flatten_tools([grammar(syntax="lark", definition=source), OTHER])
    tools = flat.tools or []
    return tools, functions_of(tools, grammars=flat.custom)


@pytest.mark.few(2)
@pytest.mark.parametrize(("form", "how"), [(form, HOW[i % 3]) for i, form in enumerate(TOOL_FORMATS)])
def test_random_calls_have_text_of_the_grammar(form: str, how: str):
    words, seen = vocabulary(form, how), 0
    tools, functions = make_functions(SOURCE)
    source = forced_grammar(TOOL_FORMATS[form], GrammarWriter(functions[:1], words.tokenizer, many=False))
    for seed in range(3):
        calls, said = read(form, words.walk(source, seed, (*words.ends, *ENDS)), tools)
        assert not said.strip()
        for name, arguments in calls:
            assert name == "patch"
            assert takes(SOURCE, arguments["input"])
            seen += 1
    assert seen == 3


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_another_functions_text_is_free(form: str):
    """Its schema is the same, and its text need not fit the grammar."""
    words = vocabulary(form, "text")
    tools, functions = make_functions(SMALL)
    source = forced_grammar(TOOL_FORMATS[form], GrammarWriter(functions, words.tokenizer, many=False))
    texts: dict[str, list[str]] = {"patch": [], "other": []}
    for seed in range(40):
        [(name, arguments)], _ = read(form, words.walk(source, seed, words.ends), tools)
        texts[name].append(arguments["input"])
        if min(map(len, texts.values())) > 1:
            break
    assert all(takes(SMALL, text) for text in texts["patch"])
    assert not all(takes(SMALL, text) for text in texts["other"])


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_recursive_rules_hold_or_are_refused(form: str):
    words = vocabulary(form, "text")
    tools, functions = make_functions(NESTED)
    writer, in_json = GrammarWriter(functions[:1], words.tokenizer, many=False), form in JSON_TEXTS
    if not in_json:
        with pytest.raises(ParameterError, match="recursive"):
            forced_grammar(TOOL_FORMATS[form], writer)
        return
    source = forced_grammar(TOOL_FORMATS[form], writer)
    [(_, arguments)], _ = read(form, words.walk(source, 1, (*words.ends, ")")), tools)
    assert takes(NESTED, arguments["input"].strip(" "))


def test_gpt_oss_and_optional_calls():
    _, functions = make_functions(SMALL)
    tokenizer = vocabulary("hermes", "text").tokenizer
    for source in (
        harmony_grammar(GrammarWriter(functions, tokenizer), True),
        optional_grammar(TOOL_FORMATS["hermes"], GrammarWriter(functions, tokenizer)),
    ):
        assert "TEXT0J_R_START_END" in source


def babble(ids: list[int]) -> torch.Tensor:
    """Another favourite at each place; nothing in it knows what is asked for."""
    rng = random.Random(len(ids))
    return torch.tensor([rng.gauss(0, 2) for _ in range(VOCAB)])


def use_grammars(engine: Any, grammars: Grammars) -> None:
    """Give an engine its grammars."""
    engine.grammars = engine.lifecycle._grammars = engine.compilations._grammars = grammars
    engine.steps._new_masks = partial(engine.steps._new_masks.func, *engine.steps._new_masks.args[:1], grammars)


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder"])
async def test_a_model_that_babbles_writes_the_grammar(tokenizer, parser: str):
    """From the request to the answer, in chats and responses."""
    config, tool = ServerConfig(tool_parser=parser), grammar(syntax="lark", definition=SMALL)
    spelt = [tokenizer.bytes_of(i) for i in range(VOCAB)]
    grammars = Grammars(GrammarConfig(), None, spelt, tokenizer.special_ids, [EOS], VOCAB)
    async with front_of(LocalClient(babble), tokenizer, config) as front:
        use_grammars(front.client.engine, grammars)
        for seed in range(3):
            body = {"messages": [ASK], "tools": [tool], "tool_choice": NAMED, "seed": seed, "temperature": 1.5}
            answer = await front.http.post("/v1/chat/completions", json=body | {"max_tokens": 150})
            [call] = answer.json()["choices"][0]["message"]["tool_calls"]
            assert takes(SMALL, call["custom"]["input"])
        flat = {"type": "custom", "name": "patch"}
        form = {"type": "grammar", "syntax": "lark", "definition": SMALL}
        answer = await post(front, tools=[flat | {"format": form}], tool_choice=flat, max_output_tokens=150)
        [item] = answer.json()["output"]
        assert (item["type"], takes(SMALL, item["input"])) == ("custom_tool_call", True)
    grammars.close()


async def test_a_recursive_grammar_in_a_tagged_format_is_refused(tokenizer):
    async with front_of(LocalClient(babble), tokenizer, ServerConfig(tool_parser="qwen3_coder")) as front:
        body = {"messages": [ASK], "tools": [grammar(syntax="lark", definition=NESTED)], "tool_choice": NAMED}
        answer = await front.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "patch: the Lark grammar can't be enforced: the rule value is recursive" in answer.json()["error"]["message"]


async def test_a_grammar_is_read_once_per_request(tokenizer, monkeypatch: pytest.MonkeyPatch):
    read_before, sources = LarkGrammar.__init__, []

    def count_reading(self: LarkGrammar, source: str) -> None:
        sources.append(source)
        read_before(self, source)

    monkeypatch.setattr(LarkGrammar, "__init__", count_reading)
    form = {"type": "grammar", "syntax": "lark", "definition": SMALL}
    flat = {"type": "custom", "name": "patch"}
    async with front_of(LocalClient(babble), tokenizer, ServerConfig(tool_parser="hermes")) as front:
        chat = {"messages": [ASK], "tools": [grammar(syntax="lark", definition=SMALL)], "tool_choice": NAMED}
        await front.http.post("/v1/chat/completions", json=chat | {"max_tokens": 1})
        assert sources == [SMALL]
        await post(front, tools=[flat | {"format": form}], tool_choice=flat, max_output_tokens=1)
        assert sources == [SMALL, SMALL]
