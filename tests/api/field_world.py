"""The world of test_field_table.py: a model with a plan, behind a front end, over a vocabulary of bytes and markers.

A scene is what surrounds a field: nothing, a grammar, a forced call, a thought, or a thought before a grammar. In every
scene the model wants to write the same letters. So what a field does to the letters can be compared.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch

from api.harness import EOS, START, Front, LocalClient, byte_names, front_of
from engine.harness import Fickle
from tailrace.config import GrammarConfig, ServerConfig
from tailrace.drafting.base import DraftRequest
from tailrace.engine.token_bytes import TokenBytes
from tailrace.grammar.service import Grammars
from tailrace.text.tokenizer import Tokenizer

END = 258  # a special token that is no EOS of the model
# the vocabulary of each kind: markers of one token each; or markers in pieces, and tokens that hold a piece and more
PIECES = {
    "one token": ("<think>", "</think>", "<tool_call>", "</tool_call>"),
    "several tokens": ("</", "think", ">\n\n", '>{"', ">a"),
}
VOCAB = EOS + 2 + max(map(len, PIECES.values()))
LETTERS = "abcdefgh"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}tools: {{ tools | length }}\n{% endif %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string", "pattern": "^[a-h]{4,8}$"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
CALL = ('<tool_call>\n{"name": "f", "arguments": {"a": "', '"}}\n</tool_call>')


def make_tokenizer(folder: Path, kind: str) -> Tokenizer:
    """Every byte is a token; so are three special ones and the pieces of the kind."""
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={name: i for i, name in enumerate(byte_names())}, merges=[])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|end|>"])
    backend.add_tokens([tokenizers.AddedToken(piece, special=False, normalized=False) for piece in PIECES[kind]])
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.load(folder)


class Scene(NamedTuple):
    """What surrounds a field. body: of the request. before, after: text around the letters. thinks: a thought comes
    first. ruled: a grammar rules the letters: four to eight of them."""

    body: dict[str, Any]
    before: str = ""
    after: str = ""
    thinks: bool = False
    ruled: bool = False


GRAMMAR = {"regex": "[a-h]{4,8}"}
CALLED = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}
UNTHINKING = {"chat_template_kwargs": {"enable_thinking": False}}
SCENES = {
    "plain": Scene(UNTHINKING),
    "grammar": Scene(UNTHINKING | GRAMMAR, ruled=True),
    "tools": Scene(UNTHINKING | CALLED, *CALL, ruled=True),
    "thought": Scene({}, thinks=True),
    "thought, grammar": Scene(GRAMMAR, thinks=True, ruled=True),
    "thought, tools": Scene(CALLED, *CALL, thinks=True, ruled=True),
}


class Plan:
    """What the model wants to write: token ids, in order. Behind them it wants EOS. Where a token may not come, it
    wants a token that the token's text begins with; then a letter, another one at each place.

    peak: the logit of a letter that it wants; others have up to 4.5. skipped: tokens of the prompt behind the last
    turn's head. Behind a prompt without a turn, or with "NEGATIVE" in it, the model wants "d" alone.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.ids: list[int] = []
        self.peak = 9.0
        self.skipped = 0
        self._spelt = [tokenizer.bytes_of(token) for token in range(VOCAB)]

    def __call__(self, ids: list[int]) -> torch.Tensor:
        row = torch.linspace(-9.0, -9.5, VOCAB)
        if START not in ids or b"NEGATIVE" in bytes(token for token in ids if token < START):
            row[ord("d")] = 40.0
            return row
        said = len(ids) - (len(ids) - ids[::-1].index(START) + len(b"assistant\n") + self.skipped)
        for place, letter in enumerate(LETTERS):
            row[ord(letter)] = 1.0 + 0.5 * ((place + said) % len(LETTERS))
        wanted = self.ids[said] if 0 <= said < len(self.ids) else EOS
        for token, text in enumerate(self._spelt):
            if text and wanted not in (START, EOS, END) and self._spelt[wanted].startswith(text):
                row[token] = 7.0
        row[wanted] = self.peak if wanted < START and chr(wanted) in LETTERS else 20.0
        return row


