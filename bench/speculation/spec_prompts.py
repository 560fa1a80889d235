"""Prompts for `python -m bench.spec`: kinds of text that repeat themselves, and one that does not."""

from __future__ import annotations

import inspect
import json
import pydoc_data.topics
import random
import statistics
import textwrap
from collections.abc import Callable
from typing import Any

from tailrace.text.tokenizer import Tokenizer

GREEDY = {"temperature": 0.0, "ignore_eos": False}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "ignore_eos": False}
SUBJECTS = (
    "a lighthouse keeper who finds a letter",
    "why the sea is salty",
    "a city that moves every night",
    "how bread is made",
    "two rival clockmakers",
    "the history of the bicycle",
    "a detective who can't remember faces",
    "what makes a good teacher",
    "a storm over the mountains",
    "how to learn a language",
    "an astronaut's garden",
    "the life of a river",
    "a museum of forgotten things",
    "why people keep diaries",
    "the last train home",
    "how bees find their way",
)


def summaries(rng: random.Random) -> str:
    """A page of prose to quote from."""
    topic = rng.choice([text for text in pydoc_data.topics.topics.values() if 1500 < len(text) < 12000])
    page = topic[: topic.find("\n", 1400)]
    return f"{page}\n\nSummarize the text above in five sentences, quoting its own words."


def code_edits(rng: random.Random) -> str:
    """A function to rewrite with one change."""
    functions = [f for _, f in inspect.getmembers(textwrap, inspect.isfunction)]
    functions += [f for _, f in inspect.getmembers(statistics, inspect.isfunction)]
    sources = [inspect.getsource(f) for f in functions]
    source = rng.choice([source for source in sources if 500 < len(source) < 1800])
    task = "Repeat this code, with every argument's name in capital letters. Answer with the code alone."
    return f"```python\n{source}```\n\n{task}"


def records(rng: random.Random) -> str:
    """Records to rewrite with one more field."""
    names = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Leslie", "Tony", "Frances", "Niklaus"]
    rows = [
        {
            "id": rng.randrange(1000, 9999),
            "name": rng.choice(names),
            "city": rng.choice(["Zürich", "Oslo", "Turin"]),
            "balance": rng.randrange(10_000) / 100,
            "active": rng.random() < 0.5,
        }
        for _ in range(8)
    ]
    task = 'Repeat this JSON with "currency": "EUR" added to every record.'
    return f"{json.dumps(rows, indent=1, ensure_ascii=False)}\n\n{task}"


def free(rng: random.Random) -> str:
    """A subject to write about."""
    return f"Write about {rng.choice(SUBJECTS)}. Take number {rng.randrange(1000)} into account."


KINDS: dict[str, tuple[Callable[[random.Random], str], dict[str, Any]]] = {
    "summary": (summaries, GREEDY),
    "code edit": (code_edits, GREEDY),
    "JSON": (records, GREEDY),
    "free": (free, SAMPLED),
}


def prompts(tokenizer: Tokenizer, kind: str, count: int, seed: str) -> list[list[int]]:
    """`count` prompts of a kind, the same for the same seed. A server that remembers texts must not get the same prompt
    twice."""
    rng = random.Random(f"{kind} {seed}")
    ask = KINDS[kind][0]
    return [tokenizer.encode_chat([{"role": "user", "content": ask(rng)}]) for _ in range(count)]
