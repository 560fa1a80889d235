"""A draft model behind its target: the same tokens where it is the same model, whatever was rejected, chunked, cut or
reused before."""

from __future__ import annotations

import random

import pytest
import torch

from drafting.tiny import SIZE, VOCAB, llama, said, sampler_for
from tailrace import drafting
from tailrace.config import ModelConfig, SpeculationConfig
from tailrace.drafting.base import Drafter, DraftRequest
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.drafting.model import DraftModel, check_vocabulary
from tailrace.drafting.prefix import RECENT, count_valid_prefix
from tailrace.errors import ConfigError
from tailrace.runners.scripted import ScriptedRunner
from tailrace.sampling import Sampler, Slots


def script(ids: list[int]) -> torch.Tensor:
    """Depends on the whole sequence, so any wrong position shows."""
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(hash(tuple(ids)) % 2**31)) * 3


class Watched(ScriptedRunner):
    """Counts what it is fed, and refuses to write one place twice in a pass or to read what nobody wrote."""

    def __init__(self, vocab: int = VOCAB, max_model_len: int = 512) -> None:
        super().__init__(vocab, lambda ids: self.answer(ids), max_model_len, block_size=SIZE)
        self.fed: list[int] = []

    def answer(self, ids: list[int]) -> torch.Tensor:
        assert min(ids) >= 0
        return script(ids)[: self.vocab_size]

    def forward(self, batch):
        assert len(set(batch.slot_mapping.tolist())) == len(batch.slot_mapping)
        assert batch.positions.max() < self.max_model_len
        self.fed.append(len(batch.token_ids))
        return super().forward(batch)


def drafter_for(sampler: Sampler, runner=None, *, num_blocks: int = 64, chunk: int = 512) -> DraftModel:
    return DraftModel(runner or Watched(), DraftSampler(sampler), num_blocks, SIZE, chunk)


def prompts_of(*lengths: int, seed: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]


def balanced(drafter: DraftModel) -> bool:
    """No block is lost, and every slot's blocks hold its tokens."""
    pages = drafter.pages
    owned = [block for blocks in pages.blocks.values() for block in blocks]
    holds = all(len(pages.blocks.get(slot, ())) * SIZE >= len(held) for slot, held in drafter.held.items())
    return holds and sorted([*owned, *pages.free]) == list(range(pages.num_blocks))


@pytest.mark.few(1)
@pytest.mark.parametrize("fields", [{"temperature": 0.8}, {"temperature": 0.0}])
def test_the_target_as_its_own_draft_model_is_always_right(fields, tmp_path):
    """Under `exact`: tokens drawn by plain sampling are the drafts, through 12 steps of any outcome."""
    target, draft = llama(tmp_path / "a"), llama(tmp_path / "b")
    target.allocate(32)
    prompts = prompts_of(5, 33, 60)
    sampler = sampler_for(*[fields] * 3, prompts=prompts)
    drafter, tokens, rng = drafter_for(sampler, draft), [list(p) for p in prompts], random.Random(2)
    for _ in range(12):
        asks = [DraftRequest(slot, tokens[slot], rng.randint(1, 6)) for slot in rng.sample(range(3), rng.randint(1, 3))]
        for ask, guess in zip(asks, drafter.draft(asks), strict=True):
            assert guess.tokens == said(target, sampler, ask.slot, ask.tokens, ask.count)
            said_since = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 3))]  # also in steps without drafts
            tokens[ask.slot] += [*guess.tokens[: rng.randint(0, ask.count)], *said_since]
        assert balanced(drafter)


