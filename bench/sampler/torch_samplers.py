"""How other projects sample, in torch: what `python -m bench.sampler` compares with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def sorted_top_k_top_p(logits: torch.Tensor, k: int, p: float, temperature: float) -> torch.Tensor:
    """Sort the vocabulary, mask, draw by an exponential race: the usual way of servers in torch."""
    x, order = (logits.float() / temperature).sort(dim=-1)
    if k:
        x = x.masked_fill(x < x.gather(1, torch.full((x.shape[0], 1), x.shape[1] - k, device=x.device)), float("-inf"))
    if p < 1:
        below = x.softmax(-1).cumsum(-1) <= 1 - p
        below[:, -1] = False
        x = x.masked_fill(below, float("-inf"))
    probabilities = torch.empty_like(x).scatter_(-1, order, x).softmax(-1)
    return probabilities.div_(torch.empty_like(probabilities).exponential_(1)).argmax(-1)


def transformers_processors(params: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Its own processors, then multinomial."""
    import transformers as t

    made: list[Any] = []
    if params.get("temperature", 1.0) not in (0.0, 1.0):
        made.append(t.TemperatureLogitsWarper(params["temperature"]))
    for name, make in (("top_k", t.TopKLogitsWarper), ("top_p", t.TopPLogitsWarper), ("min_p", t.MinPLogitsWarper)):
        if name in params:
            made.append(make(params[name]))

    def run(logits: torch.Tensor) -> torch.Tensor:
        scores = logits.float()
        for processor in made:
            scores = processor(torch.empty((scores.shape[0], 0), dtype=torch.int64), scores)
        return torch.multinomial(scores.softmax(-1), 1)

    return run
