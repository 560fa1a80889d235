"""A drafter's own blocks: nobody's twice, none lost; and where a pass puts its tokens."""

from __future__ import annotations

import random

import pytest
import torch

from tailrace.drafting.pages import Pages
from tailrace.runners.flat_batch import block_table, lay_out


def check(pages: Pages) -> None:
    """Every block belongs to one slot or to nobody."""
    owned = [block for blocks in pages.blocks.values() for block in blocks]
    assert sorted([*owned, *pages.free]) == list(range(pages.num_blocks))


def test_blocks_come_and_go():
    pages = Pages(4, 16)
    assert pages.grow(0, 17)
    assert pages.count_missing_blocks(0, 32) == 0
    assert pages.count_missing_blocks(0, 33) == 1
    assert pages.grow(7, 1)
    assert pages.make_block_tables([0, 7, 3]).tolist() == [[0, 1], [2, 0], [0, 0]]
    pages.cut(0, 16)
    assert pages.make_block_tables([0]).tolist() == [[0]]
    assert pages.grow(7, 48)
    assert not pages.grow(0, 17)
    pages.release(7)
    assert pages.grow(0, 64)
    check(pages)


def test_what_does_not_fit_changes_nothing():
    pages = Pages(3, 16)
    pages.grow(0, 20)
    before = list(pages.free), {slot: list(blocks) for slot, blocks in pages.blocks.items()}
    assert not pages.grow(0, 49)
    assert not pages.grow(5, 17)
    assert (list(pages.free), pages.blocks) == before


def test_slots_never_heard_of():
    pages = Pages(2, 16)
    pages.cut(9, 0)
    pages.release(9)
    assert pages.grow(9, 0)
    check(pages)
    assert pages.make_block_tables([]).shape == (0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events_balances(seed):
    rng, pages, lengths = random.Random(seed), Pages(23, 16), {}
    for _ in range(400):
        slot, length = rng.randrange(6), rng.randrange(200)
        if rng.random() < 0.6:
            room = pages.count_missing_blocks(slot, length) <= len(pages.free)
            assert pages.grow(slot, length) is room
            if room:
                lengths[slot] = max(length, lengths.get(slot, 0))
        elif rng.random() < 0.7:
            pages.cut(slot, length)
            lengths[slot] = min(length, lengths.get(slot, 0))
        else:
            pages.release(slot)
            lengths[slot] = 0
        check(pages)
        for slot, length in lengths.items():
            assert len(pages.blocks.get(slot, ())) * 16 >= length


@pytest.mark.parametrize(("name", "sizes"), [("num_blocks", (0, 16)), ("block_size", (4, -1))])
def test_sizes_out_of_range(name, sizes):
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        Pages(*sizes)


def test_a_pass_is_laid_out_flat():
    tables = block_table([[5, 2], [9]])
    batch = lay_out([[10, 11, 12], [20]], [15, 3], tables, 16, wanted=[1])
    assert batch.token_ids.tolist() == [10, 11, 12, 20]
    assert batch.positions.tolist() == [15, 16, 17, 3]
    assert batch.slot_mapping.tolist() == [5 * 16 + 15, 2 * 16, 2 * 16 + 1, 9 * 16 + 3]
    assert batch.query_start.tolist() == [0, 3, 4]
    assert batch.kv_len.tolist() == [18, 4]
    assert batch.block_tables.tolist() == [[5, 2], [9, 0]]
    assert batch.wanted.tolist() == [3]
    assert lay_out([[10, 11], [20]], [0, 3], tables, 16).wanted.tolist() == [1, 2]
    assert [t.dtype for t in (batch.token_ids, batch.positions, batch.slot_mapping, batch.wanted)] == [torch.int64] * 4
    assert [t.dtype for t in (batch.query_start, batch.kv_len, batch.block_tables)] == [torch.int32] * 3
