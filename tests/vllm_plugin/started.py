"""vLLM really started, on a tiny model of random weights: `python started.py MODEL MODE` prints a line of JSON.

Modes: alone; masks, with sampling masks; tensor, two ranks of tensor parallelism; data, two engines of data
parallelism; following, requests whose fields follow the output; v2, its V2 runner, all of whose kernels and
tailrace's run in Triton's interpreter; v2-error, the same with an error in tailrace; v2-following and v2-drafts, the
same with FOLLOWING, without drafts and with drafts. stood: of each step with drafts, how many tokens its requests
got. The line has tokens, of each request; ranks, of each process what its sampler gave at each step; planted, the
same where each rank has keys of its own; fallbacks, of each process what vLLM's own sampler served.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from types import SimpleNamespace
from typing import Any, NoReturn

SEEDED: list[dict[str, Any]] = [
    {"seed": 1, "temperature": 0.8},
    {"seed": 2, "top_p": 0.8, "presence_penalty": 1.0},
    {"seed": 3, "top_k": 20, "repetition_penalty": 1.3},
    {"seed": 4, "min_p": 0.02, "logit_bias": {7: 3.0}},
    {"temperature": 0.0, "frequency_penalty": 0.7},
]
UNSEEDED: list[dict[str, Any]] = [{"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}]
MASKED: list[dict[str, Any]] = [
    {"seed": 1, "top_k": 4},
    {"seed": 2, "top_k": 30, "top_p": 0.5, "presence_penalty": 1.0},
    {"top_k": 3, "top_p": 0.9},
]
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_seqs": 8,
    "gpu_memory_utilization": 0.1,
    "disable_log_stats": True,
}
# vLLM's kernel for top-k and top-p does not run in the interpreter
UNCUT = [index for index, fields in enumerate(SEEDED) if not {"top_k", "top_p"} & set(fields)]
PROMPT, TOKENS = [5, 6, 7], 12
# fields of tailrace's that follow the output; the last two do not act beside drafts
FOLLOWING: list[dict[str, Any]] = [
    {"seed": 1, "extra_args": {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": []}},
    {"temperature": 0.0, "presence_penalty": 1.0, "extra_args": {"penalty_last_n": 2, "penalty_scope": "both"}},
    {"seed": 3, "temperature": 0.3, "extra_args": {"no_repeat_ngram_size": 1, "encoder_repetition_penalty": 1.5}},
    {"seed": 4, "extra_args": {"mirostat": 2, "mirostat_tau": 1.0}},
    {"seed": 5, "extra_args": {"forced_token_ids": [9, 8], "adaptive_target": 0.4}},
]
NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
# where the alone run's environment differs from the shell's
COMMON = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_CI_ENV": "1"}
COMMON |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}


def asked(count: int = TOKENS, kinds: list[dict[str, Any]] = SEEDED + UNSEEDED) -> list[Any]:
    from vllm import SamplingParams

    common = {"max_tokens": count, "ignore_eos": True, "detokenize": False}
    return [SamplingParams(**common, **fields) for fields in kinds]


def record(worker: Any) -> None:
    """In the process of a worker: keep what its sampler gives."""
    from vllm.v1.sample.sampler import Sampler

    forward, kept = Sampler.forward, []

    @functools.wraps(forward)
    def keeping(*args: Any, **more: Any) -> Any:
        output = forward(*args, **more)
        kept.append(output.sampled_token_ids[:, 0].tolist())
        return output

    Sampler.forward, Sampler.kept = keeping, kept


def recorded(worker: Any) -> tuple[list[list[int]], dict[str, int]]:
    from vllm.v1.sample.sampler import Sampler

    from tailrace.integrations.vllm.fallbacks import fallbacks

    return Sampler.kept, dict(fallbacks)


def own_keys(worker: Any) -> None:
    """The planted fault: each rank takes keys of its own for requests without a seed."""
    from tailrace.integrations.vllm.requests import BatchFollower
    from tailrace.sampling import KeySource

    assert BatchFollower.newest is not None
    BatchFollower.newest.slots.default_keys = KeySource(os.getpid())


def masked(model: str) -> dict[str, Any]:
    """One engine that returns sampling masks: of each request its tokens, masks, and logprobs."""
    from vllm import LLM, SamplingParams

    engine = LLM(model, return_sampling_mask=True, logprobs_mode="processed_logprobs", **ENGINE)
    common = {"max_tokens": TOKENS, "ignore_eos": True, "detokenize": False, "logprobs": 5}
    params = [SamplingParams(**common, **fields) for fields in MASKED]
    found = engine.generate([{"prompt_token_ids": PROMPT} for _ in params], params, use_tqdm=False)
    outputs = [one.outputs[0] for one in found]
    logprobs = [[{id: one.logprob for id, one in place.items()} for place in output.logprobs] for output in outputs]
    return {
        "tokens": [list(output.token_ids) for output in outputs],
        "masks": [output.sampling_mask.token_ids for output in outputs],
        "logprobs": logprobs,
    }


def together(model: str, ranks: int, params: list[Any], **more: Any) -> dict[str, Any]:
    """One engine of so many ranks."""
    from vllm import LLM

    engine = LLM(model, tensor_parallel_size=ranks, **ENGINE, **more)
    engine.collective_rpc(record)
    prompts = [{"prompt_token_ids": PROMPT} for _ in params]
    found = engine.generate(prompts, params, use_tqdm=False)
    ranks_found = engine.collective_rpc(recorded)
    if ranks > 1:
        engine.collective_rpc(own_keys)
        engine.generate(prompts, params, use_tqdm=False)
    steps = len(ranks_found[0][0])
    return {
        "tokens": [list(one.outputs[0].token_ids) for one in found],
        "ranks": [kept for kept, _ in ranks_found],
        "planted": [kept[steps:] for kept, _ in engine.collective_rpc(recorded)],
        "fallbacks": [counted for _, counted in ranks_found],
    }


async def apart(model: str) -> dict[str, Any]:
    """Two engines: each request by both."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model, data_parallel_size=2, **ENGINE))

    async def one(params: Any, rank: int, name: str) -> list[int]:
        stream = engine.generate({"prompt_token_ids": PROMPT}, params, name, data_parallel_rank=rank)
        return [list(output.outputs[0].token_ids) async for output in stream][-1]

    try:
        both = [[one(params, rank, f"{rank}-{i}") for i, params in enumerate(asked())] for rank in (0, 1)]
        return {"ranks": [await asyncio.gather(*each) for each in both]}
    finally:
        engine.shutdown()


