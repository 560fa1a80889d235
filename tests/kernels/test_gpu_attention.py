"""The GPU's paged attention against the reference: ragged batches, and what must not matter bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.backends import DEVICES
from tailrace.kernels import AttentionOptions
from tailrace.kernels.dispatch import find
from tailrace.kernels.gpu import attention as gpu

DEVICE = torch.device(DEVICES["gpu"])
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
PLAIN = {"scale": 0.3}


class Scene:
    """A ragged batch over shuffled blocks. contexts: (positions, tokens of this step) of each sequence."""

    def __init__(self, contexts, heads=(4, 2), dim=16, size=16, dtype=torch.float32, seed=7, value_dim=0):
        generator = torch.Generator().manual_seed(seed)
        width = max(-(-length // size) for length, _ in contexts) + 1
        order = torch.randperm(width * len(contexts) + 2, generator=generator)
        self.contexts, self.size = contexts, size
        self.tables = order[: width * len(contexts)].view(len(contexts), width).to(torch.int32).to(DEVICE)
        self.cache = find("make_cache", "reference")(len(order), heads[1], size, (dim, value_dim or dim), dtype, DEVICE)
        for memory in (self.cache.keys, self.cache.values):
            memory.copy_(torch.randn(memory.shape, generator=generator))
            for i, (length, _) in enumerate(contexts):  # what an old owner left must not matter
                last = int(self.tables[i, (length - 1) // size])
                memory[last, :, (length - 1) % size + 1 :] = float("nan")
                memory[self.tables[i, (length - 1) // size + 1 :].long()] = float("nan")
        tokens = sum(count for _, count in contexts)
        self.query = torch.randn(tokens, heads[0], dim, generator=generator).to(dtype).to(DEVICE)
        starts = [sum(count for _, count in contexts[:i]) for i in range(len(contexts) + 1)]
        self.starts = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
        self.lengths = torch.tensor([length for length, _ in contexts], dtype=torch.int32, device=DEVICE)

    def run(self, backend="gpu", **options) -> torch.Tensor:
        return find("paged_attention", backend)(
            self.query, self.cache, self.tables, self.starts, self.lengths, AttentionOptions(**(PLAIN | options))
        )

    def row(self, i: int, start: int = 0, end: int | None = None, **options) -> torch.Tensor:
        """What sequence i alone gets when its tokens start … end − 1 are the step's."""
        count = self.contexts[i][1]
        end = count if end is None else end
        first = int(self.starts[i])
        return find("paged_attention", "gpu")(
            self.query[first + start : first + end],
            self.cache,
            self.tables[i : i + 1],
            torch.tensor([0, end - start], dtype=torch.int32, device=DEVICE),
            self.lengths[i : i + 1] - (count - end),
            AttentionOptions(**(PLAIN | options)),
        )


def agree(scene: Scene, **options) -> None:
    bound = TOLERANCE[scene.query.dtype]
    torch.testing.assert_close(
        scene.run(**options).float(), scene.run("reference", **options).float(), atol=bound, rtol=bound
    )


CONTEXTS = [(1, 1), (17, 1), (30, 30), (64, 5), (40, 9), (600, 1), (270, 8)]


OPTIONS = (
    {},
    {"window": 20},
    {"window": 300},
    {"softcap": 2.0},
    {"chunk": 33},
    {"chunk": 256, "window": 40},
    {"sinks": torch.tensor([0.5, -3.0, 90.0, -90.0], device=DEVICE), "window": 20},
    {"batch_invariant": True},
    {"batch_invariant": True, "sinks": torch.tensor([0.5, -3.0, 90.0, -90.0], device=DEVICE), "window": 300},
)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        pytest.param(dtype, options, marks=[] if i % 3 == j else pytest.mark.long)
        for i, options in enumerate(OPTIONS)
        for j, dtype in enumerate(TOLERANCE)
    ],
    ids=str,
)
def test_a_mixed_batch(dtype, options):
    agree(Scene(CONTEXTS, dtype=dtype), **options)


@pytest.mark.long
@pytest.mark.parametrize("dims", [(48, 32), (20, 36)])
def test_values_of_another_width(dims):
    sinks = torch.tensor([0.5, -3.0, 1.0, -0.5], device=DEVICE)
    agree(Scene(CONTEXTS, dim=dims[0], value_dim=dims[1]), sinks=sinks)


