"""Grammars of a free choice, as with tool_choice "auto" and strict tools: whatever a model writes in its own way fits,
and a call that does not fit is refused at once."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import llguidance
import pytest
import torch

from api.harness import EOS as END
from api.harness import MARK, START, LocalClient, events, front_of, make_tokenizer
from api.test_call_laws import HOW, read_both, without_frame
from api.test_forced_tools import MARKS, Vocabulary, script_of, tool, vocabulary
from tailrace.config import GrammarConfig, ServerConfig
from tailrace.engine.token_bytes import TokenBytes
from tailrace.grammar.llguidance_sources import rewrite_lark
from tailrace.grammar.service import Grammars
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tool_parsers import TOOL_FORMATS
from tailrace.text.tool_parsers.grammar import optional_grammar
from tool_examples import written

FORMS = list(TOOL_FORMATS)
FRAMED = [form for form in FORMS if TOOL_FORMATS[form].frame]
WAYS = [(form, how) for form in FORMS for how in HOW if MARKS[form] or how == "text"]
SAID = ("", "Hello.", "Wait: {x} [y] <b>\n", "It goes to the user, é", "I call paint", "user")
WALL = {
    "type": "object",
    "properties": {
        "where": {"type": "string"},
        "coats": {"type": "integer"},
        "rooms": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["coats"],
    "additionalProperties": False,
}
ASKED = [tool("paint", WALL), tool("user_2", WALL), tool("use", {"type": "object", "properties": {}})]


def random_calls(rng: random.Random, form: str) -> list[tuple[str, dict[str, Any]]]:
    most = 1 if form == "granite_20b" else 3  # between two calls, it writes more than one kind of white space
    values = {
        "where": rng.choice(["the wall", "é", "5", "a b"]),
        "coats": rng.randint(-9, 99),
        "rooms": [1] * rng.randint(0, 2),
    }
    painted = {key: value for key, value in values.items() if key == "coats" or rng.random() < 0.7}
    choices = [("paint", painted), ("user_2", painted), ("use", {})]
    return [rng.choice(choices) for _ in range(rng.randint(1, most))]


def answer_of(rng: random.Random, form: str, how: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """An answer as such a model writes it: with calls, or with a text alone."""
    said, call = rng.choice(SAID), written(form, calls) if calls else ""
    if form not in FRAMED or how == "text":
        return call if calls and TOOL_FORMATS[form].bare else said + call
    thoughts = [rng.choice(SAID) for _ in range(rng.randint(0, 2))]
    if form == "kimi_k3":
        text = f"<|open|>response<|sep|>{said}<|close|>response<|sep|>"
        return f"{text}{call}<|close|>message<|sep|>"
    if form == "muse":
        parts = [f" to=self<|message|>{thought}<|eom|>" for thought in thoughts]
        parts += [f" to={'commentary' if calls else 'user'}<|message|>{said}<|eom|>"] if said or not calls else []
        return "<|start|>assistant".join([*parts, *([call + "<|eot|>"] if calls else [])])
    parts = [f"<|content_thinking|>{thought}<|end_message|>" for thought in thoughts]
    parts += [f"<|content_text|>{said}<|end_message|>"] if said or not calls else []
    name = rng.choice(("", calls[0][0])) if calls and parts else ""
    return "<|message_model|>".join([*parts, *([name + call] if calls else [])]) + "<|content_model_end_sampling|>"


def accepted(words: Vocabulary, source: str, text: str) -> str:
    """The longest beginning of the text that the grammar accepts."""
    ids = words.tokenizer.encode(text, add_special_tokens=False)
    matcher = llguidance.LLMatcher(words.ll, rewrite_lark(source))
    taken = matcher.try_consume_tokens(ids)
    assert not matcher.is_error(), matcher.get_error()
    return b"".join(words.spelt[id] for id in ids[:taken]).decode(errors="ignore")


@pytest.mark.few(7)
@pytest.mark.parametrize(("form", "how"), WAYS)
def test_an_answer_as_a_model_writes_it_fits_and_is_read_back(form, how):
    words = vocabulary(form, how)
    source = optional_grammar(TOOL_FORMATS[form], script_of(form, how, ASKED))
    for seed in range(40):
        rng = random.Random(f"{form} {how} {seed}")
        calls = random_calls(rng, form) if seed % 4 else []
        text = answer_of(rng, form, how, calls)
        assert words.accepts(source, text), text
        found, besides = read_both(rng, form, text, ASKED)
        assert found == calls, text
        if not calls:
            assert besides == without_frame(form, text)


@pytest.mark.parametrize("how", ["token", "special"])
@pytest.mark.parametrize("form", FRAMED)
def test_no_text_spells_a_marker_of_calls(form, how):
    """The parser would take the text behind the marker for a call, whatever spells the marker."""
    words, table = vocabulary(form, how), TOOL_FORMATS[form]
    source = optional_grammar(table, script_of(form, how, ASKED))
    assert table.frame is not None
    for marker in ("", *table.frame.texts):
        for opening, _ in table.markers:
            if opening == " to=":
                continue  # a text, unless the token behind the name follows
            begun = words.tokenizer.encode(marker, add_special_tokens=False)
            matcher = llguidance.LLMatcher(words.ll, rewrite_lark(source))
            assert matcher.try_consume_tokens([*begun, *b"Hi"]) == len(begun) + 2
            assert matcher.try_consume_tokens(list(opening.encode())) < len(opening), (marker, opening)


@pytest.mark.parametrize("how", ["token", "special"])
@pytest.mark.parametrize("form", FRAMED)
def test_json_instead_of_calls_stands_in_a_text_for_the_user(form, how):
    words, frame = vocabulary(form, how), TOOL_FORMATS[form].frame
    assert frame is not None
    source = optional_grammar(TOOL_FORMATS[form], script_of(form, how, ASKED), {"type": "integer"})
    call = written(form, [("paint", {"coats": 2})])
    for text in ("5", f"{frame.texts[0]}5", f"{frame.texts[0]}5{frame.end}{frame.last[-1]}", call):
        assert words.accepts(source, text), text
    for text in (f"{frame.texts[0]}five", f"{frame.texts[0]}5{frame.texts[0]}", call.replace("paint", "drive")):
        assert not words.accepts(source, text), text


@pytest.mark.few(7)
@pytest.mark.parametrize(("form", "how"), WAYS)
def test_a_call_that_does_not_fit_is_refused_at_its_first_wrong_token(form, how):
    words = vocabulary(form, how)
    source = optional_grammar(TOOL_FORMATS[form], script_of(form, how, ASKED))
    for seed in range(20):
        rng = random.Random(f"{form} {how} {seed}")
        calls = random_calls(rng, form)
        state = rng.getstate()
        right = answer_of(rng, form, how, calls)
        name, arguments = calls[-1]
        wrong_calls = [(name.upper(), arguments)]
        if "coats" in arguments:
            wrong_calls.append((name, arguments | {"coats": "x"}))
        for wrong_call in wrong_calls:
            rng.setstate(state)
            wrong = answer_of(rng, form, how, [*calls[:-1], wrong_call])
            if len(calls) == 1 and wrong_call[0] != name and form == "inkling":
                wrong = re.sub(rf">{wrong_call[0]}<", f">{name}<", wrong)  # the header's name is refused before
            common = next(i for i in range(len(wrong)) if wrong[: i + 1] != right[: i + 1])
            # "[USE" may be a text. "[USE(" is a call.
            until = wrong.index("(") if form == "pythonic" and wrong[common - 1] == "[" else common
            assert accepted(words, source, wrong) == wrong[:until], wrong


STRICT = [tool(one["function"]["name"], one["function"]["parameters"], strict=True) for one in ASKED]
CALL = ("paint", {"where": "the wall", "coats": 2})
ANSWERS = {
    "kimi_k3": "<|open|>think<|sep|>Hm<|close|>think<|sep|><|open|>response<|sep|>So.<|close|>response<|sep|>CALL"
    "<|close|>message<|sep|>",
    "muse": " to=self<|message|>H<|eom|><|start|>assistant to=self<|message|>m<|eom|><|start|>assistant"
    " to=commentary<|message|>So.<|eom|><|start|>assistantCALL<|eot|>",
    "inkling": "<|content_thinking|>Hm<|end_message|><|message_model|><|content_text|>So.<|end_message|>"
    "<|message_model|>paintCALL<|content_model_end_sampling|>",
}


def planned(ids: list[int], size: int) -> Any:
    """A script that writes these tokens behind the prompt, where the grammar allows them."""

    def script(seen: list[int]) -> torch.Tensor:
        said = len(seen) - (len(seen) - seen[::-1].index(START) + len(MARK))
        logits = torch.zeros(size)
        logits[ids[said] if said < len(ids) else END] = 50.0
        return logits

    return script


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FRAMED)
async def test_a_model_with_these_markers_writes_its_whole_answer(form, stream, tmp_path):
    """Special tokens, thoughts before and between, strict tools and a free choice, as openai-agents asks."""
    tokenizer = make_tokenizer(tmp_path)
    tokenizer.backend.add_special_tokens(MARKS[form])
    tokenizer = Tokenizer(tokenizer.backend, tokenizer.template_source)
    size = tokenizer.vocab_size
    text = ANSWERS[form].replace("CALL", written(form, [CALL]))
    client = LocalClient(planned(tokenizer.encode(text, add_special_tokens=False), size))
    client.context, client.vocab_size, client.token_bytes = 2000, size, TokenBytes.of(tokenizer, size)
    spelt = [tokenizer.bytes_of(id) for id in range(size)]
    client.grammars = Grammars(GrammarConfig(), None, spelt, tokenizer.special_ids, [END], size)
    config = ServerConfig(tool_parser=form, reasoning_parser=form)  # pyright: ignore[reportArgumentType]
    async with front_of(client, tokenizer, config) as front:
        answer = await front.chat(tools=STRICT, temperature=0, max_tokens=400, stream=stream)
        assert answer.status_code == 200, answer.text
        if stream:
            parts = [event["choices"][0]["delta"] for event in events(answer.text)[:-1]]
            calls = [call for part in parts for call in part.get("tool_calls") or ()]
            message = {key: "".join(part.get(key) or "" for part in parts) for key in ("content", "reasoning_content")}
            names = [call["function"]["name"] for call in calls if call["function"].get("name")]
            arguments = "".join(call["function"].get("arguments") or "" for call in calls)
        else:
            message = answer.json()["choices"][0]["message"]
            [call] = message["tool_calls"]
            names, arguments = [call["function"]["name"]], call["function"]["arguments"]
    assert (message["content"].strip(), message["reasoning_content"]) == ("So.", "Hm")
    assert (names, json.loads(arguments)) == ([CALL[0]], CALL[1])
    client.grammars.close()
