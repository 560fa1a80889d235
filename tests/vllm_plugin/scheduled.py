"""vLLM's own scheduler with a prefix cache and drafts: `python scheduled.py MODEL MODE` prints a line of JSON.

Modes:
- plain: without drafts and cache.
- drafted: with n-gram drafts, blocks of 32 tokens and a prefix cache; greedy: greedy requests alone.
- odd: the same with the drafts of odd_drafts.py.
- near, eagle, medusa: half of the requests with the drafts of a model of drafters.py. near and eagle draw their drafts,
  and vLLM gives the verifier their distributions; medusa takes the likeliest tokens. near also draws short answers.
- split: long prompts are split, and requests are preempted.
- refused: beside requests that vLLM serves itself.
- masked: with sampling masks.
- faulty: tailrace raises errors, one kind after the other; at last none. faulty-near: the same with drafts of near.

The line has tokens: of each request, the tokens of each of its sequences; logprobs: of each request that asked, those
of its prompt and of its tokens, as [id, logprob] of each listed token; masks: where there are some; padded: how many
draft ids of −1 the verifier was given; beyond: how many beyond the vocabulary; drafts: how many others; dense: how many
of all these came with a distribution; accepted: how many draft tokens stood; preempted: how many requests; fallbacks:
what vLLM's own sampler served; free: the short answers of near (free_draws.py). In modes of errors it has such a record
for each kind.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from drafters import drafter_folder
from free_draws import draw_answers
from launched import VOCAB
from started import COMMON

BLOCK, DRAFTS = 32, 3
ENGINE: dict[str, Any] = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 160,
    "max_num_seqs": 8,
    "gpu_memory_utilization": 0.1,
    "disable_log_stats": True,
    "block_size": BLOCK,
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 1024,
}
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
ODD = {"method": "custom_class", "model": "odd_drafts.OddDrafts", "num_speculative_tokens": DRAFTS}
DRAWN = {"num_speculative_tokens": DRAFTS, "draft_sample_method": "probabilistic"}
CACHED = {"enable_prefix_caching": True, "speculative_config": NGRAM}
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "drafted": CACHED,
    "split": {**CACHED, "max_num_batched_tokens": BLOCK, "num_gpu_blocks_override": 10},
    "greedy": CACHED,
    "odd": {**CACHED, "speculative_config": ODD},
    "near": {**CACHED, "speculative_config": {**DRAWN, "method": "draft_model"}, "max_num_seqs": 32},
    "eagle": {**CACHED, "speculative_config": {**DRAWN, "method": "eagle"}},
    "medusa": {**CACHED, "speculative_config": {"method": "medusa", "num_speculative_tokens": DRAFTS}},
    "faulty": {**CACHED, "max_logprobs": -1},
    "faulty-near": {**CACHED, "speculative_config": {**DRAWN, "method": "draft_model"}, "max_logprobs": -1},
    "refused": {**CACHED, "max_logprobs": -1},
    "masked": {**CACHED, "return_sampling_mask": True, "logprobs_mode": "processed_logprobs"},
}
BY_MODEL = ("near", "eagle", "medusa")
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "bb"]}, "on": {"type": "boolean"}},
    "required": ["kind", "on"],
    "additionalProperties": False,
}
# greedy, or with a seed: the same tokens in all modes
FIXED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 2},
    {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.0, "min_tokens": 6, "stop_token_ids": list(range(0, VOCAB, 2))},
    {"temperature": 0.0, "json": SCHEMA},
    {"temperature": 0.0, "regex": "(ab|cd){4,9}x"},
    {"temperature": 0.0, "bad_words": ["a", "bc"], "allowed_token_ids": list(range(40, 140))},
    {"temperature": 0.0, "bad_words": ["b"], "prompt_logprobs": 2, "logprobs": 1},
    {"seed": 1, "temperature": 0.7},
    {"seed": 2, "top_p": 0.9, "presence_penalty": 0.5, "logprobs": 0},
    {"seed": 3, "top_k": 8, "n": 2},
    {"seed": 4, "top_k": 30, "min_tokens": 5, "stop_token_ids": list(range(0, VOCAB, 3))},
    {"seed": 5, "temperature": 0.9, "json": SCHEMA},
    {"seed": 7, "top_p": 0.8, "bad_words": ["a", "bc"], "prompt_logprobs": 0, "logprobs": 2},
    {"seed": 8, "min_p": 0.05, "logit_bias": {7: 3.0, 300: 2.0}, "logprobs": 1},
    {"seed": 6, "temperature": 0.6, "extra_args": {"dry_multiplier": 0.8, "top_n_sigma": 2.0}},
]
FREE: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "n": 3},
    {"temperature": 1.0, "regex": "[a-d]{3,12}"},
    {"temperature": 1.0, "extra_args": {"mirostat": 2}, "logprobs": 3},
]
# vLLM's own verification of sampled drafts ends on a CPU, and its worker where a prompt with a seed is split
LEFT_OUT = {"greedy": ("seed", "free"), "split": "seed"}
REFUSED: dict[str, Any] = {"temperature": 0.0, "logprobs": -1}
MASKED: list[dict[str, Any]] = [{"temperature": 0.8, "top_k": 4}, {"top_k": 30, "top_p": 0.5, "seed": 3}]
# of tailrace's own functions; those of vLLM's that it replaces are called by each of them
FAULTS = {
    "update": "tailrace.integrations.vllm.requests.process_dict_updates",
    "ready": "tailrace.integrations.vllm.requests.BatchFollower.ready",
    "join": "tailrace.integrations.vllm.translate.translate_params",
    "add": "tailrace.sampling.Slots.add",
    "commit": "tailrace.sampling.Slots.commit",
    "remove": "tailrace.sampling.Slots.remove",
    "begin": "tailrace.sampling.Sampler.begin",
    "drafted": "tailrace.integrations.vllm.verification.make_draft_rows",
    "logprobs": "tailrace.integrations.vllm.draws.list_logprobs",
    "merged": "tailrace.integrations.vllm.draws.merge_outputs",
    "merged drafts": "tailrace.integrations.vllm.verification.merge_outputs",
    "token": "tailrace.integrations.vllm.draws.token_for_each",
    "none": "",
}
LENGTHS = (1, 1, 2, 31, BLOCK, BLOCK + 1, BLOCK + 1, BLOCK + 2, 2 * BLOCK, 2 * BLOCK + 1)
Arrival = tuple[int, str, list[int], dict[str, Any]]  # step, name, prompt, fields


def arrivals(mode: str) -> list[Arrival]:
    """The requests: the same prompts again and again, whole cached blocks and one token among them, and prompts of one
    token beside others that run."""
    rng, found = random.Random(0), []
    step = 0
    for turn in range(1 if mode.startswith("faulty") else 2 if mode in BY_MODEL else 4):
        for index, fields in enumerate([*FIXED, *FREE]):
            prompt = [5 + index % 5, 6, 7] * 22
            name = f"{turn}-{index}-{'free' if fields in FREE else 'seed' if 'seed' in fields else 'greedy'}"
            found.append((step, name, prompt[: rng.choice(LENGTHS)], fields))
            step += rng.choice((0, 0, 1, 2, 5))
        found.append((step, f"{turn}-gone", [5, 6, 7] * (10 + turn), {"temperature": 0.0}))
    for turn in range(2):  # alone: the second one finds all of its blocks in the cache
        step += 40
        found.append((step, f"alone-{turn}-greedy", [9, 8, 7] * 11, {"temperature": 0.0}))
        step += 40
        found.append((step, f"alone-{turn}-seed", [9, 8, 7] * 11, {"temperature": 0.8, "seed": 7}))
    if mode == "masked":
        return [(step, name, prompt, MASKED[len(prompt) % 2]) for step, name, prompt, _ in found]
    if mode.startswith(("refused", "faulty")):
        found += [(step, f"{step}-refused", [9] * 34, REFUSED) for step in range(0, 30, 10)]
    return [one for one in found if not one[1].endswith(LEFT_OUT.get(mode, "none"))]


def asked(fields: dict[str, Any], name: str) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    grammar = {key: fields[key] for key in ("json", "regex") if key in fields}
    plain = {key: value for key, value in fields.items() if key not in grammar}
    if grammar:
        plain["structured_outputs"] = StructuredOutputsParams(**grammar)
    plain |= {"max_tokens": 8 + len(name) % 3 * 12, "ignore_eos": not grammar, "detokenize": False}
    return SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **plain)


def drive(engine: Any, plan: list[Arrival]) -> dict[str, Any]:
    """Add each request at its step, or as soon as nothing else runs; step until all have ended. Abort those that have
    gone four steps later."""
    plan, tokens, masks, logprobs, step = sorted(plan, key=lambda one: one[0]), {}, {}, {}, 0
    aborts = [(at + 4, name) for at, name, *_ in plan if name.endswith("gone")]
    while plan or engine.has_unfinished_requests():
        if plan and not engine.has_unfinished_requests():
            step = max(step, plan[0][0])
        while plan and plan[0][0] <= step:
            _, name, prompt, fields = plan.pop(0)
            engine.add_request(name, {"prompt_token_ids": prompt}, asked(fields, name))
        while aborts and aborts[0][0] <= step:
            engine.abort_request([aborts.pop(0)[1]])
        for output in (one for one in engine.step() if not one.request_id.endswith("gone")):
            sequences = sorted(output.outputs, key=lambda one: one.index)
            tokens[output.request_id] = [list(one.token_ids) for one in sequences]
            for one in sequences:
                assert one.logprobs is None or len(one.logprobs) == len(one.token_ids)
            logprobs[output.request_id] = listed([*(output.prompt_logprobs or ()), *(sequences[0].logprobs or ())])
            if (mask := sequences[0].sampling_mask) is not None:
                masks[output.request_id] = mask.token_ids
        step += 1
    return {"tokens": tokens, "masks": masks, "logprobs": logprobs}


def listed(places: list[Any]) -> list[list[tuple[int, float]]]:
    """Each place's tokens with their logprobs; the first token of a prompt has none."""
    return [[(id, one.logprob) for id, one in place.items()] for place in places if place is not None]


