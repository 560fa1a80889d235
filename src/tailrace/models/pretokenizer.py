"""How a GGUF file's vocabulary splits text before its merges apply: `tokenizer.ggml.pre` → a pre-tokenizer.

transformers knows some of these names and gives every other file GPT-2's split, which changes the encoding of "  12".
The table has the names that transformers lacks; the splits are those of the models' own tokenizer.json files. Knows
nothing of files.
"""

from __future__ import annotations

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

CASELESS_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
CASELESS_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def single_digits() -> PreTokenizer:
    """Every digit alone, then GPT-2's split: SmolLM, StarCoder and others."""
    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])


def caseless(digits: str) -> PreTokenizer:
    """The split of cl100k and its descendants, which differ in how many digits stay together."""
    split = Split(Regex(f"{CASELESS_WORDS}|{digits}{CASELESS_REST}"), behavior="isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


def deepseek_coder() -> PreTokenizer:
    """In turn: lines, words, punctuation, Chinese and Korean runs, single digits."""
    patterns = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")
    splits = [Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return Sequence([*splits, Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=False)])


MISSING = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), single_digits),
    **dict.fromkeys(("stablelm2", "hunyuan"), lambda: caseless(r"\p{N}")),
    **dict.fromkeys(("glm4", "chatglm-bpe"), lambda: caseless(r"\p{N}{1,3}")),
    "deepseek-coder": deepseek_coder,
}

# Names for which GPT-2's split is right.
GPT2 = frozenset(
    {
        "gpt-2",
        "gpt2",
        "phi-2",
        "mpt",
        "olmo",
        "jais",
        "trillion",
        "granite-docling",
        "jina-es",
        "jina-de",
        "jina-v1-en",
        "jina-v2-es",
        "jina-v2-de",
        "roberta-bpe",
    }
)


def missing_split(name: str | None) -> PreTokenizer | None:
    """The pre-tokenizer for a name that transformers lacks; None if transformers has it or GPT-2's is right."""
    maker = MISSING.get(name or "")
    return maker() if maker else None
