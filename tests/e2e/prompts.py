"""Real text of many kinds, as prompts: questions, stories, lists, code, JSON, and files of this repository."""

from __future__ import annotations

from pathlib import Path

from tailrace.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
FILES = (
    "README.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "pyproject.toml",
    "Makefile",
    "docs/design.md",
    "docs/path.md",
    "src/tailrace/errors.py",
    "src/tailrace/config/server.py",
    "csrc/sample/draw.h",
)
QUESTIONS = (
    "Repeat this sentence three times: the quick brown fox jumps over the lazy dog.",
    "What is the capital of France, and why is it famous?",
    "Write the numbers from one to twenty, each on a line of its own.",
    "Explain to a child how a rainbow comes about.",
    "Give me a recipe for pancakes, with a list of ingredients.",
    "Translate into French: good morning, how are you today?",
    "Write a Python function that reverses a list, and one that counts its elements.",
    "Summarise in one sentence: the mill had turned for two hundred years; then the river ran dry, and it stood still.",
)
TEXTS = (
    "Once upon a time, in a small village by the sea, there lived a fisherman who could not swim. ",
    'user = {"name": "Ada", "age": 36}\nuser = {"name": "Bo", "age": 41}\nuser = {"name": "Cy",',
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "<ul>\n  <li>one</li>\n  <li>two</li>\n  <li>",
    "To be, or not to be, that is the question:",
)


def prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """So many, of all kinds, 5 to 120 tokens long."""
    asked = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS]
    ids = [tokenizer.encode(text) for pair in zip(asked, TEXTS, strict=False) for text in pair]
    files = [tokenizer.encode((ROOT / name).read_text()[:6000]) for name in FILES]
    for start in range(0, 10_000, 150):
        ids += [part for file in files if len(part := file[start : start + 30 + start // 10]) > 4]
        if len(ids) >= count:
            return ids[:count]
    raise ValueError(f"there are no {count} prompts")