def count_events() -> Counter[str]:
    """From now on: what vLLM's runner gives the verifier, whoever that is; and what its scheduler preempts."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    forward, preempt, seen = RejectionSampler.forward, Scheduler._preempt_request, Counter()

    def counting(self: Any, metadata: Any, probs: Any, *args: Any) -> Any:
        ids = metadata.draft_token_ids
        padded, beyond = int((ids < 0).sum()), int((ids >= VOCAB).sum())
        seen.update(padded=padded, beyond=beyond, drafts=ids.numel() - padded - beyond)
        if probs is not None:
            assert probs.shape == (ids.numel(), VOCAB)
            seen.update(dense=ids.numel())
        output = forward(self, metadata, probs, *args)
        seen.update(accepted=int((output.sampled_token_ids[:, 1:] >= 0).sum()))
        return output

    def preempting(self: Any, *args: Any, **more: Any) -> Any:
        seen.update(preempted=1)
        return preempt(self, *args, **more)

    RejectionSampler.forward, Scheduler._preempt_request = counting, preempting
    return seen


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Every seventh call of this function raises an error; of none, where the name is empty."""
    if not name:
        yield
        return
    where, _, attribute = name.rpartition(".")
    place = resolve_name(where)
    real, calls = getattr(place, attribute), Counter()

    def failing(*args: Any, **more: Any) -> Any:
        calls.update(all=1)
        if calls["all"] % 7 == 3:
            raise RuntimeError("planted")
        return real(*args, **more)

    setattr(place, attribute, failing)
    try:
        yield
    finally:
        setattr(place, attribute, real)


def options(model: str, mode: str) -> dict[str, Any]:
    """The engine's options; the folder of a model that drafts is known here."""
    found = ENGINE | MODES[mode]
    if (drafting := found.get("speculative_config", {})).get("method") in ("draft_model", "eagle", "medusa"):
        kind = "near" if drafting["method"] == "draft_model" else drafting["method"]
        found["speculative_config"] = {**drafting, "model": str(drafter_folder(Path(model), kind))}
    return found


def main(model: str, mode: str) -> dict[str, Any]:
    from vllm import LLM

    engine = LLM(model, **options(model, mode)).llm_engine
    from tailrace.integrations.vllm.fallbacks import fallbacks

    seen, found = count_events(), {}
    for fault, function in FAULTS.items() if mode.startswith("faulty") else [("none", "")]:
        fallbacks.clear()
        with planted(function):
            found[fault] = drive(engine, arrivals(mode)) | {"fallbacks": dict(fallbacks)}
    if mode == "near":
        found["none"]["free"] = draw_answers(engine)
    return found if mode.startswith("faulty") else found["none"] | seen


if __name__ == "__main__":
    os.environ |= {**COMMON, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    print("\nRESULT " + json.dumps(main(*sys.argv[1:])), flush=True)
