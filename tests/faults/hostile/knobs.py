"""Knobs of the sampler at their extremes and in company, and what costs the engine's thread per token: lists,
histories, copies."""

from __future__ import annotations

from random import Random
from typing import Any

from faults.hostile.client import EITHER, FINE, REFUSED, Attempt, Kind, chat, complete, listed, statuses

LONG = "the cat sat on the mat and " * 400  # of tokens that come again and again


def nothing_left(chance: Random, i: int) -> Attempt:
    fields: list[dict[str, Any]] = [
        {"top_p": 0, "epsilon_cutoff": 0.9},
        {"top_p": 0, "min_p": 1, "top_k": 1, "eta_cutoff": 0.99},
        {"typical_p": 0},
        {"tfs_z": 0},
        {"top_h": 0.0001},
        {"top_a": 1, "epsilon_cutoff": 0.999},
        {"top_n_sigma": 1e-9},
        {"xtc_probability": 1, "xtc_threshold": 1e-9},
        {"allowed_token_ids": [5], "logit_bias": {"5": -100}},
        {"min_tokens": 8, "allowed_token_ids": [2]},
    ]
    return complete(seed=i, **listed(chance, fields, i))


def steep_knobs(chance: Random, i: int) -> Attempt:
    fields: list[dict[str, Any]] = [
        {"temperature": 1e6},
        {"temperature": 1e-6},
        {"temperature": 1e-300},
        {"dynatemp_range": 1e6, "temperature": 1e6, "dynatemp_exponent": 100},
        {"smoothing_factor": 1e6, "smoothing_curve": 3},
        {"repetition_penalty": 1e3},
        {"repetition_penalty": 1e-3},
        {"dry_multiplier": 1e6, "dry_base": 1e6},
        {"guidance_scale": 100.0, "negative_prompt": "x"},
        {"adaptive_target": 1e-300, "adaptive_decay": 0.99},
    ]
    return complete(LONG[: 40 * i], seed=i, n=2, **listed(chance, fields, i))


def everything(chance: Random, i: int) -> Attempt:
    return complete(
        LONG[: 500 * i],
        seed=i,
        temperature=0.7,
        dynatemp_range=0.5,
        smoothing_factor=0.2,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        top_a=0.01,
        typical_p=0.95,
        tfs_z=0.99,
        epsilon_cutoff=1e-5,
        eta_cutoff=1e-5,
        top_n_sigma=3,
        top_h=0.9,
        xtc_probability=0.5,
        repetition_penalty=1.1,
        presence_penalty=1,
        frequency_penalty=-1,
        dry_multiplier=0.8,
        no_repeat_ngram_size=3,
        logit_bias={"5": 5},
        bad_words=["x"],
        banned_strings=["qq"],
        watermark={"kind": "kgw", "key": 5},
        logprobs=20,
        report_entropy=True,
        logprobs_mode="processed",
        guidance_scale=1.5,
        min_tokens=2,
        stop=["zz"],
        stop_regex="z+y",
    )


def orders(chance: Random, i: int) -> Attempt:
    lists: list[Any] = [
        ["top_k", "top_k"],
        ["nothing"],
        ["temperature"] * 40,
        [""],
        ["mirostat", "synthid", "adaptive_p"],
        ["temperature", "top_p", "min_p"],
        ["xtc", "temperature"],
        ["TOP_K"],
        ["synthid"],
        ["\x00"],
    ]
    return complete(sampler_order=listed(chance, lists, i), top_p=0.5, seed=1)


def mirostats(chance: Random, i: int) -> Attempt:
    more: list[dict[str, Any]] = [
        {"guided_regex": "[a-z]{30}"},
        {"guided_regex": "abc[0-9]"},
        {"mirostat_tau": 1e-9},
        {"mirostat_tau": 100, "mirostat_eta": 100},
        {"allowed_token_ids": [5]},
        {"n": 8},
        {"forced_token_ids": [5, 6, 7]},
        {"logit_bias": {"5": 100}},
        {"temperature": 1e6},
        {"guided_choice": ["yes", "no"]},
    ]
    return complete(mirostat=1 + i % 2, seed=i, **listed(chance, more, i))


