"""Chats that call tools after a thought, whose calls are known: a server over a tiny checkpoint with an MTP head.

The model and its head compute as always. Then the logits of the script's next token are raised above all others: of the
model always, of the head in three of four places. So each answer is known, and some drafts are wrong.
"""

from __future__ import annotations

import functools
import json
import random
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from api.harness import EOS, MARK, NAME, START, VOCAB, LocalClient, events, front_of, make_tokenizer
from drafting.mtp_models import save_model
from tailrace.config import CacheConfig, GrammarConfig, ModelConfig, SchedulerConfig, ServerConfig, SpeculationConfig
from tailrace.drafting import draft_sampler, load_drafter
from tailrace.engine.engine import Engine
from tailrace.engine.token_bytes import TokenBytes
from tailrace.grammar.service import Grammars
from tailrace.runners import load_runner
from tailrace.runners.base import Batch
from tailrace.runners.scripted import ScriptedRunner
from tailrace.wire.messages import ModelInfo

LONGEST = 512
WORDS = ("Ada", "Bo", 'a "quote"', "{brace}", "é 😀", "line\nline", "back\\slash", "", "</arguments>", "[1, 2]")
FIND = {
    "type": "object",
    "properties": {"to": {"enum": ["Ada", "Bo"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["to", "count"],
    "additionalProperties": False,
}
SEND = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "urgent": {"type": "boolean"}},
    "required": ["text", "urgent"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}
    for name, parameters in (("find", FIND), ("send", SEND))
]
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Chat:
    """One request and its answer. number: names it in the prompt. budget: of the thought; None: no limit."""

    number: int
    thought: str
    calls: tuple[Call, ...]
    budget: int | None
    fields: dict[str, Any]

    @property
    def answer(self) -> str:
        """The calls as the model writes them."""
        written = (json.dumps({"name": n, "arguments": a}, ensure_ascii=False) for n, a in self.calls)
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)

    def complete(self, said: str) -> str:
        """What the model says after this: bytes, as latin-1."""
        thought, closed, rest = said.partition("</think>")
        if not closed:
            return follow(latin(f"<think>{self.thought}</think>"), thought)
        rest = rest.lstrip("\n")
        return follow(latin(self.answer), rest)


def latin(text: str) -> str:
    """The text's bytes, a character each."""
    return text.encode().decode("latin-1")


def follow(wanted: str, said: str) -> str:
    """The rest of what is wanted; none where something else was said."""
    return wanted[len(said) :] if wanted.startswith(said) else ""


@functools.lru_cache(maxsize=4096)
def make_chat(number: int) -> Chat:
    """A request of every kind, by its number."""
    rng = random.Random(number)
    calls = tuple(make_call(rng) for _ in range(2 if number % 5 == 0 else 1))
    choice: Any = ("required", "auto", {"type": "function", "function": {"name": calls[0][0]}})[number % 3]
    if len(calls) > 1 and number % 3 == 2:
        choice = "required"
    thought = "".join(rng.choice("abc de{}\"'\n") for _ in range(rng.randrange(40)))
    budget = rng.randrange(30) if number % 4 == 0 else None
    fields: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": choice,
        "stream": number % 2 == 0,
        "n": 2 if number % 7 == 0 else 1,
        "parallel_tool_calls": len(calls) > 1,
        "max_tokens": 440,
    }
    if number % 8 < 4:
        rule = ("exact", "rejection", "block", "exact")[number % 4]
        fields |= {"temperature": 0.8, "seed": number, "speculation": {"rule": rule}}
    if budget is not None:
        fields["thinking_token_budget"] = budget
    return Chat(number, thought, calls, budget, fields)


def make_call(rng: random.Random) -> Call:
    """A call of one of the tools."""
    if rng.random() < 0.5:
        return "find", {"to": rng.choice(["Ada", "Bo"]), "count": rng.randrange(100)}
    return "send", {"text": " ".join(rng.choices(WORDS, k=rng.randrange(4))), "urgent": rng.random() < 0.5}


def script(ids: list[int]) -> int:
    """The next token of the chat that this sequence belongs to."""
    try:
        begin = ids.index(START, 1) + 1
        number = find_number(bytes(i for i in ids[:begin] if i < 256))
    except ValueError:  # the prompt is not over
        return EOS
    said = ids[begin + len(MARK) :]
    if EOS in said or START in said:
        return EOS
    rest = make_chat(number).complete(bytes(i for i in said if i < 256).decode("latin-1"))
    return ord(rest[0]) if rest else EOS


@functools.lru_cache(maxsize=4096)
def find_number(prompt: bytes) -> int:
    """Return the chat's number. Raises ValueError if there is none."""
    return int(prompt.rpartition(b"chat ")[2].partition(b".")[0])


class ScriptedBatch(draft_sampler.DraftBatch):
    """Drafts of the head that are right in three of four places."""

    def sample(self, logits: torch.Tensor, indices) -> list[int]:
        logits = draft_sampler.fit_vocabulary(logits, self.vocab_size).clone()
        for row, i in enumerate(indices):
            ids = [*self.requests[i].tokens, *self.tokens[i]]
            if zlib.crc32(repr(ids[-6:]).encode()) % 4:
                logits[row, script(ids)] += 50.0
        return super().sample(logits, indices)


