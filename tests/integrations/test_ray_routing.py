"""The replica of a prompt: the same hash as the engine's cache has, and an order that a lost replica barely moves."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from api.harness import make_tokenizer
from tailrace.api.openapi import GENERATING_PATHS
from tailrace.engine.block_hash import prefix_hash
from tailrace.engine.kv_cache import BlockCache
from tailrace.engine.sequence import Request, Sequence
from tailrace.errors import ConfigError
from tailrace.integrations.ray.prompt_key import READERS, PromptKeys, RoutedModel
from tailrace.integrations.ray.rendezvous import limit_load, order_replicas, rank_replicas
from tailrace.integrations.ray.settings import read_ray_settings
from tailrace.params import SamplingParams
from tailrace.text.tokenizer import Tokenizer

NAMES = [f"replica-{i}" for i in range(20)]
BLOCK = 16
TEXT = "Once upon a time there was a mill at the end of a long race. " * 40


def cached_hashes(token_ids: list[int], adapter: int = 0) -> list[bytes]:
    """What the engine's cache publishes of a prompt."""
    cache = BlockCache(256, BLOCK)
    request = Request(b"", "", 0, SamplingParams(), (0, 0), 1 << 20, adapter=adapter)
    sequence = Sequence(request, 0, 0, len(token_ids), token_ids)
    cache.reserve(sequence, len(token_ids))
    sequence.num_computed = len(token_ids)
    cache.publish_blocks(sequence)
    return [cache.hash_of[block] for block in sequence.blocks if block in cache.hash_of]


# ---- keys


@pytest.mark.parametrize("adapter", [0, 3])
def test_a_key_is_the_hash_of_a_block_in_the_cache(adapter: int):
    ids = random.Random(0).choices(range(50_000), k=20 * BLOCK + 5)
    hashes = cached_hashes(ids, adapter)
    assert [prefix_hash(ids, BLOCK, n, adapter) for n in (1, 2, 5, 16)] == [hashes[n - 1] for n in (1, 2, 5, 16)]
    assert prefix_hash(ids, BLOCK, 64, adapter) == hashes[15]  # the largest power of two that there is
    assert prefix_hash(ids, BLOCK, 4, adapter + 1) != hashes[3]


def test_a_prompt_without_a_reusable_block_has_no_key():
    assert prefix_hash(list(range(BLOCK)), BLOCK, 4) is None
    assert prefix_hash(list(range(BLOCK + 1)), BLOCK, 4) is not None
    assert prefix_hash([], BLOCK, 4) is None


def test_every_endpoint_that_takes_a_prompt_has_a_reader():
    assert {*READERS} == GENERATING_PATHS - {"/v1/explain"}


def test_a_growing_chat_keeps_its_key_until_it_has_doubled():
    ids = list(range(3000))
    keys = [prefix_hash(ids[:n], BLOCK, 32) for n in range(BLOCK + 1, 3000)]
    assert len(set(keys)) == 6  # 1, 2, 4, 8, 16 and 32 blocks


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("bytes"))


class TestKeysOfRequests:
    def keys(self, tokenizer: Tokenizer, blocks: int = 4) -> PromptKeys:
        return PromptKeys([RoutedModel("m", tokenizer, BLOCK, ("first", "second"))], blocks, 20_000)

    def of(self, tokenizer: Tokenizer, path: str, **body: object) -> bytes | None:
        return self.keys(tokenizer).of(path, json.dumps(body).encode())

    def test_each_endpoint_gives_the_hash_of_its_prompt(self, tokenizer: Tokenizer):
        turn = {"role": "user", "content": TEXT}
        chat = prefix_hash(tokenizer.encode_chat([turn], add_generation_prompt=True), BLOCK, 4)
        plain = tokenizer.encode(TEXT)
        assert chat is not None
        for path, body, expected in (
            ("/v1/chat/completions", {"messages": [turn]}, chat),
            ("/v1/messages", {"messages": [turn], "max_tokens": 5, "model": "m"}, chat),
            ("/v1/responses", {"input": TEXT}, chat),
            ("/v1/responses/compact", {"model": "m", "input": TEXT}, chat),
            ("/inference/v1/generate", {"token_ids": plain, "sampling_params": {}}, prefix_hash(plain, BLOCK, 4)),
            ("/v1/completions", {"prompt": TEXT}, prefix_hash(plain, BLOCK, 4)),
            ("/v1/completions", {"prompt": [plain, [1]]}, prefix_hash(plain, BLOCK, 4)),
            ("/v1/completions", {"prompt": TEXT, "model": "second"}, prefix_hash(plain, BLOCK, 4, adapter=2)),
        ):
            assert self.of(tokenizer, path, **body) == expected, path

    def test_what_follows_the_beginning_changes_nothing(self, tokenizer: Tokenizer):
        keys = {self.of(tokenizer, "/v1/completions", prompt=TEXT + end) for end in ("", "a", TEXT, "🦀" * 100)}
        assert len(keys) == 1
        assert self.of(tokenizer, "/v1/completions", prompt="x" + TEXT) not in keys

    @pytest.mark.parametrize(
        ("path", "raw"),
        [
            ("/v1/completions", b"{"),
            ("/v1/completions", b'{"prompt": []}'),
            ("/v1/completions", b'{"prompt": "short"}'),
            ("/v1/completions", b'{"prompt": 3}'),
            ("/v1/completions", b'{"prompt": ' + json.dumps(TEXT).encode() + b', "model": "other"}'),
            ("/v1/chat/completions", b'{"messages": [{"role": "user"}]}'),
            ("/v1/responses", b'{"input": ' + json.dumps(TEXT).encode() + b', "previous_response_id": "resp_1"}'),
            ("/v1/responses", b'{"input": ' + json.dumps(TEXT).encode() + b', "conversation": "conv_1"}'),
            ("/health", b""),
        ],
    )
    def test_what_has_no_key_is_left_to_the_replica(self, tokenizer: Tokenizer, path: str, raw: bytes):
        assert self.keys(tokenizer).of(path, raw) is None

    def test_no_blocks_no_key(self, tokenizer: Tokenizer):
        assert PromptKeys([], 0, 10).of("/v1/completions", b'{"prompt": "a"}') is None


