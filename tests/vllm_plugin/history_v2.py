"""Requests that read their output, through vLLM's own V2 sampler and buffers: `python history_v2.py MODEL MODE`.

Requests of different lengths share steps. Each is added when a row is free, computes its prompt in parts, is preempted
now and then, and comes back to another row. The tokens never reach the host in between. It prints a line of JSON:
requests, of each its fields, its tokens, and those of tailrace's reference sampler for the same logits; preempted, how
often; fallbacks.

Modes: cpu and gpu, the kernels that draw, the GPU's in the interpreter, where a wait for the device is an error;
custom, beside somebody else's logits processor, which some requests use; short, a planted fault: the newest token is
not read; forgetful, a planted fault: a preempted request loses its state.
"""

from __future__ import annotations

import json
import random
import sys
from types import SimpleNamespace
from typing import Any

from drawn_v2 import install_in_interpreter, make_batch, refuse_wait

COUNTS = {"cpu": 60, "gpu": 16, "custom": 24, "short": 20, "forgetful": 30}  # mode → requests
BOOST = 3.0
VOCAB, ROWS, LENGTH, SEED, EOS, LIKELY = 61, 4, 10, 5, 7, 6
OWN: list[dict[str, Any]] = [
    {"frequency_penalty": 0.9, "penalty_last_n": 3},
    {"repetition_penalty": 1.8, "penalty_last_n": 0},
    {"repetition_penalty": 1.6, "repetition_scope": "output", "presence_penalty": 1.0, "penalty_scope": "prompt"},
    {"presence_penalty": 1.5, "penalty_scope": "both", "penalty_last_n": 6, "logit_bias": {2: 1.5}},
    {"dry_multiplier": 3.0, "dry_allowed_length": 1},
    {"dry_multiplier": 2.0, "dry_base": 1.0, "dry_allowed_length": 1, "dry_sequence_breakers": [1]},
    {"dry_multiplier": 2.0, "dry_allowed_length": 2, "dry_penalty_last_n": 7, "repetition_penalty": 1.3},
    {"encoder_repetition_penalty": 1.7, "frequency_penalty": 0.4},
    {"exponential_decay_length_penalty": [2, 1.7]},
    {"sequence_bias": [[[1], 1.0], [[2, 3], 4.0], [[0, 1, 2], 3.0], [[3], -2.0]]},
    {"no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 1, "presence_penalty": 0.3},
    {"normalize_logits": True, "repetition_penalty": 1.5},
    {"forced_token_ids": [9, 4, 9]},
    {"processors": {"favouring": {"bonus": 4.0}}},
    {"watermark": {"kind": "kgw", "key": 3, "delta": 6.0, "context": 2}, "presence_penalty": 0.5},
]
SYNTHID: list[dict[str, Any]] = [
    {"watermark": {"kind": "synthid", "key": 11, "depth": 12, "context": 2}},
    {"watermark": {"kind": "synthid", "scheme": "transformers", "keys": list(range(1, 9)), "context": 2}},
]
STATEFUL: list[dict[str, Any]] = [
    {"mirostat": 2, "mirostat_tau": 1.5, "mirostat_eta": 0.4},
    {"mirostat": 1, "mirostat_tau": 1.2, "mirostat_eta": 0.5, "dynatemp_range": 0.3},
    {"adaptive_target": 0.3, "adaptive_decay": 0.7, "top_p": 0.95, "smoothing_factor": 0.2},
    {"adaptive_target": 0.6, "adaptive_decay": 0.5, "min_p": 0.02, "tfs_z": 0.9},
    {"adaptive_target": 0.4, "top_k": 12, "sampler_order": ["adaptive_p", "top_k", "temperature"]},
    {"adaptive_target": 0.5, "dynatemp_range": 0.5, "top_p": 0.9, "sampler_order": ["top_p", "adaptive_p", "dynatemp"]},
]
VLLMS = ("temperature", "seed", "top_k", "top_p", "min_p", "logit_bias", "logprobs", "min_tokens", "max_tokens")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


class Request:
    """A request: its fields, its prompt, and its tokens so far as the host knows them. left: vLLM draws for it."""

    def __init__(self, name: str, drawn: random.Random, last: list[dict[str, Any]] = STATEFUL + SYNTHID) -> None:
        self.name, self.left = name, False
        chosen = drawn.sample(OWN, drawn.choice([0, 1, 1, 2])) + drawn.sample(last, drawn.randint(0, 1))
        self.fields = {"temperature": drawn.choice([0.7, 1.0, 1.4]), "seed": drawn.randrange(1000)}
        for fields in chosen or [drawn.choice(OWN)]:
            self.fields |= fields
        if not any(fields in STATEFUL + SYNTHID for fields in chosen) and drawn.random() < 0.3:
            self.fields["temperature"] = 0.0
        if drawn.random() < 0.4:
            self.fields["logprobs"] = drawn.randrange(3)
        self.prompt = [drawn.randrange(LIKELY) for _ in range(drawn.randint(1, 9))]
        self.output: list[int] = []

    def make_theirs(self) -> Any:
        """The parameters in vLLM's form."""
        from vllm import SamplingParams

        theirs = {name: value for name, value in self.fields.items() if name in (*VLLMS, *PENALTIES)}
        own = {name: value for name, value in self.fields.items() if name not in theirs}
        params = SamplingParams(**theirs, max_tokens=LENGTH, extra_args=own or None)
        params._all_stop_token_ids.add(EOS)
        params.logprob_token_ids = [3] if self.left else None
        return params

    def make_logits(self, length: int) -> Any:
        """The model's logits after so many tokens. Few tokens are likely, so that some come again."""
        import torch

        noise = torch.Generator().manual_seed(hash((self.fields["seed"], len(self.prompt), length)) % 2**31)
        logits = torch.randn(VOCAB, generator=noise)
        logits[:LIKELY] += 4
        return logits

    def draw_reference(self) -> tuple[list[int], list[float | None]]:
        """The tokens of the reference sampler, and their logprobs."""
        from tailrace.params import SamplingParams
        from tailrace.request.options import Watermark
        from tailrace.sampling import Rows, Sampler, Slots

        slots, given = Slots(1, VOCAB), dict(self.fields)
        if (boosted := given.pop("boosted", None)) is not None:
            given["logit_bias"] = {**given.get("logit_bias", {}), boosted: BOOST}
        for name in ("forced_token_ids", "dry_sequence_breakers", "exponential_decay_length_penalty", "sampler_order"):
            if name in given:
                given[name] = tuple(given[name])
        if "sequence_bias" in given:
            given["sequence_bias"] = tuple((tuple(ids), bias) for ids, bias in given["sequence_bias"])
        if "watermark" in given:
            given["watermark"] = Watermark(**given["watermark"])
        slots.add(0, SamplingParams(**given, logprobs_mode="processed"), prompt=self.prompt, eos_token_ids=[EOS])
        sampler = Sampler(slots, backend="reference")
        tokens: list[int] = []
        logprobs: list[float | None] = []
        for _ in range(LENGTH):
            length = len(self.prompt) + len(tokens)
            found = sampler(self.make_logits(length)[None], Rows.plain([0], [0], [length]))
            slots.commit([0], found.tokens())
            tokens += found.tokens()[0]
            entries = found.logprobs[0]
            logprobs.append(entries[0].logprob if entries else None)
        return tokens, logprobs


class Runner:
    """vLLM's buffers and sampler, driven as its V2 runner drives them.

    Args:
        depth: the most drafts of a request. custom: with a logits processor of somebody else's.
    """

    def __init__(self, depth: int = 0, custom: bool = False) -> None:
        import torch
        from vllm.v1.worker.gpu.sample.sampler import Sampler
        from vllm.v1.worker.gpu.states import RequestState

        from tailrace.sampling.processors import register

        register("favouring", favour_last)
        model = SimpleNamespace(logprobs_mode="processed_logprobs", return_sampling_mask=False, seed=0)
        config: Any = SimpleNamespace(
            model_config=model,
            parallel_config=SimpleNamespace(data_parallel_rank=0),
            instance_id="test",
            reasoning_config=None,
        )
        cpu = torch.device("cpu")
        self.states = RequestState(ROWS, 64, 64, depth, VOCAB, cpu)
        drafted: dict[str, Any] = {"num_speculative_tokens": depth + 1, "logprobs_mode": model.logprobs_mode}
        if custom:
            drafted["custom_logits_processors"] = [make_processor()]
        self.sampler: Any = Sampler(config, ROWS, VOCAB, cpu, self.states, **drafted)
        self.computed: dict[str, int] = {}
        self.logprobs: dict[str, list[float]] = {}

    def add(self, request: Request) -> None:
        tokens = request.prompt + request.output
        self.states.add_request(request.name, len(request.prompt), tokens, 0, LENGTH)
        self.sampler.add_request(self.states.req_id_to_index[request.name], request.make_theirs())
        self.states.apply_staged_writes()
        self.sampler.apply_staged_writes()
        self.computed[request.name] = 0

    def step(self, requests: list[Request], drawn: random.Random) -> None:
        """A step of these requests. One that computes its prompt may compute only a part of it."""
        import torch

        indices = [self.states.req_id_to_index[one.name] for one in requests]
        lengths = []
        for one, index in zip(requests, indices, strict=True):
            before, filled = self.computed[one.name], int(self.states.prefill_len.np[index])
            self.computed[one.name] = before + 1 if before >= filled else drawn.randint(before + 1, filled)
            lengths.append(self.computed[one.name])
        logits = torch.stack([one.make_logits(length) for one, length in zip(requests, lengths, strict=True)])
        output = self.sampler(logits, make_batch(indices, lengths))
        self.keep_tokens(indices, output)
        for row, (one, index) in enumerate(zip(requests, indices, strict=True)):
            if lengths[row] >= self.states.prefill_len.np[index] and "logprobs" in one.fields:
                self.logprobs.setdefault(one.name, []).append(output.logprobs_tensors.logprobs[row, 0].item())

    def keep_tokens(self, indices: list[int], output: Any) -> None:
        import torch
        from vllm.v1.worker.gpu.input_batch import post_update

        post_update(
            torch.tensor(indices, dtype=torch.int32),
            self.states.num_computed_tokens.gpu,
            self.states.last_sampled_tokens,
            self.sampler.penalties_state.output_bin_counts,
            output.sampled_token_ids,
            output.num_sampled,
            output.num_rejected,
            torch.arange(len(indices) + 1, dtype=torch.int32),
            self.states.all_token_ids.gpu,
            self.states.total_len.gpu,
        )

    def count_output(self, request: Request) -> int:
        index = self.states.req_id_to_index[request.name]
        drawn = self.computed[request.name] >= self.states.prefill_len.np[index]
        return self.computed[request.name] + 1 - len(request.prompt) if drawn else len(request.output)

    def remove(self, request: Request) -> None:
        """The host reads the tokens, and the row is free."""
        index, count = self.states.req_id_to_index[request.name], self.count_output(request)
        first = len(request.prompt)
        request.output = self.states.all_token_ids.gpu[index, first : first + count].tolist()
        self.states.remove_request(request.name)


def favour_last(row: Any, tokens: list[int], bonus: float) -> None:
    """A custom processor of tailrace's: the last token and the length of the text become likelier."""
    row[tokens[-1]] += bonus
    row[len(tokens) % VOCAB] += bonus


def make_processor() -> Any:
    """A logits processor in vLLM's own form: it makes an id likelier for the requests that name one."""
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

    class Boosting(LogitsProcessor):
        def __init__(self) -> None:
            self.ids: dict[int, int | None] = {}

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            self.ids[req_idx] = (sampling_params.extra_args or {}).get("boosted")
            return self.ids[req_idx] is not None

        def apply(self, logits: Any, ctx: Any) -> Any:
            for row, index in enumerate(ctx.expanded_idx_mapping.tolist()):
                if (id := self.ids[index]) is not None:
                    logits[row, id] += BOOST
            return logits

    return Boosting()


def serve_requests(waiting: list[Request], runner: Runner, refusing: bool) -> dict[str, Any]:
    """Serve these requests. refusing: a wait for the device is an error."""
    from tailrace.integrations.vllm.fallbacks import fallbacks
    from tailrace.sampling.sampler import Pending

    wait = Pending.wait
    if refusing:
        setattr(Pending, "wait", refuse_wait)  # noqa: B010 — of another class
    drawn, preempted = random.Random(SEED), 0
    running: list[Request] = []
    ended: list[Request] = []
    while waiting or running:
        while waiting and len(running) < ROWS:
            running.append(waiting.pop(0))
            runner.add(running[-1])
        step = drawn.sample(running, drawn.randint(1, len(running)))
        runner.step(step, drawn)
        for one in list(running):
            done = runner.count_output(one) >= LENGTH
            if done or drawn.random() < 0.04:
                runner.remove(one)
                running.remove(one)
                (ended if done else waiting).append(one)
                preempted += not done
    Pending.wait = wait  # type: ignore[method-assign]
    found = []
    for one in ended:
        tokens, logprobs = one.draw_reference()
        reports = [runner.logprobs.get(one.name), logprobs] if "logprobs" in one.fields else None
        found.append({"fields": one.fields, "tokens": one.output, "reference": tokens, "logprobs": reports})
    return {"requests": found, "preempted": preempted, "fallbacks": dict(fallbacks)}


def plant(mode: str) -> None:
    """Plant the fault of this mode."""
    from tailrace.integrations.vllm import v2_rows
    from tailrace.integrations.vllm.v2_stateful import StatefulRequests

    read, add = v2_rows.read_tokens, StatefulRequests.add

    def read_short(*args: Any) -> Any:
        found = read(*args)
        return found._replace(lengths=found.lengths - 1)

    if mode == "short":
        v2_rows.read_tokens = read_short
    if mode == "forgetful":
        StatefulRequests.add = lambda self, *args: add(self, *args[:-1], False)  # type: ignore[method-assign]


if __name__ == "__main__":
    install_in_interpreter("gpu" if sys.argv[2] == "gpu" else "cpu")
    plant(sys.argv[2])
    noise = random.Random(SEED)
    asked = [Request(f"r{i}", noise) for i in range(COUNTS[sys.argv[2]])]
    custom = sys.argv[2] == "custom"
    for one in asked[::2] if custom else ():
        one.fields["boosted"] = noise.randrange(VOCAB)
    served = serve_requests(asked, Runner(custom=custom), sys.argv[2] == "gpu")
    print("\nRESULT " + json.dumps(served), flush=True)
