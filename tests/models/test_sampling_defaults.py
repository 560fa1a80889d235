"""The sampling fields of a request that leaves them out: the operator's go before the model's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli import local
from tailrace.cli.serve import read_defaults
from tailrace.config import Config, ModelConfig
from tailrace.errors import ConfigError
from tailrace.models import LocalModel, choose_sampling_defaults
from tailrace.models.default import DEFAULT_SAMPLING
from tailrace.models.sampling_defaults import ACCEPTED, read_sampling_defaults
from tailrace.params import FIELDS


@pytest.mark.parametrize(
    ("given", "own", "found"),
    [
        ({}, True, {"temperature": 0.7, "top_k": 20}),
        ({"temperature": 0.1}, True, {"temperature": 0.1, "top_k": 20}),
        ({"temperature": 0.1}, False, {"temperature": 0.1}),
        ({"top_p": 0.9, "max_new_tokens": 5}, True, {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "max_tokens": 5}),
        ({"min_k": True}, False, {"min_k": True}),
        ({"temperature": 0}, False, {"temperature": 0.0}),
    ],
)
def test_the_operators_go_before_the_models(tmp_path: Path, given: dict[str, Any], own: bool, found: dict[str, Any]):
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.7, "top_k": 20}')
    text = json.dumps(given) if given else ""
    assert choose_sampling_defaults(tmp_path, ModelConfig(override_generation_config=text), own) == found


def test_the_small_default_model_has_defaults_that_its_file_does_not_state(tmp_path: Path):
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 2}')
    assert choose_sampling_defaults(tmp_path, ModelConfig()) == DEFAULT_SAMPLING
    assert choose_sampling_defaults(tmp_path, ModelConfig(), own=False) == {}
    assert choose_sampling_defaults(tmp_path, ModelConfig(model="another")) == {}
    found = choose_sampling_defaults(tmp_path, ModelConfig(override_generation_config='{"temperature": 1}'))
    assert found == {**DEFAULT_SAMPLING, "temperature": 1.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "must be a JSON object"),
        ("{", "must be a JSON object"),
        ("temperature=1", "must be a JSON object"),
        ("\ud800", "must be a JSON object"),
        ('{"temprature": 1}', r'"temprature" has no default \(did you mean temperature\?\)'),
        ('{"seed": 1}', '"seed" has no default'),
        ('{"logit_bias": {"1": 2}}', '"logit_bias" has no default'),
        ('{"temperature": "hot"}', "temperature: Expected `float`"),
        ('{"temperature": null}', "temperature: Expected `float`"),
        ('{"temperature": -1}', r"temperature must be a number in \[0"),
        ('{"temperature": 1e400}', "temperature"),
        ('{"top_k": 1.5}', "top_k: Expected `int`"),
        ('{"max_tokens": 0}', "max_tokens must be an integer"),
        ('{"max_tokens": 5, "max_new_tokens": 6}', "max_tokens is given twice"),
        ('{"mirostat": 2, "top_p": 0.5}', "top_p has no effect with mirostat"),
    ],
)
def test_a_wrong_value_is_refused_by_name(text: str, said: str):
    with pytest.raises(ConfigError, match=said) as caught:
        read_sampling_defaults(text)
    assert str(caught.value).startswith("model.override_generation_config")


@pytest.mark.parametrize("name", ACCEPTED)
def test_each_accepted_field_takes_its_neutral_value(name: str):
    neutral = FIELDS[ACCEPTED[name]].default
    value = 16 if ACCEPTED[name] == "max_tokens" else neutral
    assert read_sampling_defaults(json.dumps({name: value})) == {ACCEPTED[name]: value}


@pytest.mark.parametrize(("asked", "found"), [(ModelConfig(), DEFAULT_SAMPLING), (ModelConfig(model="another"), {})])
def test_the_defaults_outlive_the_search_for_the_model(tmp_path, monkeypatch, asked, found):
    """The settings then name a folder, as for any model."""
    monkeypatch.setattr(local, "resolve", lambda model, progress: LocalModel(tmp_path, "m"))
    monkeypatch.setattr(local, "load_tokenizer", lambda folder, model: None)
    monkeypatch.setattr(local, "check_tokenizer", lambda folder, trusted: None)
    prepared = local.prepare(Config(model=asked), False)
    assert prepared.config.model.model == str(tmp_path)
    assert read_defaults(prepared, True) == found
