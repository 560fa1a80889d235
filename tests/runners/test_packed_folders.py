"""Folders of GPTQ, AWQ and compressed-tensors: every weight is the one that was packed, kept in blocks or widened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from runners import packers
from runners.quantized_folder import INNER, LINEAR, VOCAB, WIDTH, Tensors, packed, random_weights, write
from runners.test_quantized_folder import config_for, in_this_process, loaded
from tailrace import kernels
from tailrace.errors import ModelLoadError
from tailrace.models import grids, resolve
from tailrace.models.blocks import find_block_type
from tailrace.models.tensors import index_tensors
from tailrace.runners.flat_batch import FlatTokens
from tailrace.runners.transformers import TransformersRunner

__all__ = ["in_this_process"]  # a fixture of every test here
UP = "model.layers.1.mlp.up_proj"


class Case(NamedTuple):
    """settings: config.json's. rounds: what is packed. packs: how. kept: types' names, or why they are dequantized."""

    settings: dict[str, Any]
    rounds: Callable[[torch.Tensor], packers.Codes]
    packs: Callable[[packers.Codes], Tensors]
    kept: str
    left: str = ""


def gptq(group: int, bits: int = 4, **fields: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": False, "desc_act": False, **fields}


def compressed(layout: str) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": {"format": layout}}}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
CASES = {
    "gptq, groups of 128": Case(gptq(128), lambda w: packers.rounded(w, 128), packers.gptq, "int4 with zero points"),
    "gptq, groups of 32, symmetric": Case(
        gptq(32, sym=True), lambda w: packers.rounded(w, 32, sym=True), packers.gptq, "int4"
    ),
    "gptq v2, groups of 64": Case(
        gptq(64, checkpoint_format="gptq_v2"),
        lambda w: packers.rounded(w, 64),
        lambda made: packers.gptq(made, version=2),
        "int4 with zero points",
    ),
    "gptq, 8 bits": Case(
        gptq(128, 8, sym=True),
        lambda w: packers.rounded(w, 128, 8, sym=True),
        lambda made: packers.gptq(made, 8),
        "int8",
    ),
    "gptq, in the order of activations": Case(
        gptq(64, desc_act=True),
        lambda w: packers.rounded(w, 64, act_order=True),
        packers.gptq,
        "",
        "in the order of activations",
    ),
    "gptq, groups of 16": Case(gptq(16), lambda w: packers.rounded(w, 16), packers.gptq, "", "in groups of 16"),
    "awq": Case(AWQ, lambda w: packers.rounded(w, 128), packers.awq, "int4 with zero points"),
    "compressed-tensors, int4": Case(
        compressed("pack-quantized"),
        lambda w: packers.rounded(w, 128, sym=True, scales="bf"),
        packers.compressed,
        "int4",
    ),
    "compressed-tensors, int4 with zero points and float32 scales": Case(
        compressed("pack-quantized"),
        lambda w: packers.rounded(w, 32, scales="f4"),
        lambda made: packers.compressed(made, zeros=True, dtype="float32"),
        "int4 with float32 scales and zero points",
    ),
    "compressed-tensors, int4 with float32 scales": Case(
        compressed("pack-quantized"),
        lambda w: packers.rounded(w, 64, sym=True, scales="f4"),
        lambda made: packers.compressed(made, dtype="float32"),
        "int4 with float32 scales",
    ),
    "compressed-tensors, int8 per output": Case(
        compressed("int-quantized"),
        lambda w: packers.rounded(w, w.shape[1], 8, sym=True, scales="f4"),
        packers.compressed_int8,
        "int8 with float32 scales",
    ),
}


class Made(NamedTuple):
    """A folder, and the weights that its packed matrices stand for."""

    case: Case
    folder: Path
    values: Tensors


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    case, tensors = CASES[request.param], random_weights(torch.float16)
    codes = {name: case.rounds(tensors[f"{name}.weight"].float()) for name in LINEAR}
    names = iter(LINEAR)
    folder = tmp_path_factory.mktemp("packed") / "tiny"
    write(folder, packed(tensors, lambda _: case.packs(codes[next(names)])), quantization_config=case.settings)
    return Made(case, folder, {name: torch.from_numpy(one.values) for name, one in codes.items()})


def tensor_of(folder: Path, name: str) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return file.get_tensor(name)


@pytest.mark.few(6)
def test_every_weight_is_the_one_that_was_packed(made: Made, tmp_path: Path):
    folder = resolve(config_for(made.folder, tmp_path, weights="quantized", dtype="float32"), progress=False).folder
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    if made.case.left:
        assert settings["left"] == {f"{made.case.left} became float32": len(LINEAR)}
    else:
        assert list(settings["names"].values()) == [made.case.kept]
        assert settings["left"] == {}
    for name in LINEAR:
        found = tensor_of(folder, f"{name}.weight")
        if not made.case.left:
            pack = kernels.pack_quantized(found, settings["types"][f"{name}.weight"], made.values[name].shape[1])
            found = kernels.quantized_rows(pack, torch.arange(len(found)), torch.float32)
        # code · scale and zero point · scale have 24 bits of float32 each, where float16's scales leave room for both
        most = 2 * 15 * 2.0**-24 * 0.06 if made.case.kept == "int4 with float32 scales and zero points" else 0
        assert (found - made.values[name]).abs().max() <= most, name
    assert set(index_tensors(folder / "model.safetensors")) == set(random_weights())


@pytest.mark.parametrize("made", ["awq"], indirect=True)
def test_another_order_of_nibbles_is_seen(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The negative control of the test above."""
    monkeypatch.setattr(grids, "AWQ_ORDER", list(range(8)))
    folder = resolve(config_for(made.folder, tmp_path, dtype="float32"), progress=False).folder
    found, expected = tensor_of(folder, f"{UP}.weight"), made.values[UP]
    assert torch.equal(found[::8], expected[::8])
    assert not torch.equal(found[1], expected[1])


