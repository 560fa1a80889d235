"""Questions about text that installed packages hold: prose, code, made-up records, and free subjects."""

from __future__ import annotations

import ast
import json
import random
import re
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from tailrace.text.tokenizer import Tokenizer

# parts of the standard library that are left out: `python -m bench.spec` asks about the first three
HELD_OUT = ("pydoc_data", "textwrap", "statistics", "test", "idlelib", "site-packages")
PROMPT_TOKENS = 320  # longer questions are left out
PIECE = (250, 900)  # characters of a passage
PROSE = (
    "{}\n\nSummarize the text above.",
    "{}\n\nSummarize this in three sentences, quoting its own words.",
    "{}\n\nExplain the text above in simple words.",
    "What does this text say?\n\n{}",
    "{}\n\nList the main points.",
    "{}\n\nRewrite the text above in your own words.",
    "{}\n\nRepeat this text.",
    "{}\n\nWhat questions does this answer?",
    "Continue this text:\n\n{}",
    "{}\n\nFor whom is this written?",
)
CODE = (
    "```python\n{}```\n\nExplain what this code does.",
    "```python\n{}```\n\nWrite a docstring for this function.",
    "```python\n{}```\n\nRepeat this code.",
    "```python\n{}```\n\nRepeat this code with type hints. Answer with the code alone.",
    "```python\n{}```\n\nRename the variables to be clearer.",
    "```python\n{}```\n\nAdd a comment to every line.",
    "```python\n{}```\n\nWrite tests for this function.",
)
RECORDS = (
    "{}\n\nRepeat this JSON with the field {} left out.",
    "{}\n\nRepeat this JSON sorted by {}.",
    "{}\n\nTurn this JSON into a table. Begin with {}.",
    "{}\n\nWhat is {} of each of these?",
    "{}\n\nWrite these as sentences about {}.",
)
FREE = (
    "Write about {}.",
    "Write a short story about {}.",
    "Explain {} to a child.",
    "What should everybody know about {}?",
    "Give me advice on {}.",
    "Write a letter about {}.",
    "List ten facts about {}.",
    "Write an essay on {}.",
    "Describe {}.",
    "Write a dialogue about {}.",
)
SUBJECTS = (
    "the moon",
    "friendship",
    "a lost key",
    "old maps",
    "the invention of paper",
    "rain in the desert",
    "chess",
    "the violin",
    "winter",
    "volcanoes",
    "a village by the sea",
    "why birds sing",
    "the first day at school",
    "healthy food",
    "a dragon who is afraid of fire",
    "trains",
    "money",
    "sleep",
    "how computers work",
    "gardening",
    "the Roman Empire",
    "black holes",
    "a robot who paints",
    "climate",
    "public libraries",
    "coffee",
    "dreams",
    "a journey through the mountains",
    "photography",
    "how plants grow",
    "elections",
    "the ocean floor",
    "a haunted house",
    "music and memory",
    "being on time",
    "the history of mathematics",
    "cats",
    "a king without a crown",
    "bridges",
    "learning to swim",
    "vaccines",
    "an old clock",
    "job interviews",
    "the northern lights",
    "a wolf and a shepherd",
    "recycling",
    "space travel",
    "time",
    "how to cook rice",
    "famous painters",
)
FIELDS = ("id", "title", "price", "color", "city", "stock", "weight", "author")
WORDS = (
    "red",
    "blue",
    "green",
    "amber",
    "Lisbon",
    "Kyoto",
    "Lagos",
    "Quito",
    "lamp",
    "chair",
    "kettle",
    "Mira Holt",
    "Jo Banks",
    "Ana Ruiz",
)


def questions(tokenizer: Tokenizer, count: int, seed: int) -> list[list[int]]:
    """`count` prompts about prose, code, records and free subjects, in turns.

    Raises:
        ValueError: no installed package holds text.
    """
    rng = random.Random(seed)
    prose, code = passages()
    if not prose or not code:
        raise ValueError("no installed package holds text")
    rng.shuffle(prose)
    rng.shuffle(code)
    prompts: list[list[int]] = []
    for turn in range(sys.maxsize):
        kind = turn % 4
        if kind == 0:
            text = rng.choice(PROSE).format(prose[turn // 4 % len(prose)])
        elif kind == 1:
            text = rng.choice(CODE).format(code[turn // 4 % len(code)])
        elif kind == 2:
            text = rng.choice(RECORDS).format(records(rng), rng.choice(FIELDS))
        else:
            text = rng.choice(FREE).format(rng.choice(SUBJECTS))
        ids = tokenizer.encode_chat([{"role": "user", "content": text}])
        prompts += [ids] if len(ids) <= PROMPT_TOKENS else []
        if len(prompts) == count:
            break
    return prompts


def records(rng: random.Random) -> str:
    """Made-up JSON records."""
    fields = rng.sample(FIELDS, 4)
    rows = [
        {name: rng.choice(WORDS) if rng.random() < 0.6 else rng.randrange(5000) for name in fields} for _ in range(3)
    ]
    return json.dumps(rows, indent=rng.choice((None, 1, 2)))


def passages() -> tuple[list[str], list[str]]:
    """Prose (descriptions and licences of packages, docstrings of the standard library) and functions of the standard
    library, sorted."""
    prose: set[str] = set()
    for package in metadata.distributions():
        prose.update(
            pieces(package.metadata["Description"] or (package.read_text("METADATA") or "").partition("\n\n")[2])
        )
        for file in package.files or ():
            if re.match(r"(LICEN|COPYING|README|AUTHORS|NOTICE)", file.name, re.IGNORECASE):
                prose.update(pieces(text_of(Path(str(file.locate())))))
    code: set[str] = set()
    library = Path(sysconfig.get_path("stdlib"))
    for path in library.rglob("*.py"):
        if not any(path.relative_to(library).as_posix().startswith(name) for name in HELD_OUT):
            docstrings, functions = taken_apart(text_of(path))
            prose.update(docstrings)
            code.update(functions)
    return sorted(prose), sorted(code)


def text_of(path: Path) -> str:
    """The file's text; "" if it can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def pieces(text: str) -> list[str]:
    """Paragraphs joined up to a passage's length."""
    found: list[str] = []
    piece = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if len(piece) + len(paragraph) > PIECE[1]:
            found.append(piece)
            piece = ""
        piece = f"{piece}\n\n{paragraph}".strip()
    return [piece for piece in [*found, piece] if PIECE[0] <= len(piece) <= PIECE[1]]


def taken_apart(source: str) -> tuple[list[str], list[str]]:
    """The docstrings and the functions' sources of a module."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return [], []
    lines = source.splitlines(keepends=True)
    docstrings: list[str] = []
    functions: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            docstrings += pieces(ast.get_docstring(node) or "")
        if isinstance(node, ast.FunctionDef):
            code = "".join(lines[node.lineno - 1 : node.end_lineno])
            functions += [code] if PIECE[0] <= len(code) <= PIECE[1] else []
    return docstrings, functions
