"""Packs matrices as GPTQ, AWQ and compressed-tensors do, in plain numpy: written from the formats' own packers, knowing
nothing of tailrace's readers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


class Codes(NamedTuple):
    """codes [N, K], zeros and scales [N, G], values [N, K]: (code − zero) · scale in float32. order: inputs' groups."""

    codes: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    values: np.ndarray
    order: np.ndarray


def rounded(
    weight: torch.Tensor, group: int, bits: int = 4, sym: bool = False, act_order: bool = False, scales: str = "f2"
) -> Codes:
    """The matrix on a grid. scales: their dtype, f2, bf (bfloat16) or f4."""
    values = weight.numpy()
    outputs, width = values.shape
    order = np.arange(width) // group
    if act_order:
        order = np.random.default_rng(1).permutation(order)
    top = 2**bits - 1
    codes, zeros = np.empty((outputs, width), np.int64), np.empty((outputs, width // group), np.int64)
    factors = np.empty((outputs, width // group), np.float32)
    for g in range(width // group):
        part = values[:, order == g]
        most, least = part.max(1), part.min(1)
        scale = 2 * np.abs(part).max(1) / top if sym else (most - least) / top
        if scales == "bf":
            scale = torch.from_numpy(scale).bfloat16().float().numpy()
        scale = scale.astype("<f2" if scales == "f2" else "<f4").astype(np.float32)
        zeros[:, g] = 2 ** (bits - 1) if sym else np.clip(np.rint(-least / scale), 1, top)
        factors[:, g] = scale
        codes[:, order == g] = np.clip(np.rint(part / scale[:, None]) + zeros[:, g : g + 1], 0, top)
    exact = (codes - zeros[:, order]).astype(np.float32) * factors[:, order]
    return Codes(codes, zeros, factors, exact, order)


def words(fields: np.ndarray, bits: int) -> np.ndarray:
    """[n · 32 / bits, …] → int32 [n, …]: the first field lowest."""
    per = 32 // bits
    out = np.zeros((len(fields) // per, *fields.shape[1:]), np.uint64)
    for i in range(per):
        out |= fields[i::per].astype(np.uint64) << np.uint64(bits * i)
    return out.astype(np.uint32).view(np.int32)


def gptq(made: Codes, bits: int = 4, version: int = 1) -> dict[str, torch.Tensor]:
    """AutoGPTQ's: all with inputs first; version 1 stores zero points less one."""
    return {
        "qweight": torch.from_numpy(words(made.codes.T, bits)),
        "qzeros": torch.from_numpy(words(made.zeros - (version == 1), bits).T.copy()),
        "scales": torch.from_numpy(made.scales.T.copy()).half(),
        "g_idx": torch.from_numpy(made.order.astype(np.int32)),
    }


def awq(made: Codes) -> dict[str, torch.Tensor]:
    """AutoAWQ's GEMM: words along the outputs, in an order of their own."""

    def interleaved(columns: np.ndarray) -> torch.Tensor:
        out = np.zeros((columns.shape[0], columns.shape[1] // 8), np.uint32)
        for word in range(out.shape[1]):
            for i, column in enumerate(AWQ_COLUMNS):
                out[:, word] |= columns[:, 8 * word + column].astype(np.uint32) << np.uint32(4 * i)
        return torch.from_numpy(out.view(np.int32))

    scales = torch.from_numpy(made.scales.T.copy()).half()
    return {"qweight": interleaved(made.codes.T), "qzeros": interleaved(made.zeros.T), "scales": scales}


def compressed(made: Codes, bits: int = 4, zeros: bool = False, dtype: str = "bfloat16") -> dict[str, torch.Tensor]:
    """compressed-tensors' pack-quantized."""
    out = {
        "weight_packed": torch.from_numpy(words(made.codes.T, bits).T.copy()),
        "weight_scale": torch.from_numpy(made.scales).to(getattr(torch, dtype)),
        "weight_shape": torch.tensor(made.codes.shape),
    }
    if zeros:
        out["weight_zero_point"] = torch.from_numpy(words(made.zeros, bits).copy())
    return out


def compressed_int8(made: Codes, dtype: str = "float32") -> dict[str, torch.Tensor]:
    """compressed-tensors' int-quantized."""
    scale = torch.from_numpy(made.scales).to(getattr(torch, dtype))
    return {"weight": torch.from_numpy((made.codes - 128).astype(np.int8)), "weight_scale": scale}