@dataclass
class Answer:
    """One choice of an answer."""

    status: int
    ids: list[int] = field(default_factory=list)
    thought: str = ""
    content: str = ""
    call: str | None = None
    finish: str | None = None
    stop: Any = None
    error: str = ""
    choice: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)

    @property
    def letters(self) -> str:
        """What the model wrote of the letters: the content, or the argument of the call, as far as it got."""
        if self.call is None:
            return self.content
        found = re.search(r'"a"\s*:\s*"([a-h]*)', self.call)
        return found[1] if found else ""


class World:
    """A front end over a model with a plan."""

    def __init__(self, front: Front, plan: Plan, tokenizer: Tokenizer) -> None:
        self.front, self.plan, self.tokenizer = front, plan, tokenizer

    def ids(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def wish(self, scene: str, letters: str | Sequence[int] = LETTERS, thought: str | Sequence[int] = "hm") -> None:
        """Let the model want these letters, and where it thinks this thought before them; a list is a whole thought
        with its marker, as token ids."""
        where = SCENES[scene]
        text = self.ids(letters) if isinstance(letters, str) else list(letters)
        head = self.ids(f"{thought}</think>") if isinstance(thought, str) else list(thought)
        self.plan.ids = [*(head if where.thinks else ()), *self.ids(where.before), *text, *self.ids(where.after)]
        self.plan.skipped = 0 if where.thinks else len(self.ids("<think></think>"))

    async def ask(
        self,
        scene: str,
        letters: str | Sequence[int] = LETTERS,
        thought: str | Sequence[int] = "hm",
        **fields: Any,
    ) -> list[Answer]:
        """The choices of a chat, or its error. letters, thought: see `wish`."""
        self.wish(scene, letters, thought)
        body = {"max_tokens": 120, "return_token_ids": True, "content": "ab"} | SCENES[scene].body | fields
        answer = await self.front.chat(**body)
        if answer.status_code != 200:
            return [Answer(answer.status_code, error=answer.json()["error"]["message"])]
        whole = answer.json()
        return [read(choice, whole) for choice in whole["choices"]]


def read(choice: dict[str, Any], whole: dict[str, Any]) -> Answer:
    """One choice of a whole chat."""
    message = choice["message"]
    calls = message.get("tool_calls") or []
    return Answer(
        200,
        choice.get("token_ids") or [],
        message.get("reasoning_content") or "",
        message.get("content") or "",
        calls[0]["function"]["arguments"] if calls else None,
        choice["finish_reason"],
        choice.get("stop_reason"),
        choice=choice,
        whole=whole,
    )


class Knowing(Fickle):
    """A drafter that knows what the model wants, and is wrong now and then."""

    def __init__(self, plan: Plan) -> None:
        super().__init__([], 0.8)
        self.plan = plan

    def guess(self, ask: DraftRequest) -> list[int]:
        said = len(ask.tokens) - (len(ask.tokens) - ask.tokens[::-1].index(START) + 10 + self.plan.skipped)
        wanted = [*self.plan.ids, EOS][said : said + ask.count]
        return [token if self.rng.random() < 0.8 else self.rng.randrange(VOCAB) for token in wanted]


@contextlib.asynccontextmanager
async def world_of(
    tokenizer: Tokenizer, grammars: Grammars, drafts: bool = False, parser: str = "deepseek_r1"
) -> AsyncIterator[World]:
    """A world, from its start to its end.

    Args:
        drafts: tokens are drafted, of which most are what the model wants. parser: the format of thoughts.
    """
    plan = Plan(tokenizer)
    client = LocalClient(plan)
    client.vocab_size, client.grammars, client.token_bytes = VOCAB, grammars, TokenBytes.of(tokenizer, VOCAB)
    client.context = 512
    config = ServerConfig(tool_parser="hermes", reasoning_parser=parser)
    async with front_of(client, tokenizer, config) as front:
        world = World(front, plan, tokenizer)
        if drafts:
            client.engine.speculator.drafter = Knowing(plan)
        yield world


def make_grammars(tokenizer: Tokenizer) -> Grammars:
    """The grammars of a vocabulary."""
    spelt = [tokenizer.bytes_of(token) for token in range(VOCAB)]
    return Grammars(GrammarConfig(), None, spelt, tokenizer.special_ids, [EOS], VOCAB)
