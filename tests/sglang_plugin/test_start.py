"""The start of a server, through SGLang's ServerArgs: tailrace stays the backend, or the server is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from batches import resolve
from sglang.srt.arg_groups import resolution_hooks, validation_hook
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.server_args import ServerArgs

from tailrace.integrations.sglang.hooks import ALGORITHMS, explain_refused_server

SEEDED: list[dict[str, Any]] = [
    {},
    {"enable_deterministic_inference": True},
    {"rl_on_policy_target": "fsdp"},
    {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4},
]


@pytest.mark.parametrize("flags", SEEDED)
def test_tailrace_stays_the_backend(model, flags):
    found = resolved_view(resolve(model, **flags))
    assert found.sampling_backend == "tailrace"
    assert found.enable_deterministic_inference == (
        flags.keys() & {"enable_deterministic_inference", "rl_on_policy_target"} != set()
    )


@pytest.mark.parametrize("flags", SEEDED[:3])
def test_without_the_hooks_sglang_takes_pytorch(model, flags, monkeypatch):
    """The reason for the hooks. (It also shows that the test above can fail.)"""
    resolve(model)
    monkeypatch.setattr(resolution_hooks, "_HOOKS", {})
    made = ServerArgs(
        model_path=model, device="cpu", attention_backend="torch_native", sampling_backend="tailrace", **flags
    )
    made.resolve_once()
    assert resolved_view(made).sampling_backend == "pytorch"


@pytest.mark.parametrize("flags", SEEDED[:3])
def test_another_backend_stays_another(model, flags):
    assert resolved_view(resolve(model, sampling_backend="pytorch", **flags)).sampling_backend == "pytorch"


WATERMARKED = {
    "watermark_config": None,
    "enable_watermark": True,
    "device": "cuda",
    "watermark_key": "12",
    "watermark_key_b": None,
    "watermark_context_window": 4,
    "watermark_mixing_probability": 0.5,
    "watermark_max_probability": 1.0,
    "watermark_default_enabled": True,
    "watermark_enforce_all": False,
    "enable_custom_logit_processor": False,
    "dllm_algorithm": None,
    "disaggregation_mode": "null",
    "speculative_algorithm": None,
    "pp_size": 1,
    "speculative_use_rejection_sampling": False,
}


def test_watermarks_start_with_tailrace(model, monkeypatch):
    resolve(model)
    given = SimpleNamespace(**WATERMARKED, sampling_backend="tailrace")
    monkeypatch.setattr(validation_hook, "resolving_view", lambda arguments: arguments)
    monkeypatch.setattr(validation_hook, "parse_watermark_key", lambda key: key)
    validation_hook.check_watermark_server_args(given)
    given.sampling_backend = "another"
    with pytest.raises(ValueError, match="does not support custom sampling backends"):
        validation_hook.check_watermark_server_args(given)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer_worker_num": 2}, "--tokenizer-worker-num must be 1"),
    ({"speculative_algorithm": "DFLASH"}, "--speculative-algorithm must be one of EAGLE"),
    ({"speculative_algorithm": "UNO"}, "--speculative-algorithm must be one of EAGLE"),
    ({"speculative_algorithm": "eagle3", "speculative_use_rejection_sampling": True}, "--speculative-use-rejection"),
    ({"speculative_algorithm": "EAGLE", "speculative_accept_threshold_acc": 0.9}, "--speculative-accept-threshold"),
    ({"speculative_algorithm": "EAGLE", "speculative_accept_threshold_single": 0.9}, "--speculative-accept-threshold"),
    ({"device": "npu"}, "--device must be cuda or cpu"),
    ({"dllm_algorithm": "LowConfidence"}, "--dllm-algorithm"),
]
PLAIN = {
    "device": "cuda",
    "tokenizer_worker_num": 1,
    "dllm_algorithm": None,
    "speculative_algorithm": None,
    "speculative_use_rejection_sampling": False,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
}


@pytest.mark.parametrize(("flags", "reason"), REFUSED)
def test_servers_that_tailrace_cannot_serve_are_refused(flags, reason):
    assert explain_refused_server(SimpleNamespace(**PLAIN)) == ""
    assert explain_refused_server(SimpleNamespace(**{**PLAIN, **flags})).startswith(reason)
    assert not (PLAIN.keys() | flags.keys()) - set(
        ServerArgs.__struct_fields__ if hasattr(ServerArgs, "__struct_fields__") else ServerArgs.__annotations__
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_servers_with_these_drafts_are_served(algorithm):
    assert explain_refused_server(SimpleNamespace(**{**PLAIN, "speculative_algorithm": algorithm})) == ""


def test_a_refused_server_does_not_start(model):
    """Through the whole of SGLang's resolution. Another backend starts."""
    flags = {
        "speculative_algorithm": "NGRAM",
        "speculative_num_draft_tokens": 4,
        "speculative_accept_threshold_acc": 0.9,
    }
    with pytest.raises(ValueError, match=r"^--sampling-backend tailrace: --speculative-accept-threshold"):
        resolve(model, **flags)
    assert resolved_view(resolve(model, sampling_backend="pytorch", **flags)).sampling_backend == "pytorch"