# ---- replicas


def made(count: int) -> list[bytes]:
    rng = random.Random(1)
    return [rng.randbytes(16) for _ in range(count)]


def test_a_lost_replica_moves_its_own_keys_alone():
    fewer = NAMES[:7] + NAMES[8:]
    for key in made(2000):
        assert [name for name in rank_replicas(key, NAMES) if name != NAMES[7]] == rank_replicas(key, fewer)


def test_every_replica_gets_its_share():
    counts = Counter(rank_replicas(key, NAMES)[0] for key in made(20_000))
    mean = 20_000 / len(NAMES)
    assert len(counts) == len(NAMES)
    assert sum((n - mean) ** 2 / mean for n in counts.values()) < 75  # χ² of 19 degrees beyond 1e-8


def test_the_order_does_not_depend_on_the_order_of_the_names():
    for key in made(50):
        assert rank_replicas(key, NAMES) == rank_replicas(key, NAMES[::-1])


def test_one_at_its_bound_comes_after_all_that_are_not():
    key = made(1)[0]
    order = rank_replicas(key, NAMES)
    loads = dict.fromkeys(NAMES, 10)
    assert order_replicas(key, loads, 1.25, 8) == order
    loads[order[0]] = limit_load(10 * len(NAMES), len(NAMES), 1.25, 8)
    assert order_replicas(key, loads, 1.25, 8) == [*order[1:], order[0]]
    assert (
        order_replicas(key, dict.fromkeys(NAMES, 0) | {order[0]: 7}, 1.25, 8)[0] == order[0]
    )  # below the free requests
    assert order_replicas(key, dict.fromkeys(NAMES, 0) | {order[0]: 8}, 1.25, 8)[0] == order[1]


def test_somebody_is_always_below_the_bound():
    rng = random.Random(2)
    for _ in range(500):
        loads = {name: rng.randrange(40) for name in NAMES[: rng.randint(1, 20)]}
        assert loads[order_replicas(rng.randbytes(16), loads, 1.0, 0)[0]] < limit_load(
            sum(loads.values()), len(loads), 1.0, 0
        )


# ---- settings


def test_settings_come_as_words_or_as_tables():
    settings = read_ray_settings({"model.model": "scripted:next", "ray.max_replicas": "3", "ray": {"slack": 2}})
    assert (settings.tailrace.model.model, settings.ray.max_replicas, settings.ray.slack) == ("scripted:next", 3, 2.0)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"ray.min_replicas": "2"}, "ray.min_replicas (2) must be at most ray.max_replicas (1)"),
        ({"ray.slack": "0.5"}, "slack"),
        ({"ray.replicas": "2"}, "replicas"),
        ({"engine.model": "x"}, "unknown section 'engine'"),
        ({"model": "x"}, "section.field=value"),
        ({"server.front_ends": "2"}, "server.front_ends must be 1"),
        ({"model.modle": "x"}, "modle"),
    ],
)
def test_wrong_settings_are_refused_by_name(args: dict[str, object], words: str):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(").replace(")", r"\)")):
        read_ray_settings(args)