SHAPES = (
    ((9, 3), 64, 32),
    ((20, 1), 80, 16),
    ((70, 1), 8, 16),
    ((3, 3), 96, 48),
    ((2, 1), 128, 5),
    ((1, 1), 256, 16),
)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("dtype", "heads", "dim", "size"),
    [
        pytest.param(dtype, *shape, marks=[] if i % 2 == j else pytest.mark.long)
        for i, shape in enumerate(SHAPES)
        for j, dtype in enumerate((torch.bfloat16, torch.float32))
    ],
)
def test_shapes(dtype, heads, dim, size):
    agree(Scene([(40, 11), (33, 1)], heads, dim, size, dtype))


def test_prefills_longer_than_a_tile_and_a_context_of_many_chunks():
    agree(Scene([(150, 150), (100, 70)], heads=(1, 1)))
    agree(Scene([(5000, 1)], heads=(1, 1)), scale=0.01)


sequence = st.integers(1, 40).flatmap(lambda count: st.tuples(st.integers(count, count + 300), st.just(count)))


@pytest.mark.long
@given(
    contexts=st.lists(st.one_of(sequence, st.tuples(st.integers(1, 400), st.just(1))), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2)]),
    dim=st.sampled_from([8, 20, 32]),
    size=st.sampled_from([1, 7, 16]),
    window=st.sampled_from([0, 1, 9, 100]),
    softcap=st.sampled_from([0.0, 3.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_any_batch(contexts, heads, dim, size, window, softcap, dtype):
    agree(Scene(contexts, heads, dim, size, dtype), window=window, softcap=softcap)


@pytest.mark.parametrize("fault", ["a position less", "another's table", "one token further"])
def test_small_faults_are_seen(fault):
    scene = Scene([(40, 1), (300, 2), (33, 20)])
    want = scene.run("reference")
    if fault == "a position less":
        scene.lengths = scene.lengths - torch.tensor([0, 1, 0], dtype=torch.int32, device=DEVICE)
    elif fault == "another's table":
        scene.tables[0, 1] = scene.tables[1, 1]
    else:
        scene.starts[2] -= 1
    assert not torch.allclose(scene.run(), want, atol=1e-3)


# ---- what does not matter, bit for bit


@pytest.mark.long
def test_a_short_sequence_does_not_depend_on_the_batch(monkeypatch):
    scene = Scene([(300, 1), (64, 5), (30, 30), (560, 8), (20, 1)])
    whole = scene.run()
    for i, (_, count) in enumerate(scene.contexts):
        mine = whole[int(scene.starts[i]) : int(scene.starts[i + 1])]
        assert torch.equal(scene.row(i), mine)
        if (
            count == gpu.SHORT
        ):  # a draft is what it is as the step's only token; numpy's products depend on the place in a tile
            alone = torch.cat([scene.row(i, k, k + 1) for k in range(count)])
            torch.testing.assert_close(alone, mine, rtol=0, atol=0 if DEVICE.type == "cuda" else 1e-6)
    monkeypatch.setattr(gpu, "PROGRAMS", 1)
    assert torch.equal(scene.run(), whole)
    more = torch.zeros(len(scene.contexts), 300, dtype=torch.int32, device=DEVICE)
    scene.tables = torch.cat([scene.tables, more], 1)
    assert torch.equal(scene.run(), whole)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options", [{}, {"window": 100, "sinks": torch.tensor([0.5, -3.0, 9.0, -9.0], device=DEVICE)}], ids=str
)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_prompt_may_be_cut_anywhere(dtype, options):
    """Where it must be batch-invariant: on hardware bit for bit; numpy's products depend on the place in a tile."""
    scene = Scene([(600, 40), (30, 30), (2, 1)], dtype=dtype)
    whole = scene.run(batch_invariant=True, **options)
    cuts = ((0, 0, 9), (0, 9, 10), (0, 10, 17), (0, 17, 40), (1, 0, 8), (1, 8, 30))
    for i, start, end in cuts:
        mine = whole[int(scene.starts[i]) + start : int(scene.starts[i]) + end]
        part = scene.row(i, start, end, batch_invariant=True, **options)
        bound = 0 if DEVICE.type == "cuda" else TOLERANCE[dtype]
        torch.testing.assert_close(part, mine, rtol=0, atol=bound)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="bits are the GPU's")
def test_other_prompts_may_not():
    """The comparison above sees the tiles of plain prefills."""
    scene = Scene([(600, 40)])
    assert not torch.equal(torch.cat([scene.row(0, i, i + 1) for i in range(40)]), scene.run())


