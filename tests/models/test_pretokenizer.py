"""A vocabulary's text is split as its pre-tokenizer's name says."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from tailrace.models.pretokenizer import missing_split


def tokens_of(text: str, pre: str | None) -> list[str]:
    """`text` with a vocabulary that merges spaces and digits wherever its split lets it."""
    merges = [("Ġ", "Ġ"), ("ĠĠ", "Ġ"), ("1", "2"), ("12", "3"), ("123", "4"), ("Ċ", "Ċ"), ("ĊĊ", "Ġ")]
    words = [*sorted(ByteLevel.alphabet()), *(a + b for a, b in merges)]
    tokenizer = Tokenizer(BPE({word: number for number, word in enumerate(words)}, merges))
    split = missing_split(pre)
    assert pre is None or split is not None
    tokenizer.pre_tokenizer = split or ByteLevel(add_prefix_space=False)
    return tokenizer.encode(text).tokens


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("smollm", "1234", ["1", "2", "3", "4"]),
        ("smollm", "  1", ["ĠĠ", "1"]),
        ("smollm", "\n\n 1", ["ĊĊĠ", "1"]),
        ("stablelm2", "1234", ["1", "2", "3", "4"]),
        ("glm4", "1234", ["123", "4"]),
        ("deepseek-coder", "1234", ["1", "2", "3", "4"]),
        ("deepseek-coder", "\n\n", ["Ċ", "Ċ"]),
        ("deepseek-llm", "1234", ["1", "2", "3", "4"]),
        ("deepseek-v3", "1234", ["123", "4"]),
        ("deepseek-v3", "\n\n 1", ["ĊĊ", "Ġ", "1"]),
        ("hunyuan-dense", "  12", ["ĠĠ", "12"]),
        ("glm5", "1234", ["123", "4"]),
        ("kimi-k2", "1234", ["123", "4"]),
        ("kimi-k2", "\n\n 1", ["ĊĊ", "Ġ", "1"]),
        ("solar-open", "1234", ["1", "2", "3", "4"]),
        ("seed-coder", "1234", ["1", "2", "3", "4"]),
        ("minicpm5", "1234", ["123", "4"]),
        ("tiny_aya", "1234", ["1", "2", "3", "4"]),
        ("youtu", "1234", ["1", "2", "3", "4"]),
        ("viking", "1234", ["1", "2", "3", "4"]),
        ("grok-2", "1234", ["1", "2", "3", "4"]),
        ("jais-2", "1234", ["123", "4"]),
        ("jais-2", "\n\n 1", ["ĊĊ", "Ġ", "1"]),
        ("bailingmoe2", "1234", ["1", "2", "3", "4"]),
        ("exaone-moe", "1234", ["1", "2", "3", "4"]),
        (None, "1234", ["1234"]),  # the negative control: GPT-2's split gets all of these wrong
        (None, "  1", ["Ġ", "Ġ", "1"]),
        (None, "\n\n 1", ["ĊĊ", "Ġ", "1"]),
    ],
)
def test_splits(pre: str | None, text: str, tokens: list[str]):
    assert tokens_of(text, pre) == tokens


def test_names_that_transformers_learns_leave_our_table():
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    from tailrace.models.pretokenizer import MISSING

    assert not MISSING.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()