def test_dequantized_it_is_a_folder_like_others(made: Made, tmp_path: Path):
    folder = resolve(config_for(made.folder, tmp_path), progress=False).folder
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    for name in LINEAR[:3]:
        assert torch.equal(tensor_of(folder, f"{name}.weight"), made.values[name].bfloat16())


@pytest.mark.few(1)
@pytest.mark.parametrize("made", ["gptq, groups of 128", "awq", "compressed-tensors, int8 per output"], indirect=True)
def test_logits_are_those_of_the_dequantized_folder(made: Made, tmp_path: Path):
    """But for activations in eight bits. The negative control: two layers' weights change places."""
    _, theirs = loaded(config_for(made.folder, tmp_path, dtype="float32"))
    _, ours = loaded(config_for(made.folder, tmp_path, weights="quantized", dtype="float32"))
    expected, got = theirs.paged.run_trial(), ours.paged.run_trial()
    assert (got - expected).norm() / expected.norm() < 0.03
    layers = ours.paged.model.model.layers
    layers[0].mlp, layers[1].mlp = layers[1].mlp, layers[0].mlp
    assert (ours.paged.run_trial() - expected).norm() / expected.norm() > 0.1


def pass_of(runner: TransformersRunner, parts: list[tuple[list[int], int]]) -> torch.Tensor:
    import numpy as np

    flat = FlatTokens()
    for tokens, end in parts:
        flat.add(tokens, end)
    flat.wanted = list(range(len(flat.token_ids)))
    return runner.forward(flat.make_batch(np.arange(len(parts) * 8, dtype=np.int32).reshape(len(parts), 8), 16)).clone()


@pytest.mark.parametrize(
    "made", ["gptq, groups of 128", "compressed-tensors, int4 with zero points and float32 scales"], indirect=True
)
def test_a_token_has_the_same_logits_in_any_company(made: Made, tmp_path: Path):
    _, runner = loaded(config_for(made.folder, tmp_path, weights="quantized"))
    ids = [(7 * i * i + 3) % VOCAB for i in range(60)]
    whole = pass_of(runner, [(ids, 60)])
    cut = [pass_of(runner, [(ids[a:b], b)]) for a, b in ((0, 1), (1, 34), (34, 60))]
    assert torch.equal(torch.cat(cut), whole)
    assert torch.equal(pass_of(runner, [(ids[:40], 40), (ids[::-1], 60)])[:40], whole[:40])


