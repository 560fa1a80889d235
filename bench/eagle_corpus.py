"""What a head is trained on: text that installed packages hold, questions about it, the model's answers, and the states that the model had
on the way. Knows nothing of heads.

Of the same packages, the same seed and the same model come the same samples, bit for bit, on the same machine: a token depends on its
own request alone, and a row of a state does not depend on its neighbours.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from tailrace.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from tailrace.drafting.base import Draft, DraftRequest, TargetStates
from tailrace.engine.engine import Engine
from tailrace.engine.process import build
from tailrace.options import Speculation
from tailrace.params import SamplingParams
from tailrace.text.tokenizer import Tokenizer
from tailrace.wire.messages import Failed, Submit

HELD_OUT = (
    "pydoc_data",
    "textwrap",
    "statistics",
    "test",
    "idlelib",
    "site-packages",
)  # bench/spec.py asks about the first three
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


@dataclass(frozen=True, slots=True)
class Sample:
    """A question with its answer, as far as the model computed it.

    tokens: int64 [n + 1]. states: bf16 [n, C·H], what the asked-for layers put out at tokens[:n]. last: bf16 [n, H], what entered the
    output head there.
    """

    tokens: torch.Tensor
    states: torch.Tensor
    last: torch.Tensor


class Recorder:
    """A drafter that guesses nothing and keeps what it is shown (see drafting.base.Drafter). samples: of the sequences that have left."""

    draws = False

    def __init__(self, layers: tuple[int, ...], num_layers: int) -> None:
        self.captures = (*layers, num_layers)
        self.samples: list[Sample] = []
        self.living: dict[
            int, tuple[list[int], list[torch.Tensor]]
        ] = {}  # slot → its tokens, states of its positions from 0 on

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft([]) for _ in asks]

    def observe(self, seen: TargetStates) -> None:
        for slot, tokens, first, count, row in zip(
            seen.slots, seen.tokens, seen.first, seen.count, seen.row, strict=True
        ):
            known, rows = self.living.setdefault(slot, ([], []))
            assert first == sum(map(len, rows)), "positions come in order, and none comes from a cache"
            known += tokens[len(known) :]
            rows.append(seen.hidden[row : row + count].to(torch.bfloat16, copy=True))

    def remove(self, slot: int) -> None:
        tokens, rows = self.living.pop(slot, ([], []))
        if not rows:
            return
        whole = torch.cat(rows)[: len(tokens) - 1]
        width = whole.shape[1] // len(self.captures)
        states, last = whole[:, :-width].contiguous(), whole[:, -width:].contiguous()
        self.samples.append(Sample(torch.tensor(tokens[: len(whole) + 1]), states, last))


# ---- questions


def questions(tokenizer: Tokenizer, count: int, seed: int) -> list[list[int]]:
    """So many prompts: about prose, code and records, and free ones, in turns.

    Raises:
        ValueError: no package here holds text.
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
    """Made-up JSON."""
    fields = rng.sample(FIELDS, 4)
    rows = [
        {name: rng.choice(WORDS) if rng.random() < 0.6 else rng.randrange(5000) for name in fields} for _ in range(3)
    ]
    return json.dumps(rows, indent=rng.choice((None, 1, 2)))


def passages() -> tuple[list[str], list[str]]:
    """Prose (packages' descriptions, licences, the standard library's docstrings) and functions of the standard library, sorted."""
    prose: set[str] = set()
    for package in metadata.distributions():
        prose.update(pieces(package.metadata["Description"] or str(package.metadata.get_payload() or "")))
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
    """ "" where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def pieces(text: str) -> list[str]:
    """Paragraphs put together up to a passage's length."""
    found: list[str] = []
    piece = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if len(piece) + len(paragraph) > PIECE[1]:
            found.append(piece)
            piece = ""
        piece = f"{piece}\n\n{paragraph}".strip()
    return [piece for piece in [*found, piece] if PIECE[0] <= len(piece) <= PIECE[1]]


def taken_apart(source: str) -> tuple[list[str], list[str]]:
    """Docstrings of a module's text, and its functions' sources."""
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


# ---- answers


def engine_for(folder: Path, dtype: str, threads: int, streams: int) -> Engine:
    """An engine on the CPU that takes no prefix from a cache: every state is computed, and so seen."""
    model = ModelConfig(model=str(folder), dtype=dtype, device="cpu", threads=threads)  # type: ignore[arg-type]
    return build(
        EngineConfig(
            model=model, cache=CacheConfig(prefix_reuse=False), scheduler=SchedulerConfig(max_num_seqs=streams)
        )
    )


def answered(
    engine: Engine, prompts: Sequence[list[int]], tokens: int, seed: int, layers: tuple[int, ...]
) -> list[Sample]:
    """The model's answers of at most so many tokens, every other one greedy, with the states of these layers.

    Raises:
        RuntimeError: a request failed.
    """
    recorder = Recorder(layers, engine.runner.num_layers)  # type: ignore[attr-defined]
    engine.runner.capture(recorder.captures)  # type: ignore[attr-defined]
    engine.speculator.drafter = recorder
    for i, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=0.8 if i % 2 else 0.0,
            top_p=0.95,
            seed=seed + i,
            max_tokens=tokens,
            speculation=Speculation(max_drafts=0),
        )
        engine.submit(Submit(str(i), 0, prompt, params))
    told = time.monotonic()
    while engine.has_work:
        for message in (message for messages in engine.step().values() for message in messages):
            if isinstance(message, Failed):
                raise RuntimeError(f"request {message.id}: {message.message}")
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"answers: {len(recorder.samples)} of {len(prompts)}", file=sys.stderr, flush=True)
    # who ends when depends on clocks
    return sorted(recorder.samples, key=lambda sample: sample.tokens.tolist())
