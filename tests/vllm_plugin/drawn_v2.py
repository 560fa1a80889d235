"""vLLM's V2 sampler on random batches, with tailrace's draws in it: `python drawn_v2.py MODEL MODE` prints JSON.

All kernels run in Triton's interpreter, and a wait for the device is an error. Modes: masks, with sampling masks;
logprobs, without; planted, masks with vLLM's own logprobs left as they are. The line has rows: of each drawn token its
parameters, what vLLM's output says of it, and what tailrace's reference sampler says. kept: of each row that vLLM's own
sampler has drawn, whether its logprobs are those that vLLM gives alone.
"""

from __future__ import annotations

import json
import os
import random
import sys
from types import SimpleNamespace
from typing import Any, NoReturn

VOCAB, ROWS, STEPS, SEED = 301, 6, 12, 7
# of one request each; several may be drawn together
FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 7},
    {"temperature": 1.1, "min_p": 0.05, "logit_bias": {7: 4.0}},
    {"temperature": 1.2, "extra_args": {"top_n_sigma": 1.5}},
    {"temperature": 1.0, "top_k": 40, "extra_args": {"xtc_probability": 1.0, "xtc_threshold": 0.05}},
    {"temperature": 0.8, "extra_args": {"dynatemp_range": 0.6}},
    {"temperature": 1.0, "extra_args": {"typical_p": 0.6}},
    {"temperature": 1.0, "top_k": 60, "extra_args": {"smoothing_factor": 0.3}},
    {"temperature": 0.9, "top_k": 25, "extra_args": {"adaptive_target": 0.3}},
]

# a request that vLLM's own sampler serves
LEFT: dict[str, Any] = {"temperature": 0.6, "logprob_token_ids": [3, 5], "logprobs": 0}


def make_sampler(masks: bool) -> Any:
    """vLLM's, whose draws are tailrace's."""
    import torch
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.states import RequestState

    model = SimpleNamespace(logprobs_mode="processed_logprobs", return_sampling_mask=masks, seed=0)
    parallel = SimpleNamespace(data_parallel_rank=0)
    config: Any = SimpleNamespace(
        model_config=model, parallel_config=parallel, instance_id="test", reasoning_config=None
    )
    device = torch.device("cpu")
    states = RequestState(ROWS, 64, 64, 0, VOCAB, device)
    states.index_to_req_id |= {index: str(index) for index in range(ROWS)}
    return Sampler(config, ROWS, VOCAB, device, states, logprobs_mode=model.logprobs_mode, return_sampling_mask=masks)


def make_batch(indices: list[int], positions: list[int]) -> Any:
    """The batch of a step, as far as vLLM's sampler reads it."""
    import numpy as np
    import torch

    count = len(indices)
    index, places = torch.tensor(indices, dtype=torch.int32), torch.arange(count)
    lengths = torch.tensor(positions, dtype=torch.int32)
    return SimpleNamespace(
        num_reqs=count,
        idx_mapping=index,
        expanded_idx_mapping=index,
        idx_mapping_np=np.array(indices),
        cu_num_logits=torch.arange(count + 1, dtype=torch.int32),
        cu_num_logits_np=np.arange(count + 1),
        expanded_local_pos=torch.zeros(count, dtype=torch.int32),
        positions=lengths.long() - 1,
        logits_indices=places,
        input_ids=torch.zeros(count, dtype=torch.int64),
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
    )


def describe_reference(logits: Any, fields: dict[str, Any], position: int) -> dict[str, Any]:
    """The draw of this row by tailrace's reference sampler."""
    from tailrace.params import SamplingParams
    from tailrace.sampling import Rows, Sampler, Slots

    slots = Slots(1, VOCAB)
    named = {name: value for name, value in fields.items() if name != "extra_args"} | fields.get("extra_args", {})
    slots.add(0, SamplingParams(**named, logprobs_mode="processed", return_sampling_mask="top_k" in named), prompt=())
    found = Sampler(slots, backend="reference")(logits[None], Rows.plain([0], [0], [position]))
    [[token]], [entries] = found.tokens(), found.logprobs or [None]
    [entry] = entries or []
    top = [[int(id), float(value)] for id, value in zip(entry.top_ids, entry.top_logprobs, strict=True)]
    return {
        "token": token,
        "logprob": entry.logprob,
        "rank": entry.rank,
        "top": top,
        "mask": found.sampling_mask and found.sampling_mask.token_ids.tolist(),
    }