def test_float8_and_what_is_not_packed(tmp_path: Path):
    """Per output, per square of 128, and of the whole matrix; caches' and activations' scales are left out."""
    tensors, values = random_weights(), {}
    for i, name in enumerate(LINEAR):
        weight = tensors.pop(f"{name}.weight").float()
        squares = torch.ones(-(-weight.shape[0] // 128), weight.shape[1] // 128).uniform_(0.001, 0.01)
        scale = (squares, torch.rand(len(weight), 1) / 200, torch.tensor([0.004]))[i % 3].bfloat16()
        wide = scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1) if i % 3 == 0 else scale.float()
        eight = (weight / wide).to(torch.float8_e4m3fn)
        tensors |= {f"{name}.weight": eight, f"{name}.weight_scale": scale, f"{name}.input_scale": scale[:1]}
        values[name] = eight.float() * wide
    tensors["model.layers.0.self_attn.k_scale"] = torch.ones(1)
    folder = write(tmp_path / "tiny", tensors, quantization_config=compressed("float-quantized"))
    found = resolve(config_for(folder, tmp_path, weights="quantized", dtype="float32"), progress=False).folder
    for name, expected in values.items():
        assert torch.equal(tensor_of(found, f"{name}.weight"), expected), name
    settings = json.loads((found / "config.json").read_text())["quantization_config"]
    assert settings["left"] == {"of float8 became float32": len(LINEAR)}
    assert set(index_tensors(found / "model.safetensors")) == set(random_weights())


def test_zero_points_of_zero_come_back(tmp_path: Path):
    """GPTQModel takes one from the word as a whole, so a zero point of 0 borrows from the next."""
    tensors = random_weights(torch.float16)
    codes = packers.rounded(tensors[f"{UP}.weight"].float(), 128)
    zeros = codes.zeros.copy()
    zeros[::3] = 0
    parts = packers.gptq(codes, version=2)
    words = packers.words(zeros, 4).view("uint32") - 0x11111111
    parts["qzeros"] = torch.from_numpy(words.astype("uint32").view("int32").T.copy())
    del tensors[f"{UP}.weight"]
    tensors |= {f"{UP}.{suffix}": part for suffix, part in parts.items()}
    folder = write(tmp_path / "tiny", tensors, quantization_config=gptq(128))
    found = resolve(config_for(folder, tmp_path, weights="quantized", dtype="float32"), progress=False).folder
    pack = kernels.pack_quantized(tensor_of(found, f"{UP}.weight"), 1000, WIDTH)
    expected = (codes.codes - zeros[:, codes.order]).astype("float32") * codes.scales[:, codes.order]
    assert torch.equal(kernels.quantized_rows(pack, torch.arange(INNER), torch.float32), torch.from_numpy(expected))


@pytest.mark.parametrize(("zero", "name"), [(0, "int4 with zero points"), (-1, None), (255, "int4 with zero points")])
def test_zero_points_that_are_no_bytes_have_no_blocks(zero: int, name: str | None):
    kind = find_block_type(4, np.array([[7, zero]], np.int16), np.ones((1, 2), np.float32))
    assert (kind.name if kind else None) == name


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (gptq(128, 3), "gptq of 3 bits is not read, only of 4 and 8"),
        (gptq(128, checkpoint_format="marlin"), "gptq in the layout marlin is not read, only gptq and gptq_v2"),
        (AWQ | {"version": "gemv"}, "awq in the layout gemv is not read, only gemm"),
        (compressed("nvfp4-pack-quantized"), "compressed-tensors' format nvfp4-pack-quantized is not read"),
        (
            compressed("pack-quantized") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparse matrices are not",
        ),
        (
            compressed("pack-quantized") | {"transform_config": {"config_groups": {"a": {}}}},
            "transforms of weights are",
        ),
        ({"quant_method": "bitsandbytes"}, "and tiny has those of bitsandbytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_formats_that_are_refused(tmp_path: Path, settings: dict[str, Any], said: str):
    packed = random_weights() | {"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)}  # not plain floats
    folder = write(tmp_path / "tiny", packed, quantization_config=settings)
    with pytest.raises(ModelLoadError, match=said):
        resolve(config_for(folder, tmp_path, weights="quantized"), progress=False)


def broken(suffix: str, change: Callable[[torch.Tensor], torch.Tensor] | None, case: str = "gptq, groups of 128"):
    """A change to one part of one matrix; None: it is missing."""
    return case, suffix, change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (broken("scales", None), r"up_proj\.scales is missing, and there is model\.layers\.1\.mlp\.up_proj\.\w+$"),
        (broken("qweight", None), r"up_proj\.qweight is missing"),
        (broken("qzeros", None), r"up_proj\.qzeros is missing"),
        (broken("scales", lambda t: t[:, :-1]), r"up_proj\.scales is F16 \[2, 511\], and should be .* \[…, 512\]"),
        (broken("qzeros", lambda t: t[:1]), r"up_proj\.qzeros is I32 \[1, 64\], and should be I32 \[2, 64\]"),
        (broken("qweight", lambda t: t.float()), r"up_proj\.qweight is F32"),
        (broken("scales", lambda t: t.fill_(torch.inf)), r"up_proj\.scales has a scale that is not finite"),
        (broken("g_idx", lambda t: t + 1), r"up_proj\.g_idx names group 2, and there are 2"),
        (broken("g_idx", lambda t: t - 1), r"up_proj\.g_idx names group -1, and there are 2"),
        (broken("qzeros", lambda t: t[:, :-1], "awq"), r"up_proj\.qzeros is I32 \[2, 63\]"),
        (broken("weight_shape", None, "compressed-tensors, int4"), r"up_proj\.weight_shape is missing"),
        (broken("weight_scale", None, "compressed-tensors, int4"), r"up_proj\.weight_scale is missing"),
        (broken("weight_scale", lambda t: t[:-1], "compressed-tensors, int4"), r"up_proj\.weight_scale is \[511, 2\]"),
        (
            broken("weight_scale", None, "compressed-tensors, int8 per output"),
            r"up_proj\.weight is I8, and .*up_proj\.weight_scale is missing",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_parts_are_a_sentence(tmp_path: Path, damage: Any, said: str):
    name, suffix, change = damage
    case, tensors = CASES[name], random_weights(torch.float16)
    tensors = packed(tensors, lambda w: case.packs(case.rounds(w)), [UP])
    part = tensors.pop(f"{UP}.{suffix}")
    if change is not None:
        tensors[f"{UP}.{suffix}"] = change(part)
    folder = write(tmp_path / "tiny", tensors, quantization_config=case.settings)
    with pytest.raises(ModelLoadError, match=rf"can't be converted: tensor model\.layers\.1\.mlp\.{said}"):
        resolve(config_for(folder, tmp_path), progress=False)
