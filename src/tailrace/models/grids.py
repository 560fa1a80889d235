"""Matrices as GPTQ, AWQ and compressed-tensors pack them: codes of 4 or 8 bits on a grid, or float8. Part of
convert_folder.py's process.

A weight is (code − zero point) · scale, with the zero point and the scale of its output and its group of inputs. The
layouts are those of AutoGPTQ and GPTQModel (qlinear's `pack`), AutoAWQ (WQLinear_GEMM) and compressed-tensors
(compressors/pack_quantized, compressors/naive_quantized).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from tailrace.errors import ModelLoadError
from tailrace.models.blocks import FLOATS, map_tensor, widen_floats
from tailrace.models.tensors import FileTensor

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the output that stands in each nibble of a word, from the lowest on
FLOAT8 = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
GPTQ = ("qweight", "qzeros", "scales", "g_idx")
WEIGHT_SCALES = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
# method → suffixes of a packed matrix, and of what only quantized activations and caches need
SUFFIXES = {"gptq": GPTQ, "awq": GPTQ, "compressed-tensors": WEIGHT_SCALES}
DROPPED = ("input_scale", "input_zero_point", "output_scale", "output_zero_point", "k_scale", "v_scale", "q_scale")
FORMATS = {"dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"}

Parts = dict[str, FileTensor]  # of a packed matrix, by suffix


class Grid(NamedTuple):
    """A matrix [N, K].

    - bits: of a code, 0 for float8.
    - codes: a function that unpacks the codes, uint8 [N, K] (or float32).
    - zeros: int16 [N, G].
    - scales: float32 [N, G].
    - groups: int [K], every input's group; None: G groups of K / G.
    """

    name: str
    shape: tuple[int, int]
    bits: int
    codes: Callable[[], np.ndarray]
    zeros: np.ndarray
    scales: np.ndarray
    groups: np.ndarray | None = None

    def rows(self, codes: np.ndarray, first: int, last: int) -> np.ndarray:
        """Return the weights of some outputs, float32. codes: of all of them."""
        groups = (
            np.arange(self.shape[1]) * self.scales.shape[1] // self.shape[1] if self.groups is None else self.groups
        )
        zeros, scales = self.zeros[first:last, groups], self.scales[first:last, groups]
        return (codes[first:last].astype(np.float32) - zeros) * scales


def check_method(settings: dict[str, Any]) -> None:
    """Raise ModelLoadError unless a folder's `quantization_config` is of a kind that is read here."""
    method = settings["quant_method"]
    if method == "compressed-tensors":
        groups = (settings.get("config_groups") or {}).values()
        found = {settings.get("format"), *(group.get("format") for group in groups)} - {None}
        if problem := sorted(found - FORMATS):
            raise ModelLoadError(f"compressed-tensors' format {problem[0]} is not read")
        if (settings.get("sparsity_config") or {}).get("format", "dense") != "dense":
            raise ModelLoadError("compressed-tensors' sparse matrices are not read")
        if (settings.get("transform_config") or {}).get("config_groups"):
            raise ModelLoadError("compressed-tensors' transforms of weights are not read")
        return
    layout = str(settings.get("checkpoint_format") or settings.get("format") or settings.get("version") or "").lower()
    bits, known = settings.get("bits", settings.get("w_bit")), ("gptq", "gptq_v2") if method == "gptq" else ("gemm",)
    if layout and layout not in known:
        raise ModelLoadError(f"{method} in the layout {layout} is not read, only {' and '.join(known)}")
    if bits not in ((4, 8) if method == "gptq" else (4,)):
        raise ModelLoadError(f"{method} of {bits} bits is not read, only of 4{' and 8' * (method == 'gptq')}")


def read_grids(tensors: dict[str, FileTensor], settings: dict[str, Any]) -> tuple[list[Grid], list[FileTensor]]:
    """Return the packed matrices, and the tensors that are none.

    Raises:
        ModelLoadError: a part of a matrix is missing, or its dtype or shape is wrong; the sentence names the tensor.
    """
    check_method(settings)
    method = settings["quant_method"]
    suffixes = SUFFIXES[method]
    found: dict[str, Parts] = {}
    for name, tensor in tensors.items():
        prefix, _, suffix = name.rpartition(".")
        if suffix in suffixes:
            found.setdefault(prefix, {})[suffix] = tensor
    if not found and method != "compressed-tensors":  # which may leave all matrices dense
        raise ModelLoadError(f"config.json says {method}, and no tensor is packed so (there is no …{suffixes[0]})")
    for prefix, parts in found.items():
        if method == "compressed-tensors" and f"{prefix}.weight" in tensors:
            parts["weight"] = tensors[f"{prefix}.weight"]
    used = {tensor.name for parts in found.values() for tensor in parts.values()}
    rest = [tensor for name, tensor in tensors.items() if name not in used and name.rpartition(".")[2] not in DROPPED]
    for tensor in rest:
        if tensor.dtype in ("I8", *FLOAT8) and tensor.name.endswith(".weight"):
            raise ModelLoadError(f"tensor {tensor.name} is {tensor.dtype}, and {tensor.name}_scale is missing")
    return [READERS[method](prefix, parts, settings) for prefix, parts in found.items()], rest


