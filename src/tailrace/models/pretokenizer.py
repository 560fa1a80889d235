"""How a GGUF file's vocabulary splits text before its merges apply: `tokenizer.ggml.pre` → a pre-tokenizer, and what
else the name says.

transformers knows some of these names and gives every other file GPT-2's split, which changes the encoding of "  12".
The table has the names that transformers lacks; the splits are those of the models' own tokenizer.json files. Knows
nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SPACES_AND_LINES = r"\s*[\r\n]|\s+(?!\S)|\s+"
POWERS_OF_SPACES = r"\s*[\r\n]+|" + "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"
DIGITS, TRIPLES = r"\p{N}", r"\p{N}{1,3}"
PHRASES = r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
LING = (
    rf"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|{SPACES_AND_LINES}"
)
LATIN_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
CHINESE_AND_JAPANESE = "[一-龥぀-ゟ゠-ヿ]+"
ASIAN_RUNS = rf"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{CHINESE_AND_JAPANESE}"
SIGNS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
UNPUNCTUATED = r" ?[^(\s|.,!?…。，、।۔،)]+"
NOT_HAN = r"&&[^\p{Han}]"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def split_by(*patterns: str) -> PreTokenizer:
    """Return splits by patterns, one after the other."""
    splits = [Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


def split_words(digits: str, signs: str = SIGNS) -> PreTokenizer:
    """Return the split of cl100k and its descendants, which differ in how many digits stay together, and in signs."""
    return split_by(f"{ENDINGS}|{WORDS}|{digits}|{signs}|{SPACES}")


def split_cases(unless: str = "") -> str:
    """Return the pattern of o200k and its descendants: words whose capitals come first. unless: letters of no such
    word."""
    start = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = f"[{UPPER}{unless}]", f"[{LOWER}{unless}]"
    return f"{start}{upper}*{lower}+{ENDINGS}?|{start}{upper}+{lower}*{ENDINGS}?"


def single_digits() -> PreTokenizer:
    """Return every digit alone, then GPT-2's split: SmolLM, StarCoder and others."""
    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])


def split_scripts(words: str, signs: str, *others: str) -> PreTokenizer:
    """Return DeepSeek's first splits, in turn: lines, words, signs, Chinese and Korean runs, single digits."""
    patterns = (r"[\r\n]", words, signs, *others, "[一-龥ࠀ-一가-퟿]+")
    splits = [Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return Sequence([*splits, Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=False)])


def split_deepseek_v3() -> PreTokenizer:
    """Return in turn: digits by threes, Chinese and Japanese runs, then words with a sign before."""
    words = rf"{LATIN_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    return split_by(TRIPLES, CHINESE_AND_JAPANESE, rf"{words}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}")


# names → makers of pre-tokenizers
MISSING: dict[str, Callable[[], PreTokenizer]] = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), single_digits),
    "mellum2": single_digits,
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), lambda: split_words(DIGITS)),
    **dict.fromkeys(("glm4", "glm5", "chatglm-bpe"), lambda: split_words(TRIPLES)),
    "seed-coder": lambda: split_words(DIGITS, signs=r" ?[^\s\p{L}\p{N}\r\n]+"),
    "minicpm5": lambda: split_by(TRIPLES, f"{ENDINGS}|{WORDS}|\\p{{N}}+|{SIGNS}|{SPACES}"),
    "jais-2": lambda: split_by(f"{ENDINGS}|{WORDS}|{TRIPLES}|{SIGNS}|{POWERS_OF_SPACES}"),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), lambda: split_by(LING)),
    "exaone-moe": lambda: split_by(
        f"{ENDINGS}|{PHRASES}|{DIGITS}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n/]?|{SPACES_AND_LINES}"
    ),
    "ufakzeka": lambda: split_by(f"{WORDS}|{DIGITS}|{SIGNS}|{SPACES}"),
    "deepseek-coder": lambda: split_scripts(r"\s?\p{L}+", r"\s?\p{P}+"),
    "deepseek-llm": lambda: split_scripts(r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$"),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), split_deepseek_v3),
    "kimi-k2": lambda: split_by(rf"\p{{Han}}+|{split_cases(NOT_HAN)}|{TRIPLES}|{SIGNS}|{SPACES}"),
    **dict.fromkeys(
        ("tiny_aya", "cohere2moe"),
        lambda: split_by(r"\d{1,3}(?=(?:\d{3})*\b)", f"{split_cases()}|{TRIPLES}|{SIGNS_AND_SLASHES}|{SPACES}"),
    ),
    "youtu": lambda: split_by(ASIAN_RUNS, f"{split_cases()}|{DIGITS}|{SIGNS_AND_SLASHES}|{SPACES}"),
    "poro-chat": lambda: split_by(UNPUNCTUATED),
    "viking": lambda: split_by(UNPUNCTUATED, DIGITS),
}
# names whose split is GPT-2's
GPT2 = frozenset(
    {
        *("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "jina-es", "jina-de"),
        *("jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe", "modern-bert"),
        *("exaone4", "a.x-4.0", "gigachat", "mellum"),
    }
)
LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano")
# names whose texts begin with the token for that, where the file does not say whether they do
BEGINNING = frozenset({*LLAMA3, "tekken", "chameleon"})
# names whose words are tokens if the vocabulary has them, whatever the merges make of them
WHOLE_WORDS = frozenset({*LLAMA3, "tekken", "minicpm5", "youtu", "glm4", "glm5"})


def missing_split(name: str | None) -> PreTokenizer | None:
    """Return the pre-tokenizer for a name that transformers lacks; None if transformers has it or GPT-2's is right."""
    maker = MISSING.get(name or "")
    return maker() if maker else None
