"""Copies first, then a drafter with weights: who is asked for what, and which settings make no sense."""

from __future__ import annotations

import pytest
import torch

from tailrace.config import ModelConfig, SpeculationConfig
from tailrace.drafting import DRAFTERS, LOOKUPS, load_drafter
from tailrace.drafting.base import Draft, Drafter, DraftRequest, TargetStates
from tailrace.drafting.lookup import LookupDrafter
from tailrace.drafting.ngram import NGram
from tailrace.drafting.suffix import Suffix
from tailrace.errors import ConfigError
from tailrace.runners.scripted import ScriptedRunner
from tailrace.sampling import Sampler, Slots


class Recording(Drafter):
    """Drafts 7, and notes what happens to it."""

    draws, captures, cache_bytes = True, (2,), 64

    def __init__(self) -> None:
        self.calls: list = []

    def draft(self, requests):
        self.calls.append([request.slot for request in requests])
        return [Draft([7] * request.count, scores=[0.5] * request.count) for request in requests]

    def observe(self, seen):
        self.calls.append(seen)

    def remove(self, slot):
        self.calls.append(-slot)


REPEATED, NEW = [1, 2, 3, 4, 5, 6, 9, 8, 1, 2, 3, 4, 5, 6], list(range(20, 34))


def test_only_those_without_a_copy_are_asked_for():
    second = Recording()
    both = LookupDrafter(NGram(6, 6), second)
    requests = [DraftRequest(3, NEW, 2), DraftRequest(1, REPEATED, 2), DraftRequest(2, NEW, 1)]
    drafts = both.draft(requests)
    assert [draft.tokens for draft in drafts] == [[7, 7], [9, 8], [7]]
    assert [draft.source for draft in drafts] == ["", "lookup", ""]
    assert second.calls == [[3, 2]]
    both.draft(requests[1:2])
    assert second.calls == [[3, 2]]  # nobody is left
    assert (both.draws, both.captures, both.cache_bytes) == (True, (2,), 64)


def test_it_sees_and_forgets_for_both():
    second = Recording()
    first = NGram(6, 6)
    both = LookupDrafter(first, second)
    both.draft([DraftRequest(1, REPEATED, 2)])
    seen = TargetStates([1], [REPEATED], [0], [1], [0], torch.zeros(1, 4))
    both.observe(seen)
    both.remove(1)
    assert second.calls == [seen, -1]
    assert not first._texts


def test_what_does_not_copy_is_not_first():
    with pytest.raises(ValueError, match="tokens alone"):
        LookupDrafter(Recording(), NGram())


def load(**fields) -> Drafter:
    runner = ScriptedRunner(64, len, 64)
    return load_drafter(SpeculationConfig(**fields), ModelConfig(), runner, Sampler(Slots(2, 64)), 16)


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_settings_name_both(lookup, monkeypatch):
    monkeypatch.setitem(DRAFTERS, "mtp", lambda where: Plain())
    made = load(drafter="mtp", lookup=lookup)
    assert isinstance(made, LookupDrafter)
    assert isinstance(made.first, {"ngram": NGram, "suffix": Suffix}[lookup])
    for agreeing in range(1, 8):
        text = [*range(agreeing), 50, 60, *range(agreeing)]
        made.remove(0)
        (draft,) = made.draft([DraftRequest(0, text, 1, salt=bytes([agreeing]))])
        assert draft.tokens == ([50] if agreeing >= 6 else [])


class Plain(Recording):
    captures = ()

    def draft(self, requests):
        return [Draft([]) for _ in requests]


@pytest.mark.parametrize("drafter", ["none", "ngram", "suffix"])
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_a_lookup_needs_a_drafter_with_a_model(drafter, lookup):
    with pytest.raises(ConfigError, match=rf"speculation.lookup {lookup} \(--draft-lookup\).*is {drafter}"):
        load(drafter=drafter, lookup=lookup)