def describe_row(output: Any, row: int, count: int, masks: Any) -> dict[str, Any]:
    """What vLLM's output says of a row. count: its alternatives."""
    tensors = output.logprobs_tensors
    ids, values = tensors.logprob_token_ids[row].tolist(), tensors.logprobs[row].tolist()
    assert ids[0] == output.sampled_token_ids[row, 0].item()
    return {
        "token": ids[0],
        "logprob": values[0],
        "rank": tensors.selected_token_ranks[row].item(),
        "top": [list(pair) for pair in zip(ids[1 : 1 + count], values[1 : 1 + count], strict=True)],
        "mask": masks and masks.slice_request(row, 1).to_nested_list()[0],
    }


def draw_fields(drawn: random.Random, mode: str) -> dict[str, Any]:
    """A request of a server of this mode: beside masks vLLM asks for a temperature and top-k."""
    fields = drawn.choice(FIELDS) | {"logprobs": drawn.randint(0, 4)}
    return fields if mode == "logprobs" else {"top_k": 100, **fields, "temperature": fields["temperature"] or 0.5}


def draw_batches(mode: str) -> dict[str, Any]:
    import torch
    from vllm import SamplingParams

    from tailrace.integrations.vllm import v2
    from tailrace.integrations.vllm.fallbacks import fallbacks
    from tailrace.sampling.sampler import Pending

    if mode == "planted":
        setattr(v2.DrawnRequests, "add_reports", lambda *_: None)  # noqa: B010 — a planted fault
    sampler, drawn = make_sampler(mode != "logprobs"), random.Random(SEED)
    noise, wait = torch.Generator().manual_seed(SEED), Pending.wait
    rows, kept = [], []
    for step in range(STEPS):
        count = drawn.randint(1, ROWS)
        indices = drawn.sample(range(ROWS), count)
        left = drawn.randrange(count) if step % 3 == 2 else None  # a row of vLLM's own
        asked = [
            LEFT if row == left else draw_fields(drawn, mode) | {"seed": step * ROWS + row} for row in range(count)
        ]
        for index, fields in zip(indices, asked, strict=True):
            sampler.add_request(index, SamplingParams(**fields))
        sampler.apply_staged_writes()
        positions = [drawn.randint(1, 40) for _ in range(count)]
        logits = (torch.randn(count, VOCAB, generator=noise) * 3).to(drawn.choice([torch.float32, torch.bfloat16]))
        setattr(Pending, "wait", refuse_wait)  # noqa: B010 — of another class
        output = sampler(logits.clone(), make_batch(indices, positions))
        Pending.wait = wait
        masks = output.sampling_mask_tensors and output.sampling_mask_tensors.tolists()
        for row, fields in enumerate(asked):
            if row == left:
                wanted = (logits[row].float() / 0.6).log_softmax(-1)[[3, 5]]
                found = output.logprobs_tensors.logprobs[row, 1:3]
                kept.append(bool(torch.allclose(found, wanted, atol=1e-4)))
                continue
            found = describe_row(output, row, fields["logprobs"], masks)
            reference = describe_reference(logits[row], fields, positions[row])
            rows.append({"fields": fields, "found": found, "reference": reference})
    return {"rows": rows, "kept": kept, "fallbacks": dict(fallbacks)}


def refuse_wait(pending: Any) -> NoReturn:
    raise AssertionError("a step has waited for the device")


def install_in_interpreter(backend: Any) -> None:
    """Install the plug-in. The V2 runner asks for Triton with a device of its own; its interpreter needs none."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.backends import backends

    device: Any = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
    backends["cpu"] = device
    import functools

    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker.cpu import shm  # noqa: F401  (gives the V2 runner buffers of a CPU)

    from tailrace.integrations import vllm as plugin
    from tailrace.integrations.vllm import v2

    topk_topp_sampler.HAS_TRITON = False  # this kernel does not run in the interpreter
    plugin.register()
    v2.install_v2()
    v2.Sampler = functools.partial(v2.Sampler, backend=backend)


if __name__ == "__main__":
    install_in_interpreter("gpu")
    print("\nRESULT " + json.dumps(draw_batches(sys.argv[2])), flush=True)