def get_part(
    prefix: str, parts: Parts, suffix: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...]
) -> FileTensor:
    """Return a part of a packed matrix. shape: None where any size will do.

    Raises:
        ModelLoadError: it is missing, or has another dtype or shape.
    """
    if suffix not in parts:
        raise ModelLoadError(f"tensor {prefix}.{suffix} is missing, and there is {next(iter(parts.values())).name}")
    tensor = parts[suffix]
    fits = len(tensor.shape) == len(shape) and all(w in (None, s) for s, w in zip(tensor.shape, shape, strict=True))
    if tensor.dtype not in dtypes or not fits:
        wanted = f"{' or '.join(dtypes)} [{', '.join('…' if size is None else str(size) for size in shape)}]"
        raise ModelLoadError(f"tensor {tensor.name} is {tensor.dtype} {list(tensor.shape)}, and should be {wanted}")
    return tensor


def unpack_fields(words: np.ndarray, bits: int) -> np.ndarray:
    """Return the fields of 4 or 8 bits in words [.., W] of 32 bits: uint8 [.., W · 32 / bits], the lowest first."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    return np.stack([octets & 15, octets >> 4], -1).reshape(*octets.shape[:-1], -1)


def read_scales(tensor: FileTensor) -> np.ndarray:
    """Return scales in float32.

    Raises:
        ModelLoadError: one is not finite.
    """
    scales = widen_floats(tensor, np.asarray(map_tensor(tensor)))
    if not np.isfinite(scales).all():
        raise ModelLoadError(f"tensor {tensor.name} has a scale that is not finite")
    return scales


def read_group_order(prefix: str, parts: Parts, suffix: str, width: int, count: int) -> np.ndarray | None:
    """Return every input's group; None where they follow each other, or the file has zeros in their place."""
    if suffix not in parts:
        return None
    found = np.asarray(map_tensor(get_part(prefix, parts, suffix, ("I32",), (width,))))
    usual = width % count == 0 and (found == np.arange(width) * count // width).all()
    if usual or not found.any():
        return None
    if found.min() < 0 or found.max() >= count:
        wrong = min(found.min(), 0) or found.max()
        raise ModelLoadError(f"tensor {prefix}.{suffix} names group {wrong}, and there are {count}")
    return found


def check_groups(prefix: str, width: int, count: int, groups: np.ndarray | None) -> None:
    """Raise ModelLoadError if inputs can't stand in so many groups of one size."""
    if not count or (groups is None and width % count):
        raise ModelLoadError(f"{prefix} has {width} inputs, which don't divide into its {count} groups")


def read_gptq(prefix: str, parts: Parts, settings: dict[str, Any]) -> Grid:
    """Read GPTQ's tensors.

    - qweight [K · bits / 32, N], words along the inputs
    - qzeros [G, N · bits / 32]
    - scales [G, N]
    """
    bits = settings["bits"]
    weight = get_part(prefix, parts, "qweight", ("I32",), (None, None))
    width, outputs = weight.shape[0] * 32 // bits, weight.shape[1]
    scales = get_part(prefix, parts, "scales", FLOATS, (None, outputs))
    count = scales.shape[0]
    zeros = map_tensor(get_part(prefix, parts, "qzeros", ("I32",), (count, outputs * bits // 32))).view(np.uint32)
    if str(settings.get("checkpoint_format") or settings.get("format") or "gptq").lower() == "gptq":
        # one less is stored, taken from the word as a whole; what was borrowed comes back by adding so
        zeros = zeros + np.uint32(0x11111111 if bits == 4 else 0x01010101)
    groups = read_group_order(prefix, parts, "g_idx", width, count)
    check_groups(prefix, width, count, groups)

    def unpack_codes() -> np.ndarray:
        return (
            unpack_fields(np.asarray(map_tensor(weight))[:, :, None], bits).transpose(1, 0, 2).reshape(outputs, width)
        )

    return Grid(
        prefix,
        (outputs, width),
        bits,
        unpack_codes,
        unpack_fields(zeros, bits).T.astype(np.int16),
        read_scales(scales).T,
        groups,
    )


def read_awq(prefix: str, parts: Parts, settings: dict[str, Any]) -> Grid:
    """Read AWQ's tensors.

    - qweight [K, N / 8], words along the outputs, in AWQ_ORDER
    - qzeros [G, N / 8], the same
    - scales [G, N]
    """
    weight = get_part(prefix, parts, "qweight", ("I32",), (None, None))
    width, outputs = weight.shape[0], weight.shape[1] * 8
    scales = get_part(prefix, parts, "scales", FLOATS, (None, outputs))
    count = scales.shape[0]
    zeros = get_part(prefix, parts, "qzeros", ("I32",), (count, outputs // 8))
    check_groups(prefix, width, count, None)

    def unpack_words(tensor: FileTensor) -> np.ndarray:
        nibbles = unpack_fields(np.asarray(map_tensor(tensor)), 4).reshape(tensor.shape[0], -1, 8)
        return nibbles[:, :, np.argsort(AWQ_ORDER)].reshape(tensor.shape[0], -1).T

    zero_points = unpack_words(zeros).astype(np.int16)
    return Grid(prefix, (outputs, width), 4, lambda: unpack_words(weight), zero_points, read_scales(scales).T)


def read_compressed(prefix: str, parts: Parts, settings: dict[str, Any]) -> Grid:
    """Read the tensors of compressed-tensors.

    - weight_packed [N, K · bits / 32], words along the inputs, or weight [N, K] of int8 or float8
    - weight_scale [N, G], or one of the whole matrix
    - weight_zero_point [N, G], or packed along the outputs
    """
    if "weight_packed" in parts or "weight" not in parts:
        outputs, width = np.asarray(map_tensor(get_part(prefix, parts, "weight_shape", ("I64", "I32"), (2,)))).tolist()
        weight = get_part(prefix, parts, "weight_packed", ("I32",), (outputs, None))
        bits = next((bits for bits in (4, 8) if -(-width * bits // 32) == weight.shape[1]), 0)
        if not bits:
            raise ModelLoadError(f"tensor {weight.name} has {weight.shape[1]} words for {width} codes: not 4 or 8 bits")
    else:
        weight = get_part(prefix, parts, "weight", ("I8", *FLOAT8), (None, None))
        outputs, width = weight.shape
        bits = 8 if weight.dtype == "I8" else 0
    dims = len(parts["weight_scale"].shape) if "weight_scale" in parts else 0
    scales = broadcast_scales(get_part(prefix, parts, "weight_scale", FLOATS, (None,) * dims), (outputs, width))
    groups = read_group_order(prefix, parts, "weight_g_idx", width, scales.shape[1])
    check_groups(prefix, width, scales.shape[1], groups)
    zeros = np.full(scales.shape, 1 << bits >> 1 if bits else 0, np.int16)
    if "weight_zero_point" in parts:
        zeros = zero_points(prefix, parts, bits, scales.shape)
    return Grid(prefix, (outputs, width), bits, lambda: compressed_codes(weight, bits, width), zeros, scales, groups)


def compressed_codes(weight: FileTensor, bits: int, width: int) -> np.ndarray:
    """Return codes [N, K] of 4 or 8 bits, or of float8 in float32."""
    values = np.asarray(map_tensor(weight))
    if weight.dtype in FLOAT8:
        return torch.from_numpy(values.copy()).view(FLOAT8[weight.dtype]).view(weight.shape).float().numpy()
    return values.view(np.uint8) ^ 128 if weight.dtype == "I8" else unpack_fields(values, bits)[:, :width]


def broadcast_scales(tensor: FileTensor, shape: tuple[int, int]) -> np.ndarray:
    """Return scales [N, G] from those of the whole matrix, of outputs, of groups, or of squares of 128."""
    scales = read_scales(tensor)
    if scales.size == 1:
        return np.broadcast_to(scales.reshape(1, 1), (shape[0], 1))
    if scales.ndim == 1:
        scales = scales[:, None]
    if scales.shape == (-(-shape[0] // 128), shape[1] // 128) and shape[1] % 128 == 0:
        scales = scales.repeat(128, 0)[: shape[0]]
    if scales.ndim != 2 or len(scales) != shape[0]:
        raise ModelLoadError(
            f"tensor {tensor.name} is {list(tensor.shape)}, which is no scale of {list(shape)} weights"
        )
    return scales


def zero_points(prefix: str, parts: Parts, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return zero points [N, G], as far above zero as codes are."""
    tensor = parts["weight_zero_point"]
    if "weight_packed" in parts and tensor.dtype == "I32":
        tensor = get_part(prefix, parts, "weight_zero_point", ("I32",), (-(-shape[0] * bits // 32), shape[1]))
        return unpack_fields(np.asarray(map_tensor(tensor)).T, bits)[:, : shape[0]].T.astype(np.int16)
    if not bits:
        return np.zeros(shape, np.int16)
    tensor = get_part(prefix, parts, "weight_zero_point", ("I8",), (None,) * len(tensor.shape))
    found = np.asarray(map_tensor(tensor)).astype(np.int16).reshape(-1, shape[1] if tensor.size > 1 else 1)
    if len(found) not in (1, shape[0]):
        raise ModelLoadError(f"tensor {tensor.name} is {list(tensor.shape)}, and should be {list(shape)}")
    return np.broadcast_to(found, shape) + (1 << bits >> 1)


READERS: dict[str, Callable[[str, Parts, dict[str, Any]], Grid]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    "compressed-tensors": read_compressed,
}