def guidance(chance: Random, i: int) -> Attempt:
    return complete(
        guidance_scale=listed(chance, [0.0, 1e-300, 100.0, 1.0000001, 50.5], i % 5),
        negative_prompt=listed(chance, ["x", "", LONG[:8000], [5] * 3000, "x"], i % 5),
        n=1 + i,
        seed=i,
    )


def long_histories(chance: Random, i: int) -> Attempt:
    fields: list[dict[str, Any]] = [
        {"dry_multiplier": 1, "dry_base": 1.02},
        {"dry_multiplier": 1, "dry_allowed_length": 1, "dry_penalty_last_n": -1},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 2000},
        {"repetition_penalty": 1.3, "presence_penalty": 2, "frequency_penalty": 2, "penalty_scope": "both"},
        {"repetition_penalty": 1.3, "penalty_last_n": 2000},
        {"bad_words": ["the cat sat on the mat"] * 1000},
        {"dry_multiplier": 1, "dry_sequence_breakers": [f"word{n}" for n in range(64)]},
        {"sequence_bias": [[LONG[:900], 5.0]] * 900},
    ]
    prompt = LONG[:10_000] if i % 2 else [5, 5, 5, 6] * 900
    return complete(prompt, max_tokens=64, seed=i, ignore_eos=True, **listed(chance, fields, i))


def long_lists(chance: Random, i: int) -> Attempt:
    fields: list[dict[str, Any]] = [
        {"logit_bias": {str(n): -100 + n % 200 for n in range(49_152)}},
        {"logit_bias": {str(n): 1 for n in range(100_000)}},
        {"allowed_token_ids": list(range(49_152))},
        {"allowed_token_ids": list(range(49_152)) * 2},
        {"stop_token_ids": list(range(3, 1027))},
        {"logit_bias": {f"word {n}": 5 for n in range(1000)}},
        {"bad_words": [f"word number {n} of many" for n in range(1024)]},
        {"sequence_bias": [[list(range(60)), 5.0]] * 1024},
        {"forced_token_ids": [5] * 3000},
        {"stop_token_ids": list(range(49_152))},
    ]
    return complete(n=listed(chance, [1, 8], i % 2), seed=i, **listed(chance, fields, i))


def stop_lists(chance: Random, i: int) -> Attempt:
    lists: list[Any] = [
        [f"stop number {n}" for n in range(128)],
        ["x" * 60 + str(n) for n in range(128)],
        ["a" * n for n in range(1, 120)],
        ["ab" * 500] * 8,
        ["é" * 500] * 4,
        ["x" * 1025],
        ["x"] * 129,
        [""],
        ["\x00"],
        ["z" * 1024] * 9,
    ]
    return complete(stop=listed(chance, lists, i), n=listed(chance, [1, 32], i % 2), max_tokens=32, ignore_eos=True)


def stop_patterns(chance: Random, i: int) -> Attempt:
    patterns = [
        "(a|b|ab)*c{100}",
        "[a-z]{1,200}!",
        "(.|\\n){1,200}Q",
        "a{256}",
        "a{257}",
        "(?i:[a-zé]{100})Ω",
        "(x+x+)+y",
        "\\w{100}\\d{100}",
        "((a|b){0,8}c){1,8}d",
        "[^a]{1,250}Q",
    ]
    return complete(
        "a" * 50,
        stop_regex=[listed(chance, patterns, i)] * (1 + 15 * (i % 2)),
        n=4,
        max_tokens=64,
        ignore_eos=True,
        seed=i,
    )


def refused_patterns(chance: Random, i: int) -> Attempt:
    patterns = ["^a", "a$", "\\ba", "(?=a)b", "(a)\\1", "a*+", "", "a*", "(", "x" * 2000]
    return complete(stop_regex=listed(chance, patterns, i), named="stop_regex")


def banned_letters(chance: Random, i: int) -> Attempt:
    lists = [
        ["e", "a", "i", "o", "u", " "],
        list("abcdefghijklmnopqrstuvwxyz"),
        [chr(n) for n in range(32, 127)],
        ["a", "e"],
        [" "],
        ["\n", " ", "e", "t"],
        [chr(n) for n in range(256)][:128],
        ["th", "he", "in", "er"],
        list("etaoin"),
        ["\ufffd"],
    ]
    return complete(
        banned_strings=listed(chance, lists, i),
        banned_ignore_case=i % 2 == 1,
        max_tokens=listed(chance, [16, 64, 200], i % 3),
        seed=i,
        ignore_eos=True,
    )


