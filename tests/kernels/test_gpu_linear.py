"""The GPU's linear layers: close to the exact product, and a row's bits the same in any company."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.backends import DEVICES
from tailrace import kernels
from tailrace.kernels.gpu import linear as gpu

DEVICE = torch.device(DEVICES["gpu"])
HARDWARE = pytest.mark.skipif(DEVICE.type != "cuda", reason="the interpreter adds as numpy does; bits are the GPU's")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
ROWS = (1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 300, 512, 1000)
SHAPES = (  # (N, K): of models, and what no block divides
    (3072, 2048),
    (2048, 2048),
    (2048, 8192),
    (16384, 2048),
    (6144, 4096),
    (4096, 14336),
    (64, 64),
    (1, 2048),
    (100, 576),
    (77, 1000),
    (130, 2049),
    (33, 17),
)


def made(rows: int, shape: tuple[int, int], dtype: torch.dtype, whole: bool = False) -> tuple[torch.Tensor, ...]:
    """x, weight, bias. whole: small integers, whose sums are exact in any order."""
    generator = torch.Generator(DEVICE).manual_seed(rows + shape[0])
    features, depth = shape
    sizes = ((rows, depth), (features, depth), (features,))
    if whole:
        return tuple(torch.randint(-2, 3, size, generator=generator, device=DEVICE).to(dtype) for size in sizes)
    return tuple(torch.randn(size, generator=generator, device=DEVICE).to(dtype) for size in sizes)


def ours(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return gpu.linear(x, gpu.pack_linear(weight, bias))


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(70, 40), (64, 64), (5, 1100), (1, 3)])
def test_integers_are_exact(shape, dtype):
    """Every tile, split and mask: sums of integers are exact in any order."""
    for rows in (1, 17, 33, 130):
        x, weight, bias = made(rows, shape, dtype, whole=True)
        expected = (x.double() @ weight.double().T + bias.double()).to(dtype)
        assert torch.equal(ours(x, weight, bias), expected)
        assert torch.equal(ours(x, weight), (x.double() @ weight.double().T).to(dtype))


@pytest.mark.parametrize("partial", [True, False])
def test_parts_of_the_depth(partial, monkeypatch):
    """Both ways of adding the parts, one of which is shorter."""
    monkeypatch.setattr(gpu, "ENOUGH", 132 if partial else 0)
    monkeypatch.setattr(gpu, "splits_of", lambda features, depth: (3, 2))
    shape = (40, 256 * 5 + 10)
    for dtype in TOLERANCE:
        x, weight, bias = made(3, shape, dtype)
        expected = x.double() @ weight.double().T + bias.double()
        got = ours(x, weight, bias).double()
        assert (got - expected).norm() < TOLERANCE[dtype] * expected.norm()


def test_inputs_as_they_come():
    """More dimensions, strides, a weight that is transposed, no rows, addresses that are not aligned."""
    x, weight, bias = made(12, (20, 48), torch.float32, whole=True)
    expected = x @ weight.T + bias
    assert torch.equal(ours(x.view(2, 6, 48), weight, bias), expected.view(2, 6, 20))
    assert torch.equal(ours(x.T.contiguous().T, weight, bias), expected)
    assert torch.equal(ours(x, weight.T.contiguous().T, bias), expected)
    wide = torch.cat([torch.zeros_like(x), x], 1)
    assert torch.equal(ours(wide[:, 48:], weight, bias), expected)
    shifted = torch.empty(x.numel() + 1, device=DEVICE)[1:].view_as(x).copy_(x)
    assert torch.equal(ours(shifted, weight, bias), expected)
    assert ours(x[:0], weight, bias).shape == (0, 20)


def test_bad_input_is_refused():
    x, weight, bias = made(2, (4, 8), torch.float32)
    for bad in (x[:, :7], x.to(torch.bfloat16)):
        with pytest.raises(ValueError, match="x must be"):
            ours(bad, weight)
    with pytest.raises(ValueError, match="weight must be"):
        gpu.pack_linear(weight[0])
    with pytest.raises(ValueError, match="bias must be"):
        gpu.pack_linear(weight, bias[:3])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_order_of_additions_follows_from_the_shape(shape):
    """The parts cover K, begin at whole blocks of every tile, and nobody asks how many rows there are."""
    splits, units = gpu.splits_of(*shape)
    share = units * gpu.UNIT.value
    assert (splits - 1) * share < shape[1] <= splits * share
    for tile in gpu.MULTIPLY:
        assert share % tile.depth == 0
        assert tile.features % 64 == 0  # of Hopper's instruction
        assert tile.tokens % 16 == 0


def differing(multiply, x: torch.Tensor) -> list[int]:
    """The numbers of rows with which some row has other bits than in the whole."""
    whole = multiply(x)
    found = []
    for rows in ROWS:
        first = (len(x) - rows) // 2  # another place in its tile
        if not torch.equal(multiply(x[first : first + rows]), whole[first : first + rows]):
            found.append(rows)
    return found


@HARDWARE
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_rows_bits_are_the_same_in_any_company(shape, dtype):
    x, weight, bias = made(1500, shape, dtype)
    packed = gpu.pack_linear(weight, bias)
    assert differing(lambda rows: gpu.linear(rows, packed), x) == []
    expected = F.linear(x[:64].double(), weight.double(), bias.double())
    error = (gpu.linear(x[:64], packed).double() - expected).norm() / expected.norm()
    assert error < TOLERANCE[dtype]
    columns = gpu.pack_linear(weight.T.contiguous().T, bias)  # how the weights lie does not matter either
    assert torch.equal(gpu.linear(x[:65], columns), gpu.linear(x[:65], packed))


@HARDWARE
def test_the_comparison_sees_other_orders(monkeypatch):
    """Ours with parts that depend on the number of rows."""
    x, weight, _ = made(1500, (2048, 2048), torch.bfloat16)

    def planted(rows: torch.Tensor) -> torch.Tensor:
        monkeypatch.setattr(gpu, "splits_of", lambda n, k: (1, 8) if len(rows) < 64 else (4, 2))
        return gpu.linear(rows, gpu.pack_linear(weight))

    assert differing(planted, x) == [rows for rows in ROWS if rows < 64]


@HARDWARE
def test_cublas_is_seen_to_have_others():
    def theirs(shape: tuple[int, int], dtype: torch.dtype) -> list[int]:
        x, weight, _ = made(1500, shape, dtype)
        return differing(lambda rows: F.linear(rows, weight), x)

    assert any(theirs(shape, dtype) for shape in SHAPES for dtype in TOLERANCE)


@HARDWARE
def test_in_a_graph():
    """Captured once, replayed on other numbers."""
    x, weight, bias = made(5, (2048, 2048), torch.bfloat16)
    packed = gpu.pack_linear(weight, bias)
    other = torch.randn_like(x)
    expected = kernels.linear(other, packed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.linear(x, packed)
    x.copy_(other)
    graph.replay()
    assert torch.equal(out, expected)
