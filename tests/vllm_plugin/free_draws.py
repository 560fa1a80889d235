"""Many short answers of one engine to one prompt, without seeds: how often each came, and how probable it was."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

COUNT, PROMPT, TEMPERATURE, TOP_K, TOKENS = 1500, [5, 6, 7], 0.8, 3, 3
RARE = 5.0  # answers that are expected less often are taken together
LIMIT = 96.0  # of the statistic: 1e-9 at 26 degrees of freedom


def draw_answers(engine: Any) -> dict[str, Any]:
    """Return counts, pairs of an answer's tokens and how often it came; and rows, pairs of a prefix and the logprobs of
    its likeliest tokens as [id, logprob]."""
    drawn = {"temperature": TEMPERATURE, "top_k": TOP_K, "max_tokens": TOKENS, "ignore_eos": True}
    counts = Counter(tuple(one.token_ids) for one in ask(engine, [PROMPT] * COUNT, **drawn))
    rows: list[tuple[list[int], list[tuple[int, float]]]] = []
    ends: list[list[int]] = [[]]
    for _ in range(TOKENS):
        answers = ask(engine, [PROMPT + end for end in ends], temperature=0.0, max_tokens=1, logprobs=TOP_K)
        found = [[(id, one.logprob) for id, one in answer.logprobs[0].items()] for answer in answers]
        rows += zip(ends, found, strict=True)
        ends = [[*end, id] for end, row in zip(ends, found, strict=True) for id, _ in row]
    return {"counts": list(counts.items()), "rows": rows}


def ask(engine: Any, prompts: list[list[int]], **fields: Any) -> list[Any]:
    """Return the output of each prompt."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    for index, prompt in enumerate(prompts):
        params = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, detokenize=False, **fields)
        engine.add_request(f"{index}", {"prompt_token_ids": prompt}, params)
    found: dict[int, Any] = {}
    while engine.has_unfinished_requests():
        found |= {int(output.request_id): output.outputs[0] for output in engine.step()}
    return [found[index] for index in range(len(prompts))]


def measure_misfit(found: dict[str, Any]) -> float:
    """Return the statistic of a G-test of the answers; infinity if one of them can not be drawn. found: of
    `draw_answers`, perhaps through JSON."""
    rows = {tuple(end): dict(row) for end, row in found["rows"]}
    expected: dict[tuple[int, ...], float] = {(): float(COUNT)}
    for _ in range(TOKENS):
        expected = {
            (*end, id): weight * share for end, weight in expected.items() for id, share in shares(rows[end]).items()
        }
    seen = {tuple(tokens): times for tokens, times in found["counts"]}
    if not seen.keys() <= expected.keys():
        return math.inf
    pairs = [(seen.get(answer, 0), weight) for answer, weight in expected.items() if weight >= RARE]
    pairs.append((COUNT - sum(times for times, _ in pairs), COUNT - sum(weight for _, weight in pairs)))
    return 2 * sum(times * math.log(times / weight) for times, weight in pairs if times)


def shares(row: dict[int, float]) -> dict[int, float]:
    """Return the probability of each token after temperature and top-k."""
    weights = {id: math.exp(logprob / TEMPERATURE) for id, logprob in row.items()}
    total = sum(weights.values())
    return {id: weight / total for id, weight in weights.items()}