def interpreted(
    model: str,
    planted: bool = False,
    kinds: list[dict[str, Any]] | None = None,
    stood: list[list[int]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The V2 runner asks for Triton with a device of its own; its interpreter needs none.

    Args:
        planted: tailrace's second draw raises an error. kinds: the fields of each request. stood: with drafts
            (repeat_last). more: of the engine.
    """
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    from triton.backends import backends

    device: Any = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
    backends["cpu"] = device
    from tailrace.integrations.vllm import v2
    from tailrace.sampling.sampler import Pending

    if stood is not None:
        repeat_last(stood)

    def wait(self: Pending) -> NoReturn:
        raise AssertionError("a step has waited for the device")

    Pending.wait = wait
    begin, calls = v2.Sampler.begin, []

    def failing(*args: Any) -> Pending:
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("planted")
        return begin(*args)

    if planted:
        v2.Sampler.begin = failing  # type: ignore[method-assign]
    v2.Sampler = functools.partial(v2.Sampler, backend="gpu")
    kinds = [SEEDED[index] for index in UNCUT] if planted else SEEDED + UNSEEDED if kinds is None else kinds
    return together(model, 1, asked(8 if more or kinds is FOLLOWING else 4, kinds), **more)


def repeat_last(stood: list[list[int]]) -> None:
    """Let vLLM draft the last token again: its own kernel for n-grams does not run in the interpreter. stood: gets of
    each step how many tokens its requests got."""
    from vllm.v1.worker.gpu.spec_decode.ngram import speculator
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    verify = RejectionSampler.__call__

    def propose(self: Any, batch: Any, *args: Any, **more: Any) -> Any:
        last = self.req_states.last_sampled_tokens[batch.idx_mapping.long()]
        return last.repeat(1, NGRAM["num_speculative_tokens"])

    @functools.wraps(verify)
    def count(*args: Any, **more: Any) -> Any:
        output = verify(*args, **more)
        stood.append(output.num_sampled.tolist())
        return output

    speculator.NgramGPUSpeculator.propose = propose
    RejectionSampler.__call__ = count


if __name__ == "__main__":
    os.environ |= COMMON
    folder, mode = sys.argv[1:]
    stood: list[list[int]] = []
    result = {
        "alone": lambda: together(folder, 1, asked()),
        "masks": lambda: masked(folder),
        "tensor": lambda: together(folder, 2, asked()),
        "data": lambda: asyncio.run(apart(folder)),
        "v2": lambda: interpreted(folder),
        "following": lambda: together(folder, 1, asked(8, FOLLOWING)),
        "v2-following": lambda: interpreted(folder, kinds=FOLLOWING),
        "v2-drafts": lambda: interpreted(folder, kinds=FOLLOWING[:-2], stood=stood, speculative_config=NGRAM),
        "v2-error": lambda: interpreted(folder, planted=True),
    }[mode]()
    print("\nRESULT " + json.dumps(result | {"stood": stood}), flush=True)
