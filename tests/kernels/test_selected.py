"""Sparse attention: positions that are not selected change nothing, in each backend."""

from __future__ import annotations

import pytest
import torch

from kernels import test_gpu_attention as on_gpu
from kernels.test_cpu_agrees import CONTEXTS, DTYPES, Scene, close, path  # noqa: F401, a fixture
from tailrace import kernels

KV_HEADS = 2
FEWER = [(1, 1), (17, 1), (30, 30), (40, 9), (270, 8)]  # Triton's interpreter is slow


def select(contexts: list[tuple[int, int]], heads: int = 1, share: float = 0.3) -> torch.Tensor:
    """Bits of a random share of the positions, and of the token's own. A token behind position 600 selects nothing
    before 400, so that whole chunks are left out."""
    generator = torch.Generator().manual_seed(3)
    width = max(length for length, _ in contexts)
    at = torch.cat([torch.arange(length - count, length) for length, count in contexts])
    flags = torch.rand(len(at), heads, width, generator=generator) < share
    flags[at > 600, :, :400] = False
    flags[torch.arange(len(at)), :, at] = True
    return kernels.pack_bits(flags)


def test_bits_are_those_of_their_flags():
    flags = torch.rand(3, 2, 130) < 0.5
    bits = kernels.pack_bits(flags)
    assert bits.shape == (3, 2, 3)
    assert torch.equal(kernels.unpack_bits(bits)[..., :130], flags)
    assert not kernels.unpack_bits(bits)[..., 130:].any()


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "options"),
    [(1, {}), (KV_HEADS, {}), (1, {"window": 90, "softcap": 5.0}), (KV_HEADS, {"sinks": torch.linspace(-2, 2, 6)})],
    ids=str,
)
def test_attention_to_selected_positions(dtype, heads, options):
    options = {"selected": select(CONTEXTS, heads)} | options
    found = Scene("cpu", dtype, CONTEXTS).run(**options)
    close(found, Scene("reference", dtype, CONTEXTS).run(**options), dtype)
    with pytest.raises(AssertionError):  # the selection matters
        close(found, Scene("reference", dtype, CONTEXTS).run(**options | {"selected": None}), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("code", [torch.int8, torch.float8_e4m3fn])
def test_attention_to_selected_codes(dtype, code):
    options = {"selected": select(CONTEXTS, KV_HEADS)}
    found = [Scene(backend, dtype, CONTEXTS, code=code).run(**options) for backend in ("cpu", "reference")]
    if (
        code == torch.int8 and dtype == torch.float32
    ):  # queries and weights are rounded to codes, of 2^-14 of the largest
        torch.testing.assert_close(*found, atol=4e-4, rtol=4e-4)
    else:
        close(*found, dtype)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_positions_selected_are_the_bits_of_none_selected(dtype):
    few = [context for context in CONTEXTS if context[0] <= 600]
    scene = Scene("cpu", dtype, few)
    assert torch.equal(scene.run(selected=select(few, share=2.0)), scene.run())


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_token_does_not_depend_on_neighbours_or_on_cuts(dtype, threads):
    scene, selected = Scene("cpu", dtype, CONTEXTS), select(CONTEXTS, KV_HEADS)
    whole = scene.run(selected=selected)
    kernels.set_num_threads(threads)
    at = 0
    for i, (_, count) in enumerate(CONTEXTS):
        own = selected[at : at + count]
        assert torch.equal(scene.run(only=i, selected=own), whole[at : at + count])
        for cut in (1, count // 2):
            parts = [
                scene.run(only=i, tokens=slice(first, end), selected=own[first:end].contiguous())
                for first, end in ((0, cut), (cut, count))
            ]
            assert torch.equal(torch.cat(parts), whole[at : at + count])
        at += count


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_selection_that_does_not_fit_is_refused(backend):
    scene = Scene(backend, torch.float32, [(9, 2)])
    wrong = (torch.zeros(1, 1, 1).long(), torch.zeros(2, 3, 1).long(), torch.zeros(2, 1, 1), torch.zeros(2, 1).long())
    for selected in (*wrong, torch.zeros(2, 1, 2).long()[..., ::2]):
        with pytest.raises(ValueError, match=r"selected must be contiguous torch.int64 \[2, 1 or 2, W\]"):
            scene.run(selected=selected)


def test_a_selection_of_too_few_positions_is_refused():
    with pytest.raises(ValueError, match="selected must have a bit for each position, got 65"):
        Scene("cpu", torch.float32, [(65, 1)]).run(selected=torch.zeros(1, 1, 1).long())


@pytest.mark.few(2)
@pytest.mark.parametrize("heads", [1, KV_HEADS])
@pytest.mark.parametrize("options", [{}, {"batch_invariant": True}], ids=str)
def test_triton_attends_to_selected_positions(heads, options):
    selected = select(FEWER, heads).to(on_gpu.DEVICE)
    scene = on_gpu.Scene(FEWER)
    on_gpu.agree(scene, selected=selected, **options)
    bound = on_gpu.TOLERANCE[scene.query.dtype]
    assert not torch.allclose(scene.run(selected=selected), scene.run(), atol=bound, rtol=bound)
    if options:
        first = int(scene.starts[3])
        own = selected[first : first + 9]
        assert torch.equal(scene.row(3, selected=own, **options), scene.run(selected=selected, **options)[first:][:9])
