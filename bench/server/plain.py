"""The baseline of a serving benchmark: transformers' forward pass in a loop, with its DynamicCache, on a static batch.

Run as a worker (see harness.Worker). No server, no HTTP, no detokenizing: only what a forward pass costs.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel


@torch.inference_mode()
def generate(model: PreTrainedModel, prompts: list[list[int]], question: dict[str, Any]) -> dict[str, Any]:
    """Prompts of equal length, all at once: seconds until the first tokens, and until each later step."""
    start = time.perf_counter()
    cache = DynamicCache(config=model.config)
    ids = torch.tensor(prompts)
    steps: list[float] = []
    for _ in range(question["output_tokens"]):
        output = model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
        ids = choose(output.logits[:, -1], question["sampling"])[:, None]
        steps.append(time.perf_counter() - start)
    return {"arrivals": steps, "end": steps[-1]}


def choose(logits: torch.Tensor, sampling: dict[str, Any]) -> torch.Tensor:
    """The next tokens: greedy, or as `generate` samples (temperature, then top-p by sorting the vocabulary)."""
    if not sampling["temperature"]:
        return logits.argmax(-1)
    logits = logits.float() / sampling["temperature"]
    ordered, order = logits.sort(descending=False)
    outside = ordered.softmax(-1).cumsum(-1) <= 1 - sampling["top_p"]
    outside[..., -1] = False
    logits = logits.masked_fill(outside.scatter(1, order, outside), -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1)[:, 0]


def measure(model: PreTrainedModel, question: dict[str, Any]) -> dict[str, Any]:
    """The prompts in batches of `streams`, one after another."""
    streams, prompts = question["streams"], question["prompts"]
    start = time.perf_counter()
    batches = [generate(model, prompts[i : i + streams], question) for i in range(0, len(prompts), streams)]
    wall_s = time.perf_counter() - start
    requests = [batch for batch in batches for _ in range(streams)]
    return {"wall_s": wall_s, "tokens": question["output_tokens"] * len(prompts), "requests": requests}


def main() -> None:
    """The first line says which model; then answer questions until stdin closes."""
    first = json.loads(sys.stdin.readline())
    torch.set_num_threads(first["threads"])
    model = AutoModelForCausalLM.from_pretrained(first["folder"], dtype=getattr(torch, first["dtype"])).eval()
    print(json.dumps({"attention": model.config._attn_implementation}), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(model, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
