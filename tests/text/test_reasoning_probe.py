"""A model's thinking format is found by what its template writes, not by what it mentions."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken

from tailrace.text.reasoning import HARMONY_MARKS, REASONING_FORMATS
from tailrace.text.reasoning_probe import find_reasoning
from tailrace.text.tokenizer import Tokenizer
from text.vocabularies import byte_level

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
OPEN = "{% if add_generation_prompt %}<|assistant|>"
END = "{% endif %}"
STRIPS_THOUGHTS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}{% endfor %}"
WRITES_THOUGHTS = (
    "{% for m in messages %}{% if m.reasoning_content %}<seed:think>\n{{ m.reasoning_content }}\n</seed:think>"
    "{% endif %}{{ m.content }}{% endfor %}"
)
SWITCH = OPEN + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}" + END
EFFORT = OPEN + "{% if reasoning_effort == 'high' %}[THINK]{% endif %}" + END
THINK_MARKERS = ["<think>", "</think>"]

CASES = {
    # description: (template, tokens, format)
    "opens the thought, and names one marker only (Olmo 3)": (TURNS + OPEN + "<think>" + END, [], "think"),
    "writes an empty thought if thinking is off (Qwen3)": (TURNS + SWITCH, [], "think"),
    "writes a closing marker if thinking is off (V3.1)": (
        TURNS + OPEN + "</think>" + END,
        [],
        "think",
    ),
    "opens it with a high effort": (TURNS + EFFORT, [], "mistral"),
    "writes an earlier thought": (WRITES_THOUGHTS + OPEN + END, [], "seed"),
    "strips a thought, and the markers are tokens (DeepSeek R1)": (
        STRIPS_THOUGHTS + OPEN + END,
        THINK_MARKERS,
        "think",
    ),
    "opens it with a label (Gemma 4)": (TURNS + OPEN + "<|channel>thought\n<channel|>" + END, [], "gemma4"),
    "further evidence": (TURNS + SWITCH + "{# <response></response> #}", [], "granite_3_3"),
    "messages with channels": (TURNS, list(HARMONY_MARKS), "harmony"),
    # no thinking
    "strips a thought only": (STRIPS_THOUGHTS + OPEN + END, [], None),
    "has the tokens only (Qwen3-Coder)": (TURNS + OPEN + END, THINK_MARKERS, None),
    "explains a tag": ("Do not write <think> or </think>." + TURNS + OPEN + END, [], None),
    "repeats what the user writes": (TURNS + OPEN + END, [], None),
    "has only some of Harmony's markers": (TURNS, list(HARMONY_MARKS[1:4]), None),
    "refuses everything": ("{{ raise_exception('no') }}", [], None),
}


@pytest.mark.parametrize("case", CASES)
def test_found_by_what_is_written(case):
    template, tokens, name = CASES[case]
    backend = byte_level().backend
    backend.add_tokens([AddedToken(token, special=False) for token in tokens])
    found = find_reasoning(Tokenizer(backend, template))
    assert found is (None if name is None else REASONING_FORMATS[name])


def test_a_model_without_a_template_shows_nothing():
    assert find_reasoning(byte_level()) is None
