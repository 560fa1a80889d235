"""tailrace keeps every law with a model whose tokens cost nothing: a table of logits behind the last two tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from api.harness import EOS, VOCAB, LocalClient, byte_names, make_tokenizer, served
from judging import judge_url, said
from tailrace.api.app import create_app
from tailrace.config import GrammarConfig, ServerConfig
from tailrace.engine.token_bytes import TokenBytes
from tailrace.grammar.service import Grammars
from tailrace.text.tokenizer import Tokenizer

FOUND = {
    "errors.unknown-field": "ignored",  # docs/api/index.md: no effect, and logged once by name
    "structure.thinking": "not_offered",  # its template has no thoughts
}
WORDS = [" the", " sea", " was", "ing", "ed", " and", " stone", " st", "one", " of", ", ", ". "]
SIZE = VOCAB + len({word[:n] for word in WORDS for n in range(2, len(word) + 1)})
MORE = {0xF0: 0x9F, 0x9F: 0x98, 0x98: 0x80, 0xC3: 0xA9}  # what follows in 😀 and é
LATELY = 64  # tokens
LIKELY = [*b' etaoinshrdlu.,"}', 0xF0, 0xC3, *range(VOCAB, SIZE)]


def make_wordy_tokenizer(folder: Path) -> Tokenizer:
    """The one of bytes, with tokens of several characters beside them: words and what they begin with. Special tokens
    keep their ids by being in the vocabulary."""
    make_tokenizer(folder)
    names, path = byte_names(), folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    model = tokenizer["model"]
    model["vocab"] |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    for word in WORDS:
        letters = [names[byte] for byte in word.encode()]
        for n in range(2, len(letters) + 1):
            if (piece := "".join(letters[:n])) not in model["vocab"]:
                model["vocab"][piece] = VOCAB + len(model["merges"])
                model["merges"].append(["".join(letters[: n - 1]), letters[n - 1]])
    path.write_text(json.dumps(tokenizer))
    return Tokenizer.load(folder)


@cache
def after(last: int, before: int) -> torch.Tensor:
    """Logits behind two tokens: any ASCII character, letters and words above all; whole characters always."""
    logits = torch.full((SIZE,), -50.0)
    if last in MORE:
        logits[MORE[last]] = 0.0
        return logits
    chance = random.Random(last * SIZE + before)
    for code in [*range(0x20, 0x7F), 0x0A]:
        logits[code] = chance.gauss(-4, 1)
    for code in LIKELY:
        logits[code] = chance.gauss(0, 1.5)
    logits[EOS] = -1.0
    return logits


def babble(ids: list[int]) -> torch.Tensor:
    """What has come lately comes more often again."""
    logits = after(*ids[-1:-3:-1]) if len(ids) > 1 else after(ids[0], EOS)
    if ids[-1] in MORE:
        return logits
    logits = logits.clone()
    again = torch.tensor(
        sorted(set(ids[-LATELY:]) - MORE.keys() - set(MORE.values()) - {EOS, EOS - 1}), dtype=torch.int64
    )
    logits[again] += 1.0
    return logits


class Babbler(LocalClient):
    context, vocab_size = 4096, SIZE


@pytest.mark.parametrize("budget", ["quick", pytest.param("thorough", marks=pytest.mark.long)])
async def test_every_law_holds(budget: str, tmp_path: Path, free_port: Callable[[], int]):
    tokenizer = make_wordy_tokenizer(tmp_path)
    client = Babbler(babble)
    client.token_bytes = TokenBytes.of(tokenizer, SIZE)
    client.grammars = Grammars(
        GrammarConfig(), None, client.token_bytes.token_bytes, tokenizer.special_ids, [EOS], SIZE
    )
    app = create_app(client, tokenizer, ServerConfig(tool_parser="hermes"), "scripted")
    try:
        with served(app, free_port()) as url:
            run = await judge_url(url + "/v1", budget=budget)
    finally:
        client.grammars.close()
    assert {one.law.id: one.verdict.kind for one in run.judged if one.verdict.kind != "holds"} == FOUND, said(run)
