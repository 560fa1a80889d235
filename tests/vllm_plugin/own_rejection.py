"""What vLLM's own rejection sampler draws on a CPU, and tailrace in its place: a script for docs/integrations/vllm.md.

    cd tests/vllm_plugin && ../../.venv-vllm/bin/python own_rejection.py

One draft per step, from q, for eight requests at temperature 0.8; the first token of each step is counted.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "0"  # as `vllm serve` runs; crowd.py would set it
import crowd as batches
import torch
from vllm import SamplingParams, __version__
from vllm.platforms import current_platform
from vllm.v1.sample.rejection_sampler import RejectionSampler, expand_batch_to_tokens
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

P, Q, IDS, STEPS = torch.tensor([0.6, 0.34, 0.06]), torch.tensor([0.2, 0.3, 0.5]), torch.tensor([5, 9, 2]), 3000


def frequencies(forward: object) -> list[float]:
    """Of the three tokens, by this way to verify."""
    crowd, noise = batches.Crowd(3), torch.Generator().manual_seed(5)
    for _ in range(batches.ROWS):
        crowd.add(SamplingParams(temperature=0.8))
    crowd.batch.refresh_metadata()
    row, probs = torch.full((batches.VOCAB,), -60.0), torch.zeros(batches.ROWS, batches.VOCAB)
    row[IDS], probs[:, IDS] = P.log() * 0.8, Q
    sampler, counts = RejectionSampler(Sampler()), torch.zeros(batches.VOCAB)
    for _ in range(STEPS):
        drafts = IDS[torch.multinomial(Q, batches.ROWS, replacement=True, generator=noise)].tolist()
        metadata = SpecDecodeMetadata.make_dummy([[draft] for draft in drafts], batches.CPU)
        out = forward(sampler, metadata, probs, row.repeat(2 * batches.ROWS, 1), crowd.metadata)  # type: ignore[operator]
        found = RejectionSampler.parse_output(out.sampled_token_ids, batches.VOCAB)[0]
        for state, tokens in zip(crowd.live.values(), found, strict=True):
            counts[tokens[0]] += 1
            state.output_token_ids += tokens
    return [round(float(share), 3) for share in counts[IDS] / counts.sum()]


if __name__ == "__main__":
    current_platform.register_triton_kernel_overrides()  # as each of its workers does
    torch.manual_seed(0)
    temperatures = expand_batch_to_tokens(torch.tensor([0.8, 0.8]), torch.tensor([2, 4]), 4)
    print(f"vLLM {__version__}: temperatures 0.8 of two requests with two drafts each become {temperatures.tolist()}")
    print("the distribution      ", [round(float(share), 3) for share in P])
    print("vLLM's own verification", frequencies(RejectionSampler.forward.theirs))  # type: ignore[attr-defined]
    print("tailrace in its place  ", frequencies(RejectionSampler.forward))
