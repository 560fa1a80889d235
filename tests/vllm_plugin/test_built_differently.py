"""A vLLM that lacks a name: what is lost with it, and what the log says."""

from __future__ import annotations

import importlib.util
import logging
import re
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import crowd  # noqa: F401  (registers the plug-in, and sets Triton's interpreter before Triton is imported)
import pytest
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1 import outputs
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample import sampler as of_v2
from vllm.v1.worker.gpu.spec_decode import rejection_sampler as of_drafts
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tailrace.integrations.vllm import layout, masks, patches, register, v2

REPLACED = [*patches.OURS, *(() if layout.describe_missing(masks.WANTED) else masks.OURS)]
V2 = ("__init__", "__call__", "add_request", "sample")


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is replaced is vLLM's own again; its log is heard."""
    for name in REPLACED:
        monkeypatch.setattr(name, resolve_name(name).theirs)
    for name in (*(f"{v2.SAMPLER}.{one}" for one in V2), f"{v2.VERIFIER}._verify", f"{v2.VERIFIER}.__call__"):
        monkeypatch.setattr(name, resolve_name(name))  # a test may replace it
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)


@pytest.mark.skipif(bool(layout.describe_missing(masks.WANTED)), reason="this vLLM has no place for masks")
@pytest.mark.parametrize(
    ("where", "name"),
    [
        (outputs, "SamplingMaskLists"),
        (VllmConfig, "_verify_sampling_replay_config"),
        (GPUModelRunner, "sample_tokens"),
    ],
)
def test_without_a_place_for_masks_they_alone_are_lost(
    where: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(where, name)
    spec = importlib.util.spec_from_file_location("masks_again", masks.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)  # nothing that may be missing is imported at its top
    monkeypatch.setattr(patches, "masks", again)
    with caplog.at_level("INFO", "vllm.tailrace"):
        register()
    assert hasattr(Sampler.forward, "theirs")
    [line] = [one.getMessage() for one in caplog.records if one.name == "vllm.tailrace"]
    assert line.startswith("tailrace gives vLLM's V1 runner no sampling masks: this vLLM is built differently")
    assert name in line


def test_where_something_else_is_gone_nothing_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(SamplingParams, "_verify_args")
    register()
    assert not hasattr(Sampler.forward, "theirs")
    assert "tailrace is off" in caplog.text


@pytest.mark.parametrize(("where", "name"), [(of_v2, "Sampler"), (of_v2.Sampler, "add_request")])
def test_another_v2_sampler_samples_by_itself(
    where: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = {one: getattr(of_v2.Sampler, one) for one in V2}
    theirs = of_v2.Sampler
    monkeypatch.delattr(where, name)
    v2.install_v2()
    assert "samples by itself in its V2 runner: this vLLM is built differently" in caplog.text
    assert all(getattr(theirs, one, before[one]) is before[one] for one in V2)


def test_a_v2_sampler_that_is_told_less_samples_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As vLLM 0.30's, whose sampler has the same names."""

    def sample(self: Any, logits: Any, expanded_idx_mapping: Any, idx_mapping: Any, idx_mapping_np: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(of_v2.Sampler, "sample", sample)
    v2.install_v2()
    assert re.search(r"tailrace is off, .* \S+Sampler\.\w+ begins with .* in the place of \w+", caplog.text)
    assert not any(hasattr(getattr(of_v2.Sampler, one), "theirs") for one in V2)


def test_what_v2_leaves_to_vllm() -> None:
    """Drafts, and a sampler whose own draw would be lost, as that of vLLM's watermarks."""

    class Watermarked(of_v2.Sampler):
        pass

    theirs, other = object.__new__(of_v2.Sampler), object.__new__(Watermarked)

    def reason(sampler: Any, **drafts: Any) -> str:
        made = SimpleNamespace(num_speculative_tokens=2, **drafts) if drafts else None
        config = SimpleNamespace(speculative_config=made)
        return v2.why_not(sampler, {"num_speculative_tokens": 3 if drafts else 1, "vllm_config": config})

    assert reason(theirs) == ""
    assert "(Watermarked)" in reason(other)
    greedy = {"draft_sample_method": "greedy"}
    assert "verifies them otherwise" in reason(theirs, **greedy)  # nothing is replaced yet
    v2.install_v2()
    assert reason(theirs, **greedy) == reason(theirs, rejection_sample_method="block", **greedy) == ""
    assert "draft_sample_method" in reason(theirs, draft_sample_method="probabilistic")
    assert "the method fly" in reason(theirs, rejection_sample_method="fly", **greedy)
    assert "the device decides" in reason(theirs, enable_adaptive_verification=True, **greedy)


def test_another_v2_verifier_keeps_its_drafts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """tailrace draws on servers without drafts all the same."""
    monkeypatch.delattr(of_drafts.RejectionSampler, "_verify")
    v2.install_v2()
    assert "tailrace leaves drafts in vLLM's V2 runner to vLLM" in caplog.text
    assert hasattr(of_v2.Sampler.__init__, "theirs")