@pytest.mark.parametrize("rule", ["exact", "rejection"])
def test_after_any_rejection_drafts_are_those_of_a_fresh_drafter(rule):
    rng = random.Random(3)
    prompts = prompts_of(3, 40, 17, 90)
    sampler = sampler_for({"temperature": 0.8}, {"top_p": 0.9}, {}, {"temperature": 0.0}, prompts=prompts)
    drafter, tokens = drafter_for(sampler), [list(p) for p in prompts]
    for step in range(25):
        asks = [
            DraftRequest(slot, tokens[slot], rng.randint(1, 7), rule)
            for slot in rng.sample(range(4), rng.randint(1, 4))
        ]
        drafts, fresh = drafter.draft(asks), drafter_for(sampler).draft(asks)
        for ask, draft, expected in zip(asks, drafts, fresh, strict=True):
            assert draft.tokens == expected.tokens
            assert len(draft.tokens) == ask.count
            assert expected.q is None or torch.equal(draft.q, expected.q)
            said_since = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 3))]  # also in steps without drafts
            tokens[ask.slot] += [*draft.tokens[: rng.randint(0, ask.count)], *said_since]
        if step % 8 == 7:  # a banned string: the sequence backs up and goes another way
            slot = rng.randrange(4)
            del tokens[slot][-5:]
            tokens[slot] += [rng.randrange(VOCAB)]
        assert balanced(drafter)


def test_only_what_is_new_is_fed():
    (prompt,) = prompts_of(50)
    sampler = sampler_for({}, prompts=[prompt])
    drafter = drafter_for(sampler, runner := Watched())
    (draft,) = drafter.draft([DraftRequest(0, prompt, 4)])
    assert runner.fed == [50, 1, 1, 1]
    drafter.draft([DraftRequest(0, [*prompt, *draft.tokens, 5], 2)])  # all accepted: the last draft and the bonus token
    assert runner.fed[4:] == [2, 1]
    drafter.draft([DraftRequest(0, [*prompt, draft.tokens[0], 1 + draft.tokens[1] % 90], 1)])  # one accepted
    assert runner.fed[6:] == [1]
    drafter.draft(
        [DraftRequest(0, [*prompt, draft.tokens[0], 1 + draft.tokens[1] % 90], 1)]
    )  # nothing new: the last token, for its logits
    assert runner.fed[7:] == [1]