def banned_lists(chance: Random, i: int) -> Attempt:
    return complete(
        banned_strings=[chance.choice("etaoinshr") * (1 + n % 3) + chance.choice("abcdefgh ") for n in range(128)],
        n=4,
        max_tokens=32,
        seed=i,
        ignore_eos=True,
    )


def forced_ids(chance: Random, i: int) -> Attempt:
    return complete(
        forced_token_ids=listed(chance, [[2], [2] * 8, [0], list(range(100)), [5] * 8], i % 5),
        logprobs=5,
        min_tokens=4,
        seed=i,
    )


def watermarks(chance: Random, i: int) -> Attempt:
    marks: list[dict[str, Any]] = [
        {"kind": "kgw", "key": -(2**63), "delta": 100.0, "gamma": 1e-300},
        {"kind": "synthid", "key": 2**63 - 1, "depth": 64, "context": 64},
        {"kind": "kgw", "key": 0, "gamma": 0.999999},
        {"kind": "synthid", "key": 0, "depth": 1},
    ]
    return complete(watermark=marks[i % 4], n=4, seed=i)


def copies(chance: Random, i: int) -> Attempt:
    n = listed(chance, [64, 63, 65, 128, 1024], i % 5)
    return complete(LONG[: 300 * i], n=n, seed=i, max_tokens=16, ignore_eos=True)


def best_of(chance: Random, i: int) -> Attempt:
    return complete(
        best_of=listed(chance, [64, 1024, 20, 1025, 40], i % 5),
        n=1 + i % 3,
        logprobs=listed(chance, [None, 5, 20], i % 3),
        seed=i,
        max_tokens=16,
    )


def beams(chance: Random, i: int) -> Attempt:
    fields: list[dict[str, Any]] = [
        {"best_of": 64},
        {"best_of": 65},
        {"n": 16},
        {"best_of": 64, "length_penalty": 10.0},
        {"best_of": 4, "length_penalty": 1e300},
        {"best_of": 8, "early_stopping": "never"},
        {"n": 64, "max_tokens": 64},
        {"best_of": 2},
        {"best_of": 0},
        {"best_of": 64, "guided_regex": "a"},
    ]
    return complete(use_beam_search=True, **listed(chance, fields, i))


def scores(chance: Random, i: int) -> Attempt:
    return complete(
        [5, 6, 7] * (1300 - i), prompt_logprobs=listed(chance, [20, 0, 21, 5, 20], i % 5), max_tokens=1, n=1 + i % 2
    )


def echoes(chance: Random, i: int) -> Attempt:
    return complete(
        LONG[: 1 + 1500 * i],
        echo=True,
        logprobs=listed(chance, [20, None, 0, 5], i % 4),
        max_tokens=listed(chance, [0, 1, 4], i % 3) if i % 4 != 1 else 1,
    )


def many_logprobs(chance: Random, i: int) -> Attempt:
    if i % 2:
        return chat(logprobs=True, top_logprobs=listed(chance, [20, 21, 0, -1, 20], i % 5), n=16, seed=i)
    return complete(
        logprobs=20,
        n=32,
        max_tokens=32,
        report_entropy=True,
        stream=True,
        return_token_ids=True,
        seed=i,
        logprobs_mode="processed",
    )


def loops(chance: Random, i: int) -> Attempt:
    sizes = [(512, 2, 1), (512, 10_000, 1), (1, 2, 1), (512, 2, 512), (400, 3, 5)]
    largest, count, smallest = sizes[i % 5]
    return complete(
        [5] * 3000,
        allowed_token_ids=[5, 6],
        repetition_detection={"max_pattern_size": largest, "min_count": count, "min_pattern_size": smallest},
        n=8,
        max_tokens=200,
        ignore_eos=True,
        seed=i,
    )


