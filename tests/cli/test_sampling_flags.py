"""The flags that are made from the fields of SamplingParams: each arrives, and what can't be written has none."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest

from field_examples import company
from tailrace.cli.flags import add_sampling_flags, read_sampling
from tailrace.errors import ParameterError
from tailrace.params import FIELDS, SamplingParams
from tailrace.request.sampler_fields import DRY_BREAKERS

NONE = {"processors", "watermark", "grammar", "thinking", "speculation", "repetition_detection", "stop_outside"}
OTHERWISE = {
    "bad_words": ["no"],
    "logit_bias": ["9=50"],
}  # how they are written, where that is another way than they are held


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_sampling_flags(made)
    return made


def flags() -> set[str]:
    return {action.dest.removeprefix("sampling.") for action in parser()._actions if action.dest != "help"}


def written(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    each = OTHERWISE.get(name) or (value if isinstance(value, tuple) else [value])
    return [f"{flag}={part}" for part in each]


def read(*argv: str) -> SamplingParams:
    tokenizer: Any = SimpleNamespace(bad_word_ids=lambda word: [(0,), (3,)], ids_with=lambda strings: (len(strings),))
    return read_sampling(parser().parse_args(argv), {}, tokenizer)


def sampled_and_written(name: str) -> dict[str, Any]:
    """The field beside what it needs, as long as both have flags."""
    return {of: value for of, value in company(name).items() if of in flags()}


@pytest.mark.parametrize("name", sorted(FIELDS.keys() & flags() - {"logprob_token_ids"}))
def test_every_flag_arrives(name):
    fields = sampled_and_written(name)
    params = read(*(word for of, value in fields.items() for word in written(of, value)))
    assert {of: getattr(params, of) for of in fields} == fields


def test_what_has_no_flag_is_a_record_or_said_to_have_none():
    assert FIELDS.keys() - flags() == NONE | {name for name, field in FIELDS.items() if field.flag == ""} | {
        "sequence_bias",
        "exponential_decay_length_penalty",
    }


def test_dry_has_its_breakers_here_too_and_a_value_out_of_range_is_refused():
    assert read("--dry-multiplier=0.8").dry_sequence_breakers == (len(DRY_BREAKERS),)
    assert read().dry_sequence_breakers == ()
    with pytest.raises(ParameterError, match=r"top_a must be a number in \[0, 1\], got 2.0"):
        read("--top-a=2")


def test_the_help_says_what_a_field_is_and_its_range():
    text = " ".join(parser().format_help().split())
    assert "Keep p ≥ top_a · p_max²; [0, 1]" in text
    assert "(repeatable)" in text


def test_seed_minus_one_is_no_seed():
    assert read("--seed=-1").seed is None
    assert read("--seed=-2").seed == -2