def test_prompts_are_fed_in_chunks():
    """Those that have caught up draft on beside them; the shortest of the others comes first."""
    prompts = prompts_of(200, 20, 120)
    sampler = sampler_for({}, {}, {}, prompts=prompts)
    drafter = drafter_for(sampler, runner := Watched(), chunk=64)
    asks = [DraftRequest(slot, prompt, 1) for slot, prompt in enumerate(prompts)]
    counts = []
    for _ in range(6):
        drafts = drafter.draft(asks)
        counts.append([len(draft.tokens) for draft in drafts])
    assert counts == [[0, 1, 0], [0, 1, 1], [0, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert runner.fed == [20 + 64, 1 + 56 + 8, 1 + 1 + 64, 1 + 1 + 64, 1 + 1 + 64, 3]
    assert [d.tokens for d in drafts] == [d.tokens for d in drafter_for(sampler).draft(asks)]


def test_a_slot_is_reused():
    first, second = prompts_of(40, 40)
    sampler = sampler_for({}, prompts=[first])
    drafter = drafter_for(sampler)
    drafter.draft([DraftRequest(0, first, 5)])
    drafter.remove(0)
    assert len(drafter.pages.free) == 64
    assert not drafter.held
    assert (
        drafter.draft([DraftRequest(0, second, 5)])[0].tokens
        == drafter_for(sampler).draft([DraftRequest(0, second, 5)])[0].tokens
    )
    drafter.remove(0)
    drafter.remove(0)
    drafter.remove(31)
    assert balanced(drafter)


def test_a_slot_that_nobody_has_left_is_not_mixed_up():
    first, second = prompts_of(40, 30)
    sampler = sampler_for({}, prompts=[first])
    drafter = drafter_for(sampler)
    drafter.draft([DraftRequest(0, first, 5)])
    shared = [*first[:20], *second]
    assert (
        drafter.draft([DraftRequest(0, shared, 5)])[0].tokens
        == drafter_for(sampler).draft([DraftRequest(0, shared, 5)])[0].tokens
    )


def test_no_room():
    """The sequence that finds none gets no drafts and keeps no blocks; the others are unaffected, and it drafts once
    there is room."""
    prompts = prompts_of(40, 60, 20)
    sampler = sampler_for({}, {}, {}, prompts=prompts)
    asks = [DraftRequest(slot, prompt, 4) for slot, prompt in enumerate(prompts)]
    expected = [draft.tokens for draft in drafter_for(sampler).draft(asks)]
    drafter = drafter_for(sampler, num_blocks=5)
    assert [draft.tokens for draft in drafter.draft(asks)] == [expected[0], [], expected[2]]
    assert 1 not in drafter.held
    drafter.remove(0)
    assert [draft.tokens for draft in drafter.draft(asks[1:])] == [[], expected[2]]
    drafter.remove(2)
    assert [draft.tokens for draft in drafter.draft([asks[1]])] == [expected[1]]
    assert balanced(drafter)
    assert drafter.draft([DraftRequest(0, [1] * 97, 1)])[0].tokens == []


def test_a_sequence_that_outgrows_the_cache_makes_room():
    prompts = prompts_of(30, 30)
    sampler = sampler_for({}, {}, prompts=prompts)
    drafter = drafter_for(sampler, num_blocks=4)
    assert all(
        draft.tokens for draft in drafter.draft([DraftRequest(0, prompts[0], 2), DraftRequest(1, prompts[1], 2)])
    )
    grown = [DraftRequest(slot, [*prompt, 1, 2, 3, 4], 2) for slot, prompt in enumerate(prompts)]
    assert [len(draft.tokens) for draft in drafter.draft(grown)] == [0, 2]
    assert balanced(drafter)


def test_who_is_not_asked_for_gives_way():
    """The one asked for longest ago first, and nobody where even that would not be enough."""
    prompts = prompts_of(30, 30, 30, 90)
    sampler = sampler_for({}, {}, {}, {}, prompts=prompts)
    drafter = drafter_for(sampler, num_blocks=6)
    for slot in (1, 0, 2):
        drafter.draft([DraftRequest(slot, prompts[slot], 2)])
    assert len(drafter.draft([DraftRequest(3, prompts[3][:30], 2)])[0].tokens) == 2
    assert sorted(drafter.held) == [0, 2, 3]
    assert drafter.draft([DraftRequest(0, prompts[0], 2), DraftRequest(3, prompts[3], 9)])[1].tokens == []
    assert sorted(drafter.held) == [0, 2]
    assert balanced(drafter)


def test_together_is_alone(tmp_path):
    """Bit for bit: our CPU kernels don't mix rows."""
    model = llama(tmp_path)
    prompts = prompts_of(9, 35, 1, 70)
    fields = ({"temperature": 0.8}, {"temperature": 0.0}, {"top_k": 20, "presence_penalty": 1.0}, {"top_p": 0.9})
    sampler = sampler_for(*fields, prompts=prompts)
    rules = ("exact", "exact", "rejection", "block")
    asks = [DraftRequest(slot, prompt, 1 + slot, rules[slot]) for slot, prompt in enumerate(prompts)]
    drafter = drafter_for(sampler, model)
    together = drafter.draft(asks)
    for slot in range(4):
        drafter.remove(slot)
    for ask, draft in zip(asks, together, strict=True):
        (alone,) = drafter.draft([ask])
        drafter.remove(ask.slot)
        assert draft.tokens == alone.tokens
        assert len(draft.tokens) == ask.count
        assert alone.q is None or torch.equal(draft.q, alone.q)


def test_a_prompt_can_be_fed_without_any_draft(tmp_path):
    (prompt,) = prompts_of(80)
    sampler = sampler_for({}, prompts=[prompt])
    drafter = drafter_for(sampler, llama(tmp_path), chunk=50)
    assert drafter.draft([DraftRequest(0, prompt, 2)])[0].tokens == []
    assert len(drafter.draft([DraftRequest(0, prompt, 2)])[0].tokens) == 2
    assert drafter.draft([]) == []


def test_the_bytes_of_its_cache(tmp_path):
    runner = llama(tmp_path)
    drafter = drafter_for(sampler_for({}, prompts=[[1]]), runner, num_blocks=48)
    assert drafter.cache_bytes == sum(cache.keys.nbytes + cache.values.nbytes for cache in runner.paged.layers.caches)


def test_the_draft_models_longest_sequence():
    prompts = prompts_of(60, 64, 65, 62)
    sampler = sampler_for({}, {}, {}, {}, prompts=prompts)
    drafter = drafter_for(sampler, Watched(max_model_len=64))
    drafts = drafter.draft([DraftRequest(slot, prompt, 4) for slot, prompt in enumerate(prompts)])
    assert [len(draft.tokens) for draft in drafts] == [4, 1, 0, 3]


def test_tokens_that_the_draft_model_does_not_know():
    """Never fed, never drafted; the other sequences go on."""
    prompts = [[1, 2, 3], [1, 95, 3], [4] * 40]
    sampler = sampler_for({"temperature": 3.0}, {}, {"forced_token_ids": (96,)}, prompts=prompts)
    drafter = drafter_for(sampler, Watched(vocab=90))
    drafts = drafter.draft([DraftRequest(slot, prompt, 5) for slot, prompt in enumerate(prompts)])
    assert [len(draft.tokens) for draft in drafts] == [5, 0, 1]
    assert drafts[2].tokens == [96]
    assert max(drafts[0].tokens) < 90
    assert 1 not in drafter.held


def test_a_failed_pass_leaves_the_books_in_order():
    (prompt,) = prompts_of(30)
    sampler = sampler_for({}, prompts=[prompt])
    runner = Watched()
    runner.fail_at = 2
    drafter = drafter_for(sampler, runner)
    with pytest.raises(RuntimeError):
        drafter.draft([DraftRequest(0, prompt, 5)])
    assert (
        drafter.draft([DraftRequest(0, prompt, 5)])[0].tokens
        == drafter_for(sampler).draft([DraftRequest(0, prompt, 5)])[0].tokens
    )


def test_it_is_a_drafter_and_checks_its_numbers():
    sampler = sampler_for({}, prompts=[[1]])
    assert isinstance(drafter_for(sampler), Drafter)
    assert drafter_for(sampler).captures == ()
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        drafter_for(sampler, chunk=0)
    with pytest.raises(ValueError, match="num_blocks must be at least 1"):
        drafter_for(sampler, num_blocks=0)


@pytest.mark.parametrize("seed", range(10))
def test_what_stands(seed):
    rng = random.Random(seed)
    base = [rng.randrange(5) for _ in range(rng.randrange(3 * RECENT))]
    for _ in range(30):
        a, b = base[: rng.randrange(len(base) + 1)], list(base)
        for _ in range(rng.randrange(2)):
            b[rng.randrange(len(b)) if b else 0 :] = [7]
        expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert count_valid_prefix(a, b) == count_valid_prefix(b, a) == expected


def test_vocabularies():
    target = ["<s>", "a", "b", "", "<x>"]
    for draft in (target, target[:3], [*target, "<pad>"], ["<s>", "a", "b", "c", ""]):
        check_vocabulary(target, draft)
    with pytest.raises(ConfigError, match="id 2 is 'c', the target's is 'b'"):
        check_vocabulary(target, ["<s>", "a", "c"])
    for draft in ([], ["", "", ""]):
        with pytest.raises(ConfigError, match="no id"):
            check_vocabulary(target, draft)


def test_adapters_are_the_targets_alone(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(drafting, "load_runner", lambda model, *_, **__: asked.append(model.lora) or 1 / 0)
    config = SpeculationConfig(drafter="draft_model", model=str(tmp_path))
    where = drafting.Surroundings(config, ModelConfig(lora="x=/f"), None, Sampler(Slots(1, 9)), 16)
    with pytest.raises(ZeroDivisionError):
        drafting.DRAFTERS["draft_model"](where)
    assert asked == [""]
