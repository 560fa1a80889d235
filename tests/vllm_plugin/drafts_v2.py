"""Drafts through vLLM's own V2 verifier and buffers: `python drafts_v2.py MODEL MODE` prints a line of JSON.

As history_v2.py, with drafts: a part of them is right, a part wrong, a part −1 as vLLM pads them. The host's bound of
each length is now and then too large, as where drafts that it does not know of were refused. Modes: cpu and gpu, the
kernels that draw; left, beside rows that vLLM's own verification serves; late, a planted fault: positions are the
host's bounds. Further in the line: accepted and offered, numbers of drafts.
"""

from __future__ import annotations

import json
import random
import sys
from types import SimpleNamespace
from typing import Any

import history_v2
from drawn_v2 import install_in_interpreter
from history_v2 import LENGTH, SEED, Request, Runner, serve_requests

DEPTH = 3
COUNTS = {"cpu": 40, "gpu": 10, "left": 20, "late": 12}  # mode → requests
EDITS = [fields for fields in history_v2.OWN if not {"forced_token_ids", "watermark"} & set(fields)]


class DraftingRunner(Runner):
    """A runner with drafts."""

    def __init__(self, requests: list[Request]) -> None:
        import torch
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

        super().__init__(DEPTH)
        drafts: Any = SimpleNamespace(
            num_speculative_tokens=DEPTH, rejection_sample_method="block", enable_adaptive_verification=False
        )
        self.verifier: Any = RejectionSampler(self.sampler, drafts, torch.device("cpu"))
        self.references = {one.name: one.draw_reference()[0] for one in requests}
        self.offered = self.accepted = 0

    def step(self, requests: list[Request], drawn: random.Random) -> None:
        """A step of these requests, some with drafts."""
        import torch

        indices = [self.states.req_id_to_index[one.name] for one in requests]
        lengths, drafts = [], []
        for one, index in zip(requests, indices, strict=True):
            before, filled = self.computed[one.name], int(self.states.prefill_len.np[index])
            decoding = before >= filled
            lengths.append(before + 1 if decoding else drawn.randint(before + 1, filled))
            drafts.append(self.make_drafts(one, lengths[-1], drawn) if decoding else [])
        rows = [(one, length + i) for one, length, ids in zip(requests, lengths, drafts, strict=True)
                for i in range(len(ids) + 1)]  # fmt: skip
        logits = torch.stack([one.make_logits(length) for one, length in rows])
        batch = self.make_batch(indices, lengths, drafts, drawn)
        output = self.verifier(logits, batch, None, None) if any(drafts) else self.sampler(logits, batch)
        self.keep_tokens(indices, output)
        first = batch.cu_num_logits_np
        for row, one in enumerate(requests):
            count = int(output.num_sampled[row])
            self.computed[one.name] = lengths[row] + max(count - 1, 0)
            self.offered, self.accepted = self.offered + len(drafts[row]), self.accepted + max(count - 1, 0)
            if count and "logprobs" in one.fields:
                found = output.logprobs_tensors.logprobs[first[row] : first[row] + count, 0].tolist()
                self.logprobs.setdefault(one.name, []).extend(found)

    def make_drafts(self, request: Request, length: int, drawn: random.Random) -> list[int]:
        """Drafts for the tokens after so many. No request gets more tokens than it asks for."""
        at = length - len(request.prompt)
        right = self.references[request.name][at : min(at + drawn.randint(0, DEPTH), LENGTH - 1)]
        return [drawn.choice([id, id, id, id, id, drawn.randrange(6), -1]) for id in right]

    def make_batch(
        self, indices: list[int], lengths: list[int], drafts: list[list[int]], drawn: random.Random
    ) -> SimpleNamespace:
        """The batch of a step, as far as vLLM's sampler and verifier read it."""
        import numpy as np
        import torch

        counts = [len(ids) + 1 for ids in drafts]
        owners = [index for index, count in zip(indices, counts, strict=True) for _ in range(count)]
        local = [i for count in counts for i in range(count)]
        positions = [length - 1 + i for length, count in zip(lengths, counts, strict=True) for i in range(count)]
        ids: list[int] = []
        for index, length, drafted in zip(indices, lengths, drafts, strict=True):
            ids += [int(self.states.all_token_ids.gpu[index, length - 1]), *drafted]
        ends = torch.tensor([length + len(drafted) for length, drafted in zip(lengths, drafts, strict=True)])
        slack = torch.tensor([drawn.choice([0, 0, 2]) for _ in indices])
        starts = np.cumsum([0, *counts])
        return SimpleNamespace(
            num_reqs=len(indices),
            idx_mapping=torch.tensor(indices, dtype=torch.int32),
            expanded_idx_mapping=torch.tensor(owners, dtype=torch.int32),
            idx_mapping_np=np.array(indices),
            cu_num_logits=torch.tensor(starts, dtype=torch.int32),
            cu_num_logits_np=starts,
            expanded_local_pos=torch.tensor(local, dtype=torch.int32),
            positions=torch.tensor(positions),
            logits_indices=torch.arange(len(owners)),
            input_ids=torch.tensor(ids, dtype=torch.int32),
            seq_lens=ends.int(),
            seq_lens_cpu_upper_bound=(ends + slack).int(),
        )


def make_requests(mode: str) -> list[Request]:
    """The requests of this mode."""
    history_v2.OWN[:] = EDITS
    noise = random.Random(SEED + 1)
    asked = [Request(f"r{i}", noise, [{"top_k": 20}, {"min_p": 0.05}, {"top_p": 0.9}]) for i in range(COUNTS[mode])]
    for one in asked[::3] if mode == "left" else ():
        one.fields, one.left = {"temperature": 0.0, "seed": 1}, True
    return asked


def plant_late_positions() -> None:
    """Plant the fault."""
    from dataclasses import replace

    from tailrace.integrations.vllm import v2

    plan = v2.plan_rows

    def plan_late(*args: Any) -> Any:
        found = plan(*args)
        return found and found._replace(rows=replace(found.rows, position_there=None))

    v2.plan_rows = plan_late


if __name__ == "__main__":
    install_in_interpreter("gpu" if sys.argv[2] == "gpu" else "cpu")
    if sys.argv[2] == "late":
        plant_late_positions()
    requests = make_requests(sys.argv[2])
    runner = DraftingRunner(requests)
    served = serve_requests(requests, runner, sys.argv[2] == "gpu")
    print("\nRESULT " + json.dumps(served | {"offered": runner.offered, "accepted": runner.accepted}), flush=True)
