"""vLLM's own fields that its engine or its front end acts on: `python engine_fields.py MODEL MODE` prints JSON.

Modes: plain; drafted, with n-gram drafts. The line has acts: of each field, whether the answer with it differs as it
must from the answer without it; near: tokens of requests with fields of tailrace's, alone and beside a thinking budget;
drafts: how many draft tokens vLLM's verifier was given; fallbacks.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

from scheduled import ENGINE, NGRAM, count_events
from started import COMMON

PROMPT, TOKENS, END = [9, 8, 7, 9, 8, 7, 9, 8], 12, 508
OPENING, CLOSING = "~", "}"  # a token each: vLLM forces longer ends incompletely beside drafts
GREEDY = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
OWN = {"top_n_sigma": 1.5, "dry_multiplier": 0.8, "sequence_bias": [["a", 2.0]], "forced_token_ids": [5, 6]}
WATCHED = [
    {"seed": 1, "temperature": 0.9, "extra_args": OWN},
    {"seed": 2, "temperature": 1.2, "min_p": 0.02, "logit_bias": {7: 3.0}, "logprobs": 2},
    {"temperature": 0.0, "extra_args": {"no_repeat_ngram_size": 2}, "repetition_penalty": 1.2},
]


def ask(engine: Any, asked: list[dict[str, Any]]) -> list[list[Any]]:
    """All outputs of each request as they came; the requests run side by side."""
    from vllm import SamplingParams

    for index, fields in enumerate(asked):
        engine.add_request(str(index), {"prompt_token_ids": PROMPT}, SamplingParams(**(GREEDY | fields)))
    found: list[list[Any]] = [[] for _ in asked]
    while engine.has_unfinished_requests():
        for output in engine.step():
            found[int(output.request_id)].append(output)
    return found


def tokens(outputs: list[Any]) -> list[int]:
    return list(outputs[-1].outputs[0].token_ids)


def judge(engine: Any, drafted: bool) -> dict[str, bool]:
    """Of each field, whether it acts. Each request runs alone. drafted: logprob_token_ids are refused."""
    from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams

    def one(**fields: Any) -> Any:
        return ask(engine, [fields])[0][-1]

    bare = one()
    text, ids = bare.outputs[0].text, tokens([bare])
    ended = {"logit_bias": {END: 100.0}}
    stopped = one(stop=[text[2:4]]).outputs[0]
    loop = {"allowed_token_ids": [65]}
    detection = RepetitionDetectionParams(max_pattern_size=1, min_pattern_size=1, min_count=3)
    word = one(structured_outputs=StructuredOutputsParams(regex="[ab]{3}"), ignore_eos=False).outputs[0].text
    return {
        "n": len(one(n=2, temperature=1.0, seed=3, output_kind=RequestOutputKind.FINAL_ONLY).outputs) == 2,
        "max_tokens": len(tokens([one(max_tokens=5)])) == 5,
        "ignore_eos": len(tokens([one(ignore_eos=False, **ended)])) == 1 and len(tokens([one(**ended)])) == TOKENS,
        "stop": stopped.text == text[: text.index(text[2:4])] and stopped.stop_reason == text[2:4],
        "stop_token_ids": tokens([one(stop_token_ids=[ids[3]])]) == ids[: ids.index(ids[3]) + 1],
        "repetition_detection": len(tokens([one(repetition_detection=detection, **loop)])) < len(tokens([one(**loop)])),
        "grammar": len(word) == 3 and set(word) <= set("ab"),
        "prompt_logprobs": bare.prompt_logprobs is None and len(one(prompt_logprobs=2).prompt_logprobs) == len(PROMPT),
        "logprobs": bare.outputs[0].logprobs is None and len(one(logprobs=2).outputs[0].logprobs[0]) >= 2,
        "logprob_token_ids": drafted or {3, 4} <= set(one(logprob_token_ids=[3, 4]).outputs[0].logprobs[0]),
        "include_stop_str_in_output": one(stop=[text[2:4]], include_stop_str_in_output=True).outputs[0].text
        == stopped.text + text[2:4],
        "skip_special_tokens": "<end>" in one(skip_special_tokens=False, **ended).outputs[0].text
        and "<end>" not in one(**ended).outputs[0].text,
        "output_kind": len(ask(engine, [{}])[0]) > 1
        and len(ask(engine, [{"output_kind": RequestOutputKind.FINAL_ONLY}])[0]) == 1,
        "thinking": judge_thought(engine),
    }


def judge_thought(engine: Any) -> bool:
    """Whether a thought ends at its budget."""
    opened = engine.tokenizer.encode(OPENING, add_special_tokens=False)
    closed = engine.tokenizer.encode(CLOSING, add_special_tokens=False)
    found = tokens(ask(engine, [thought(opened, 3)])[0])
    count = len(closed)
    places = [place for place in range(len(found)) if found[place : place + count] == closed]
    return bool(places) and tokens(ask(engine, [thought(opened, None)])[0]) != found


def thought(opened: list[int], budget: int | None) -> dict[str, Any]:
    """A request whose output begins with a thought, which no token of its own ends."""
    return {
        "extra_args": {"forced_token_ids": opened},
        "max_tokens": 3 * TOKENS,
        **({} if budget is None else {"thinking_token_budget": budget}),
    }


def main(model: str, mode: str) -> dict[str, Any]:
    from vllm import LLM
    from vllm.config.reasoning import ReasoningConfig

    drafts = {"speculative_config": NGRAM} if mode == "drafted" else {}
    reasoning = ReasoningConfig(reasoning_start_str=OPENING, reasoning_end_str=CLOSING)
    engine = LLM(model, reasoning_config=reasoning, **(ENGINE | drafts)).llm_engine
    from tailrace.integrations.vllm.fallbacks import fallbacks

    seen: Counter[str] = count_events()
    acts = judge(engine, mode == "drafted")
    expected = dict(fallbacks)
    fallbacks.clear()
    opened = engine.tokenizer.encode(OPENING, add_special_tokens=False)
    alone = [tokens(one) for one in ask(engine, WATCHED)]
    beside = [tokens(one) for one in ask(engine, [*WATCHED, thought(opened, 4)])][: len(WATCHED)]
    return {"acts": acts, "near": [alone, beside], "served": expected, "fallbacks": dict(fallbacks), **seen}


if __name__ == "__main__":
    os.environ |= {**COMMON, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    print("\nRESULT " + json.dumps(main(*sys.argv[1:])), flush=True)