def guesses(chance: Random, i: int) -> Attempt:
    rule = listed(chance, ["exact", "rejection", "block", "typical", None], i % 5)
    return complete(
        [5, 6, 7, 8] * 100,
        speculation={"max_drafts": listed(chance, [0, 1, 32, 33, 8], (i + 2) % 5), **({"rule": rule} if rule else {})},
        seed=i,
        temperature=listed(chance, [0, 1e-6, 1.0], i % 3),
        max_tokens=32,
    )


def budgets(chance: Random, i: int) -> Attempt:
    return chat(
        thinking_token_budget=listed(chance, [0, 1, -1, 2**31, 5], i % 5),
        stop_scope=listed(chance, ["content", "all", "nothing"], i % 3),
        stop=["</think>"],
    )


def deadlines(chance: Random, i: int) -> Attempt:
    return complete(
        deadline_s=listed(chance, [1e-9, 0, -1, 0.001, 1e300, 86_401, 0.01, 1e-300, 86_400, 0.1], i),
        max_tokens=500,
        ignore_eos=True,
        n=4,
    )


def priorities(chance: Random, i: int) -> Attempt:
    return complete(
        priority=listed(chance, [-(2**31), 2**31 - 1, -1, 2**31, -(2**40)], i % 5), n=32, max_tokens=32, ignore_eos=True
    )


def long_answers(chance: Random, i: int) -> Attempt:
    """All that a step may hold: long prompts that share nothing, many at once."""
    import dataclasses

    ask = lambda n: complete([chance.randrange(49_152) for _ in range(3000)], max_tokens=16, seed=n, ignore_eos=True)  # noqa: E731  # noqa: E501, one text
    return dataclasses.replace(ask(0), beside=tuple(ask(n) for n in range(1, 5)))


KINDS = (
    Kind("nothing left", nothing_left, EITHER, "a row that is empty for the kernels and not for the reference"),
    Kind("steep knobs", steep_knobs, EITHER, "overflows: NaN, or −inf everywhere"),
    Kind("every knob at once", everything, EITHER, "orders that nobody tried"),
    Kind("orders", orders, EITHER, "names that are none"),
    Kind("mirostat in company", mirostats, EITHER, "a state that learns from a row it did not draw: math domain error"),
    Kind("guidance at extremes", guidance, EITHER, "two rows for one; inf − inf"),
    Kind("long histories", long_histories, EITHER, "a search of the history in each step"),
    Kind("long lists", long_lists, EITHER, "100,000 entries in Python, in each slot"),
    Kind(
        "long stop lists", stop_lists, EITHER, "an automaton of 300 times the size, in the engine and in the front end"
    ),
    Kind("stop patterns at the bound", stop_patterns, EITHER, "50 µs a character, times sixteen, times the copies"),
    Kind("stop patterns refused", refused_patterns, REFUSED, "500s"),
    Kind(
        "banned letters",
        banned_letters,
        EITHER,
        "2 tokens in 40 s: max_tokens does not bound the rewinds",
    ),
    Kind("long lists of bans", banned_lists, EITHER, "the same"),
    Kind("forced tokens", forced_ids, EITHER, "an end that is forced and forbidden"),
    Kind("watermarks", watermarks, EITHER, "keys and depths at the edge"),
    Kind("many copies", copies, EITHER | statuses(429), "forks in one step"),
    Kind("best of many", best_of, EITHER, "the same, with logprobs"),
    Kind("wide beams", beams, EITHER, "a request per beam and token"),
    Kind("logprobs of long prompts", scores, EITHER, "128 rows of the whole vocabulary a step"),
    Kind("echoes", echoes, EITHER, "the same, by another door"),
    Kind("logprobs of many", many_logprobs, EITHER, "events of megabytes"),
    Kind("loops looked for", loops, EITHER, "a search per token in Python"),
    Kind("guesses", guesses, EITHER, "verification that divides by nothing"),
    Kind("budgets of thought", budgets, EITHER, "markers that are forced twice"),
    Kind("deadlines", deadlines, EITHER, "timers in the past"),
    Kind("priorities", priorities, EITHER, "who comes first keeps the rest out"),
    Kind("long prompts at once", long_answers, FINE, "prefill chunks beside everybody's tokens"),
)
