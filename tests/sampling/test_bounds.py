"""Tokens at a bound: where equal tokens, or probabilities such as 0.4 and 0.3, meet a bound such as 0.7, every backend
keeps the same ids, and of equal tokens the smallest ones."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from field_examples import uncovered
from kernels.backends import DEVICES, QUIET
from sampling.test_backends import slots_for
from tailrace.kernels.rows import Rows
from tailrace.params import FIELDS, SamplingParams
from tailrace.sampling import Sampler
from tailrace.sampling.backends.device_slots import DeviceSlots
from tailrace.sampling.pipeline import beyond_device

BACKENDS = ("reference", "cpu", "gpu")


def kept(logits: torch.Tensor, fields: dict, backend: str) -> list[list[int]]:
    """The ids that survive in each row."""
    n, vocab = logits.shape
    slots = slots_for(fields | {"return_sampling_mask": True}, vocab, n)
    out = Sampler(slots, backend)(logits.to(DEVICES[backend]), Rows.plain(range(n), range(n), [9] * n))
    assert out.sampling_mask is not None
    return [part.tolist() for part in out.sampling_mask.parts()]


def log(weights: list[float]) -> torch.Tensor:
    return torch.tensor([weights], dtype=torch.float64).log().float()


# ---- what the methods' definitions say, in numbers that binary fractions don't have

FLAT, TENTHS, MIXED = [1.0] * 10, [4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 1.0, 3.0, 2.0, 1.0]
EXPECTED = {
    "ten equals reach 0.8 with eight": (FLAT, {"top_p": 0.8}, range(8)),
    "ten equals reach 0.3 with three": (FLAT, {"top_p": 0.3}, range(3)),
    "a hundred equals reach 0.07 with seven": ([1.0] * 100, {"top_p": 0.07}, range(7)),
    "typical: ten equals reach 0.6 with six": (FLAT, {"typical_p": 0.6}, range(6)),
    "two of four reach 0.7": (TENTHS, {"top_p": 0.7}, [0, 1]),
    "one of four reaches 0.4": (TENTHS, {"top_p": 0.4}, [0]),
    "three of four reach 0.9": (TENTHS, {"top_p": 0.9}, [0, 1, 2]),
    "the first of equals at the bound": (MIXED, {"top_p": 0.5}, [1, 3]),
    "both equals, then the first of the last": (MIXED, {"top_p": 0.8}, [0, 1, 3, 4]),
    "one of two thirds after top_k": (TENTHS, {"top_k": 2, "top_p": 4 / 7}, [0]),
    "temperature squares": ([2.0, 1.0, 1.0], {"temperature": 0.5, "top_p": 4 / 6}, [0]),
    "epsilon keeps what has it": (TENTHS, {"epsilon_cutoff": 0.2}, [0, 1, 2]),
    "min_p keeps what has it": ([4.0, 2.0, 2.0, 1.0], {"min_p": 0.5}, [0, 1, 2]),
    "top_a keeps what has it": ([4.0, 2.0, 2.0, 2.0], {"top_a": 1 / 0.8}, [0, 1, 2, 3]),
    "p-less keeps what has it": (TENTHS, {"p_less": True}, [0, 1]),  # Σ p² = 0.3
    "xtc removes what has it": (TENTHS, {"xtc_probability": 1.0, "xtc_threshold": 0.2}, [2, 3]),
    "mirostat keeps what has it": (
        [4.0, 2.0, 2.0],
        {"mirostat": 2, "mirostat_tau": 1.0},
        [0, 1, 2],
    ),  # μ starts at 2 τ: 2 bits
    "mirostat keeps one where none has it": (FLAT, {"mirostat": 2, "mirostat_tau": 1.0}, [0]),
}


@pytest.mark.few(30)
@QUIET
@pytest.mark.parametrize(("name", "backend"), list(itertools.product(EXPECTED, BACKENDS)))
def test_bound_is_reached_as_on_paper(name, backend):
    weights, fields, ids = EXPECTED[name]
    if "xtc_threshold" in fields:
        weights = [*weights, 1e-9]  # slots_for's end of sequence, which XTC never removes
        ids = [*ids, 4]
    assert kept(log(weights), fields, backend) == [list(ids)]


# ---- agreement

SHARES = (0.05, 0.07, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.875, 0.9, 0.95, 0.99)
METHODS = {
    "top_p": lambda share: {"top_p": share},
    "top_p at a temperature": lambda share: {"top_p": share, "temperature": 0.5},
    "top_p before a temperature": lambda share: {
        "top_p": share,
        "temperature": 0.7,
        "sampler_order": ("top_p", "temperature"),
    },
    "top_p of top_k": lambda share: {"top_k": 20, "top_p": share},
    "top_p of min_p": lambda share: {"min_p": 0.3, "top_p": share},
    "top_p of typical": lambda share: {"typical_p": 0.9, "top_p": share, "sampler_order": ("typical_p", "top_p")},
    "top_p of a smoothed row": lambda share: {"smoothing_factor": 0.5, "top_p": share},
    "top_p at a dynamic temperature": lambda share: {"dynatemp_range": 0.5, "top_p": share},
    "typical": lambda share: {"typical_p": share},
    "typical at a temperature": lambda share: {"typical_p": share, "temperature": 0.7},
    "typical of top_p": lambda share: {"top_p": 0.8, "typical_p": share},
    "tail-free": lambda share: {"tfs_z": share},
    "top-h": lambda share: {"top_h": share},
    "top_a": lambda share: {"top_a": share},
    "min_p": lambda share: {"min_p": share},
    "epsilon": lambda share: {"epsilon_cutoff": share},
    "eta": lambda share: {"eta_cutoff": share / 4},
    "top_n_sigma": lambda share: {"top_n_sigma": 2 * share},
    "xtc": lambda share: {"xtc_probability": 1.0, "xtc_threshold": min(share, 0.5)},
    "xtc of top_p": lambda share: {"top_p": 0.9, "xtc_probability": 1.0, "xtc_threshold": min(share, 0.5)},
    "top_k": lambda share: {"top_k": int(20 * share) + 1},
    "p_less": lambda share: {"p_less": True, "temperature": share},
    "p_less_norm": lambda share: {"p_less_norm": True, "temperature": share},
    "min_k": lambda share: {"min_k": True, "min_k_tau": 10 * share},
    "mirostat 2": lambda share: {"mirostat": 2, "mirostat_tau": 4 * share},
    "mirostat 1": lambda share: {"mirostat": 1, "mirostat_tau": 4 * share},
}
WEIGHTS = {
    "tenths": [4, 3, 2, 1],
    "halves": [8, 4, 2, 1, 1],
    "two halves": [1, 2, 1],
    "twentieths": [5, 4, 3, 2, 2, 2, 1, 1],
    "disorder": MIXED,
    "thirds": [1] * 3,
    "five": [4] * 5 + [1] * 80,
    "hundredths": [10] * 4 + [5] * 6 + [1] * 30,
    "a long tail": [100] * 3 + [1] * 700,
    "by turns": [2, 1] * 60,
    "one and equals": [1] * 16 + [16],
}


def rows_of(vocab: int) -> torch.Tensor:
    """Rows of many equals."""
    ids = torch.arange(vocab)
    noise = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab))
    kinds = [
        torch.full((vocab,), 3.25),
        (ids % 2).float() * 2.0,
        (ids % 10 == 0).float() * 2.0,
        (ids % 3).float(),
        (ids % 6).float() * -math.log(2.0),
        (noise * 2).round() / 2,
        (noise * 0.05).bfloat16().float(),
        torch.where(ids < (vocab + 1) // 2, 1.0, -math.inf),
        torch.where(ids % 4 == 0, 0.0, -20.0),
        torch.where(ids % max(1, vocab // 10) == 0, 5.0, -60.0),
    ]
    return torch.stack(kinds)


ROWS = {
    **{
        name: torch.cat([log(w), log(w) - math.log(sum(w)), log(w) + 7.0, log(w).bfloat16().float()])
        for name, w in WEIGHTS.items()
    },
    **{f"{vocab} ids": rows_of(vocab) for vocab in (2, 3, 10, 64, 100, 255, 257, 1000, 4097)},
}


def test_every_truncation_meets_its_bound():
    cases = {name: make_fields(0.5) for name, make_fields in METHODS.items()}
    assert {name for name in uncovered(cases) if FIELDS[name].kind == "truncation"} == set()


@pytest.mark.few(52)
@pytest.mark.parametrize(("method", "kind"), list(itertools.product(METHODS, ROWS)))
def test_kernels_keep_what_the_reference_keeps(method, kind):
    for share in SHARES:
        fields = METHODS[method](share)
        found, expected = (kept(ROWS[kind], fields, backend) for backend in ("cpu", "reference"))
        assert found == expected, share


@pytest.mark.few(13)
@QUIET
@pytest.mark.parametrize(("method", "kind"), list(itertools.product(METHODS, [*WEIGHTS, "10 ids", "257 ids"])))
def test_gpu_keeps_what_the_reference_keeps(method, kind, monkeypatch):
    """Without a GPU, in Triton's interpreter."""
    monkeypatch.setattr(DeviceSlots, "falling_back", lambda *_: [])
    if beyond_device(SamplingParams(**METHODS[method](0.5)), torch.device("cuda")):
        monkeypatch.undo()  # no kernel of the GPU has the method
    for share in SHARES[list(METHODS).index(method) % 4 :: 4]:
        fields = METHODS[method](share)
        found, expected = (kept(ROWS[kind][:2], fields, backend) for backend in ("gpu", "reference"))
        assert found == expected, share