class ScriptedHead(LocalClient):
    """The engine of a tiny checkpoint, with its MTP head as the drafter. drafting: whether it drafts."""

    def __init__(self, folder: Path, drafting: bool = True) -> None:
        super().__init__(script)
        self.drafting = drafting
        self.settings = ModelConfig(model=str(folder), dtype="float32", threads=1, device="cpu", trust_remote_code=True)
        self.runner = load_runner(self.settings, folder, block_size=16)
        self.folder = folder

    async def start(self) -> ModelInfo:
        info = await super().start()
        self.context = LONGEST
        config = SpeculationConfig(drafter="mtp", cache_gib=0.1, max_drafts=4, adaptive=False)
        drafter = functools.partial(load_drafter, config, self.settings, self.runner, block_size=16)
        follow_script(self.runner)
        self.engine = Engine(
            self.runner,
            ModelInfo(NAME, VOCAB, LONGEST, [EOS]),
            CacheConfig(num_blocks=4096, block_size=16, state_snapshots=64),
            SchedulerConfig(max_num_seqs=96, max_num_batched_tokens=2048, max_waiting=200, host_ms=10**6),
            self.token_bytes,
            grammars=self.grammars,
            speculation=config,
            drafter=drafter if self.drafting else None,
        )
        self._streams.model = self.engine.info
        return info


def follow_script(runner: Any) -> None:
    """Raise the logits of the script's next token in each row that the runner computes."""
    mirror = ScriptedRunner(VOCAB, script, LONGEST, block_size=16)
    forward, allocate, copy = runner.forward, runner.allocate, runner.copy_blocks

    def compute(batch: Batch) -> torch.Tensor:
        return forward(batch) + 5.0 * mirror.forward(batch)

    runner.forward = compute
    runner.allocate = lambda blocks: (allocate(blocks), mirror.allocate(blocks))[0]
    runner.copy_blocks = lambda pairs: (copy(pairs), mirror.copy_blocks(pairs))[0]


def make_front(family: str, folder: Path):
    """The front end over such an engine, and its client. The folder is written."""
    save_model(family, folder, agreeing=True, vocab=VOCAB)
    tokenizer = make_tokenizer(folder)
    client = ScriptedHead(folder)
    client.token_bytes = TokenBytes.of(tokenizer, VOCAB)
    client.grammars = Grammars(
        GrammarConfig(), None, client.token_bytes.token_bytes, tokenizer.special_ids, [EOS], VOCAB
    )
    settings = ServerConfig(reasoning_parser="think", tool_parser="hermes")
    return client, front_of(client, tokenizer, settings)


async def check_chat(front: Any, number: int) -> str:
    """Ask, and compare. "": all is as it should be; else what is not."""
    chat = make_chat(number)
    answer = await front.chat(content=f"chat {number}.", **chat.fields)
    if answer.status_code != 200:
        return f"{number}: {answer.status_code} {answer.text:.300}"
    choices = read_stream(answer.text) if chat.fields["stream"] else read_whole(answer.json())
    if len(choices) != chat.fields["n"]:
        return f"{number}: {len(choices)} choices"
    for calls, reason, content, thought in choices:
        if calls != list(chat.calls):
            return f"{number}: calls {calls}, not {chat.calls}"
        if reason != ("stop" if isinstance(chat.fields["tool_choice"], dict) else "tool_calls"):
            return f"{number}: ended by {reason}"
        if content.strip():
            return f"{number}: says {content!r}"
        if chat.budget is None and thought.strip() != chat.thought.strip():
            return f"{number}: thinks {thought!r}, not {chat.thought!r}"
        if not chat.thought.strip().startswith(thought.strip()):
            return f"{number}: thinks {thought!r}"
    return ""


Choice = tuple[list[Call], str, str, str]


def read_whole(body: Any) -> list[Choice]:
    """Calls, reason of the end, content and thought of each choice."""
    found = []
    for choice in body["choices"]:
        message = choice["message"]
        calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message["tool_calls"] or ()]
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        found.append((calls, choice["finish_reason"], message["content"] or "", thought))
    return found


def read_stream(text: str) -> list[Choice]:
    """The same, of a stream."""
    calls: dict[int, dict[int, list[str]]] = {}
    reasons: dict[int, str] = {}
    texts: dict[tuple[int, str], str] = {}
    for event in events("\n\n".join(block for block in text.split("\n\n") if not block.startswith(":"))):
        for choice in event["choices"] if event != "[DONE]" else ():
            at, delta = choice["index"], choice["delta"]
            mine = calls.setdefault(at, {})
            for call in delta.get("tool_calls") or ():
                parts = mine.setdefault(call["index"], ["", ""])
                parts[0] += call["function"].get("name") or ""
                parts[1] += call["function"].get("arguments") or ""
            for kind in ("content", "reasoning_content"):
                texts[at, kind] = texts.get((at, kind), "") + (delta.get(kind) or "")
            reasons[at] = choice.get("finish_reason") or reasons.get(at, "")
    return [
        (
            [(name, json.loads(arguments)) for _, (name, arguments) in sorted(calls[at].items())],
            reasons[at],
            texts.get((at, "content"), ""),
            texts.get((at, "reasoning_content"), ""),
        )
        for at in sorted(calls)
    ]