def test_strides_do_not_matter():
    scene = Scene([(20, 20), (9, 1)])
    plain = scene.run()
    merged = torch.randn(21, 6 * 16, device=DEVICE)
    merged[:, 16 : 5 * 16] = scene.query.flatten(1)
    scene.query = merged[:, 16 : 5 * 16].view(21, 4, 16)
    assert torch.equal(scene.run(), plain)
    scene.query = scene.query.transpose(0, 1).contiguous().transpose(0, 1)
    scene.tables = torch.cat([scene.tables, scene.tables], 1)[:, : scene.tables.shape[1]]
    assert torch.equal(scene.run(), plain)
    scene.query = scene.query.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(scene.run(), plain)


def test_rows_of_padding():
    scene = Scene([(300, 1), (20, 1)])
    plain = scene.run()
    scene.query = torch.cat([scene.query, torch.full_like(scene.query, 3.0)])
    scene.tables = torch.cat([scene.tables, scene.tables.flip(0)])
    scene.starts = torch.arange(5, dtype=torch.int32, device=DEVICE)
    scene.lengths = torch.cat([scene.lengths, torch.zeros_like(scene.lengths)])
    out = scene.run()
    assert torch.equal(out[:2], plain)
    assert not out[2:].any()


@pytest.mark.parametrize("count", [4, 12])
def test_a_nan_query_gives_nan_and_only_there(count):
    scene = Scene([(30, count)])
    scene.query[2] = float("nan")
    assert scene.run().isnan().flatten(1).all(1).tolist() == [i == 2 for i in range(count)]
    assert int(scene.run().isnan().flatten(1).any(1).sum()) == 1


# ---- the cache


@pytest.mark.parametrize(("dtype", "heads", "dim"), [(torch.bfloat16, 3, 20), (torch.float32, 1, 16)])
def test_store_writes_its_slots_and_nothing_else(dtype, heads, dim):
    made = find("make_cache", "gpu")(4, heads, 6, (dim, dim + 4), dtype, DEVICE)
    assert (made.keys.shape, made.dtype, made.keys.device.type) == ((4, heads, 6, dim), dtype, DEVICE.type)
    assert made.values.shape == (4, heads, 6, dim + 4)
    caches = [replace(made, keys=torch.zeros_like(made.keys), values=torch.zeros_like(made.values)) for _ in range(2)]
    key = torch.randn(heads, 7, dim, device=DEVICE).to(dtype).transpose(0, 1)
    value = torch.randn(7, 2 * heads, dim + 4, device=DEVICE).to(dtype)[:, ::2]
    slots = torch.tensor([5, 23, 0, 6, 13, 12, 11], device=DEVICE)
    given_ = torch.tensor([5, -1, 0, 24, 13, 12, 10**12], device=DEVICE)
    kept = torch.tensor([0, 2, 4, 5], device=DEVICE)
    find("store_kv", "gpu")(caches[0], key, value, given_)
    find("store_kv", "reference")(caches[1], key[kept], value[kept], slots[kept])
    assert torch.equal(caches[0].keys, caches[1].keys)
    assert torch.equal(caches[0].values, caches[1].values)
    find("store_kv", "gpu")(caches[0], key[:0], value[:0], slots[:0])


def test_chunks_cover_the_positions():
    starts = [gpu.start_of.fn(chunk) for chunk in range(60)]
    assert starts[:3] == [0, 256, 512]
    assert starts[15:19] == [3840, 4096, 4608, 5120]
    assert starts[32] == 4096 + 8192
    assert starts == sorted(set(starts))
    for positions in (1, 256, 257, 4096, 4097, 4608, 4609, 20000):
        count = gpu.chunks_of(positions)
        assert starts[count - 1] < positions <= starts[count]
    assert gpu.chunks_of(131072) == 81
    with pytest.raises(ValueError, match="not supported"):
        gpu.chunks_of(2**30)


def test_shapes_that_do_not_fit():
    scene = Scene([(20, 1), (9, 1)])
    for change, message in (
        ({"query": scene.query[:, :3]}, "query must be"),
        ({"query": scene.query.half()}, "query must be"),
        ({"query": scene.query[:1]}, "every sequence has a token"),
        ({"starts": scene.starts[:2]}, "query_start"),
        ({"tables": scene.tables[0]}, "block_tables"),
    ):
        broken = Scene(scene.contexts)
        for name, value in change.items():
            setattr(broken, name, value)
        with pytest.raises(ValueError, match=message):
            broken.run()
    with pytest.raises(ValueError, match="window"):
        scene.run(window=-1)
    with pytest.raises(ValueError, match="key and value must be"):
        find("store_kv", "gpu")(scene.cache, scene.query, scene.query, scene.starts[:2].long())
    assert Scene([(3, 3)]).run().shape == (3, 4, 16)
