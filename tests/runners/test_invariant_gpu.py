"""What stands in for torch's functions on a GPU computes the same; and on hardware a whole model's logits are the same
bits whatever stands beside a sequence, and however its prompt is cut."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from runners.tiny_models import MODELS, VOCAB, save
from tailrace.config import ModelConfig
from tailrace.errors import ModelLoadError
from tailrace.kernels.gpu import linear as gpu
from tailrace.runners import load_runner
from tailrace.runners.flat_batch import FlatTokens
from tailrace.runners.invariant import select_mode
from tailrace.runners.invariant_gpu import RowsIndependent

HARDWARE = pytest.mark.skipif(not torch.cuda.is_available(), reason="bits are the GPU's")
x, y = (torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
CASES = {
    "linear": lambda: F.linear(x, y[0], torch.ones(5)),
    "matrix": lambda: x @ y[0].T,
    "matrix on the left": lambda: y[0] @ x.mT,
    "pairs": lambda: x @ y.mT,
    "broadcast": lambda: x[:, None] @ y[:1, None].mT,
    "vector": lambda: x @ y[0, 0],
    "named": lambda: torch.matmul(input=x, other=y.mT),
    "mm": lambda: torch.mm(x[0], y[0].T),
    "addmm": lambda: torch.addmm(torch.ones(5), x[0], y[0].T),
    "addmm of a matrix": lambda: torch.addmm(torch.ones(5, 5), x[0], y[0].T, beta=0.5),
    "bmm": lambda: torch.bmm(x, y.mT),
    "float64": lambda: x.double() @ y.double().mT,
    "sum": lambda: x.sum(-1),
    "sum of all": lambda: x.sum(),
    "sum of several": lambda: x.sum((0, 2), keepdim=True),
    "sum of ints": lambda: (x > 0).sum(-1),
    "sum in another dtype": lambda: x.sum(dim=1, dtype=torch.float64),
    "sum, list": lambda: torch.sum(x, dim=[1], keepdim=True),
    "mean": lambda: x.mean(-1, keepdim=True),
    "mean of a middle one": lambda: torch.mean(x, dim=1, keepdim=True),
    "mean of all": lambda: x.mean(),
    "norm": lambda: x.norm(p=2, dim=-1, keepdim=True),
    "norm of another power": lambda: x.norm(p=1, dim=-1),
    "norm of all": lambda: x.norm(),
    "normalize": lambda: F.normalize(x, dim=1),
    "normalize, other power": lambda: F.normalize(x, p=1.0, dim=-1),
}


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_the_same_as_torch(case):
    expected = CASES[case]()
    with RowsIndependent():
        got = CASES[case]()
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(got, expected)


def test_a_router_in_float32():
    """torch.mm's out_dtype, which torch itself has on CUDA alone."""
    a, b = x[0].bfloat16(), y[0].T.bfloat16()
    with RowsIndependent():
        got = torch.mm(a, b, out_dtype=torch.float32)
    torch.testing.assert_close(got, a.float() @ b.float())


def test_products_of_one_term_need_nothing():
    assert select_mode(RowsIndependent, lambda: x[..., :1] @ y[:, :1]) is not RowsIndependent
    assert select_mode(RowsIndependent, lambda: x.mean(-1)) is RowsIndependent


# ---- on hardware

SIZE = 16
Part = tuple[int, int, int]  # sequence, first position, end


class Sequences:
    """Three sequences of a model on a GPU, computed in any parts."""

    def __init__(self, folder, dtype: str, batch_invariant: bool) -> None:
        config = ModelConfig(dtype=dtype, device="cuda", batch_invariant=batch_invariant, cuda_graphs=False)
        self.runner = load_runner(config, folder, block_size=SIZE)
        self.ids = torch.randint(1, VOCAB, (3, 60), generator=torch.Generator().manual_seed(5))
        self.tables = torch.arange(12, dtype=torch.int32).view(3, 4)

    def begin(self) -> Sequences:
        if getattr(self.runner, "state_bytes", 0):
            self.runner.allocate_states(5, 2, 0)
        self.runner.allocate(12)
        return self

    def step(self, *parts: Part) -> list[torch.Tensor]:
        """Logits of all tokens of each part."""
        flat = FlatTokens()
        for sequence, first, end in parts:
            flat.add(self.ids[sequence, first:end].tolist(), end)
        flat.wanted = list(range(len(flat.token_ids)))
        owners = [part[0] for part in parts]
        batch = flat.make_batch(self.tables[owners].numpy(), SIZE, slots=[4 - owner for owner in owners])
        return list(self.runner.forward(batch).clone().split([end - first for _, first, end in parts]))

    def apart(self) -> float:
        """How far the logits of a sequence differ with others beside it and with its prompt cut."""
        [alone] = self.begin().step((0, 0, 50))
        _, beside = self.begin().step((1, 0, 33), (0, 0, 50))
        self.begin()
        first, _ = self.step((0, 0, 17), (2, 0, 5))
        _, second = self.step((2, 5, 6), (0, 17, 18))
        _, third, _ = self.step((1, 0, 40), (0, 18, 50), (2, 6, 7))
        return max(float((alone - other).abs().max()) for other in (beside, torch.cat([first, second, third])))


@HARDWARE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_neighbours_and_cuts_do_not_matter(kind, dtype, tmp_path):
    try:
        sequences = Sequences(save(kind, tmp_path), dtype, True)
    except ModelLoadError as error:  # another transformers there may have another mask
        pytest.skip(str(error))
    assert sequences.apart() == 0


@HARDWARE
def test_a_linear_layer_that_depends_on_the_rows_is_seen(tmp_path, monkeypatch):
    sequences, right = Sequences(save("llama, dynamic rope", tmp_path), "bfloat16", True), gpu.launch

    def planted(rows: torch.Tensor, packed: gpu.Weight, out: torch.Tensor) -> None:
        right(rows, packed, out)
        out.mul_(1.01 if len(rows) > 60 else 1.0)

    monkeypatch.setattr(gpu, "launch", planted)
    assert sequences.apart() > 0
