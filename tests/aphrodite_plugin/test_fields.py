"""tailrace's own fields in Aphrodite's requests: they are read, or refused by name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aphrodite import SamplingParams
from aphrodite.exceptions import APHRODITEValidationError

from tailrace.integrations.aphrodite import sampler as ours
from tailrace.integrations.aphrodite.refused_fields import APHRODITE
from tailrace.integrations.aphrodite.translate import translate_params

VOCAB = 300


@pytest.mark.parametrize("name", APHRODITE)
def test_a_refused_field_is_named(name):
    with pytest.raises(APHRODITEValidationError, match=f"{name} can't be had inside Aphrodite: "):
        SamplingParams(extra_args={name: 1})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_kk": 1}, "there is no field min_kk in aphrodite_xargs; did you mean min_k?"),
        (
            {"top_p": 0.5},
            "top_p can't be had in aphrodite_xargs: set Aphrodite's own top_p, outside",
        ),
        ({"nsigma": 1.0}, "nsigma can't be had in aphrodite_xargs: set Aphrodite's own nsigma"),
        ({"top_n_sigma": 1.0}, "set Aphrodite's own nsigma"),
        ({"dynatemp_range": 1.0}, "set Aphrodite's own dynatemp_min and dynatemp_max"),
        ({"thinking": 1}, "set Aphrodite's own thinking_token_budget"),
        ({"sequence_bias": '[["a", 1.0]]'}, "sequence_bias must be given as token ids"),
        ({"adaptive_target": "0.5"}, "adaptive_target must be a number"),
        ({"sampler_order": "top_p"}, "sampler_order must be a list or an object, or one as JSON text"),
        ({"top_h": 2.0}, "top_h must be a number in"),
        ({"min_k": 2}, "min_k must be true or false"),
    ],
)
def test_a_wrong_field_is_named(fields, message):
    with pytest.raises(APHRODITEValidationError, match=message):
        SamplingParams(extra_args=fields)


def test_names_of_others_pass_where_others_may_read_them():
    theirs = {"kv_transfer_params": {}, "ec_transfer_params": {}, "kv_cache_report_mode": "all", "session_id": "a"}
    params = SamplingParams(extra_args={**theirs, "report": 1})
    params._validate_logits_processors(SimpleNamespace(logits_processors=[ours.AphroditeFollower]))
    SamplingParams(extra_args=theirs)._validate_logits_processors(SimpleNamespace(logits_processors=None))
    with pytest.raises(APHRODITEValidationError, match="report has no effect: neither tailrace nor Aphrodite reads it"):
        params._validate_logits_processors(SimpleNamespace(logits_processors=None))


def test_values_are_those_of_json():
    """HTTP turns truth values into numbers, and has no objects."""
    given = {"min_k": 1.0, "encoder_no_repeat_ngram_size": 2.0, "sampler_order": '["top_p","temperature"]'}
    given |= {"sequence_bias": "[[[3, 4], 2.0]]", "watermark": '{"kind": "kgw", "key": 5, "delta": 2.0}'}
    asked = translate_params(SamplingParams(extra_args=given), ())
    assert asked.min_k is True
    assert asked.sequence_bias == (((3, 4), 2.0),)
    assert asked.watermark is not None
    assert type(asked.encoder_no_repeat_ngram_size) is int
    assert asked.sampler_order == ("top_p", "temperature")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"forced_token_ids": [VOCAB]}, f"token id {VOCAB} is not in 0 … {VOCAB - 1}"),
        ({"sequence_bias": f"[[[{VOCAB}], 1.0]]"}, f"token id {VOCAB}"),
        ({"processors": '{"nobodys": {}}'}, 'there is no "nobodys"'),
    ],
)
def test_what_the_server_lacks_is_named(own, message):
    params = SamplingParams(extra_args=own)
    with pytest.raises(APHRODITEValidationError, match=message) as caught:
        params._validate_logits_processors(SimpleNamespace(logits_processors=None, get_vocab_size=lambda: VOCAB))
    assert caught.value.parameter == next(iter(own))


def test_drafts_refuse_tailraces_fields():
    params = SamplingParams(extra_args={"top_h": 0.5})
    params._validate_spec_decode(None)
    with pytest.raises(APHRODITEValidationError, match="top_h can't be had with speculative decoding"):
        params._validate_spec_decode(object())
