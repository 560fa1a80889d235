"""Is vLLM built as this plug-in expects? Looked up in vLLM itself: its version says little."""

from __future__ import annotations

import dataclasses
import inspect

from tailrace.integrations.vllm.translate import READ

# of SamplingMetadata, what is read
METADATA = {"max_num_logprobs", "logprob_token_ids", "logitsprocs"}
UPDATE = {"batch_size", "removed", "added", "moved"}
DRAFTS = {"draft_token_ids", "num_draft_tokens", "cu_num_sampled_tokens"}


def problem() -> str:
    """What is not as expected, in one sentence; "" if all is."""
    try:
        from vllm import SamplingParams
        from vllm.v1.outputs import LogprobsTensors, SamplerOutput
        from vllm.v1.sample import logits_processor
        from vllm.v1.sample.metadata import SamplingMetadata
        from vllm.v1.sample.rejection_sampler import RejectionSampler
        from vllm.v1.sample.sampler import Sampler
        from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
    except ImportError as error:
        return f"this vLLM has no V1 sampler as expected ({error})"
    missing = {
        "SamplingMetadata": METADATA - names(SamplingMetadata),
        "BatchUpdate": UPDATE - names(logits_processor.BatchUpdate),
        "SpecDecodeMetadata": DRAFTS - names(SpecDecodeMetadata),
        "SamplingParams": {name for name in READ if not hasattr(SamplingParams, name)},
        "Sampler.forward": {"logits", "sampling_metadata", "predict_bonus_token"} - arguments(Sampler.forward),
        "RejectionSampler.forward": {"metadata", "draft_probs", "logits", "sampling_metadata"}
        - arguments(RejectionSampler.forward),
        "build_logitsprocs": {"vllm_config", "device", "is_pin_memory"} - arguments(logits_processor.build_logitsprocs),
        "SamplerOutput": {"sampled_token_ids", "logprobs_tensors"} - names(SamplerOutput),
        "logits_processor": {"process_dict_updates", "BUILTIN_LOGITS_PROCESSORS"} - set(dir(logits_processor)),
        "LogprobsTensors": {"logprob_token_ids", "logprobs", "selected_token_ranks"} - set(LogprobsTensors._fields),
    }
    found = [f"{where} has no {', '.join(sorted(what))}" for where, what in missing.items() if what]
    return f"this vLLM is built differently: {'; '.join(found)}" if found else ""


def names(kind: type) -> set[str]:
    """Of a dataclass' fields."""
    return {field.name for field in dataclasses.fields(kind)}


def arguments(function: object) -> set[str]:
    """Of a function's parameters."""
    return set(inspect.signature(function).parameters)  # type: ignore[arg-type]
