"""One rule for the values of all fields in vllm_xargs, and which names are refused."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import Any, get_args

import crowd  # noqa: F401  (registers the plug-in)
import msgspec
import pytest
from shared_examples import company
from vllm import SamplingParams
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError

from tailrace.errors import ParameterError
from tailrace.integrations.field_texts import NoTokenizer, convert_texts, find_text
from tailrace.integrations.refusals import check_names
from tailrace.integrations.v1_engine import has_other_plugins
from tailrace.integrations.vllm import refused_fields
from tailrace.integrations.vllm.translate import translate_params
from tailrace.integrations.vllm.xargs import OURS, SHARED, VLLMS, describe_place, own_fields
from tailrace.params import FIELDS

SWITCHES = [name for name in OURS if FIELDS[name].type is bool]
NUMBERS = [name for name in OURS if FIELDS[name].range is not None]
NAMES = [
    name for name in OURS if hasattr(FIELDS[name].type, "__args__") and str in map(type, get_args(FIELDS[name].type))
]
V1 = describe_place(refused_fields.V1)
STRUCTURES = [name for name in OURS if name not in (*SWITCHES, *NUMBERS, *NAMES)]


def read(**own: Any) -> Any:
    """What tailrace is asked for: first as offline, then over vLLM's HTTP, which must agree."""
    body = CompletionRequest.model_validate_json(json.dumps({"prompt": "a", "vllm_xargs": own}))
    found = []
    for given in (own, body.vllm_xargs):
        params = SamplingParams(temperature=0.9, repetition_penalty=1.1, presence_penalty=0.1, extra_args=given)
        fields = own_fields(params)
        found.append(translate_params(params, (), fields | convert_texts(fields, NoTokenizer())))
    assert found[0] == found[1]
    return found[0]


def plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def beside(name: str) -> dict[str, Any]:
    """The fields that the field needs, in JSON's types. vLLM's own among them are in SamplingParams (read)."""
    return {other: plain(value) for other, value in company(name).items() if other not in (name, *SHARED)}


def test_every_own_field_is_of_one_kind() -> None:
    assert {*SWITCHES, *NUMBERS, *NAMES, *STRUCTURES} == set(OURS)
    assert len(SWITCHES) >= 4
    assert len(NUMBERS) >= 25
    assert {"watermark", "processors", "sampler_order", "dry_sequence_breakers", "sequence_bias"} <= set(STRUCTURES)
    assert NAMES == ["repetition_scope", "penalty_scope"]


@pytest.mark.parametrize("name", SWITCHES)
def test_truth_values(name: str) -> None:
    for on in (True, 1, 1.0):
        assert getattr(read(**beside(name), **{name: on}), name) is True
    for off in (False, 0, 0.0):
        assert getattr(read(**{name: off}), name) is False
    for wrong in ("true", "1", 2, 0.5, -1, [1]):
        with pytest.raises(VLLMValidationError, match=f"{name} must be true or false"):
            SamplingParams(extra_args={name: wrong})


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    value, others = company(name)[name], beside(name)
    assert getattr(read(**others, **{name: value}), name) == value
    limits = FIELDS[name].range
    assert limits is not None
    if limits.whole:
        asked = getattr(read(**others, **{name: float(value)}), name)
        assert asked == value
        assert type(asked) is int
    if 1 in limits:
        assert getattr(read(**others, **{name: True}), name) == 1
    for wrong in ("1", "true", [1], *((value + 0.5,) if limits.whole else ())):
        with pytest.raises(VLLMValidationError, match=f"{name} must be"):
            SamplingParams(extra_args={**others, name: wrong})


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    value = company(name)[name]
    assert getattr(read(**{name: value}), name) == value
    for wrong in (1, "nothing", [value]):
        with pytest.raises(VLLMValidationError, match=f"{name} must be one of"):
            SamplingParams(repetition_penalty=1.2, presence_penalty=0.5, extra_args={name: wrong})


@pytest.mark.parametrize("name", STRUCTURES)
def test_lists_and_objects_come_as_json_text_too(name: str) -> None:
    value, others = company(name)[name], beside(name)
    text = msgspec.json.encode(value).decode()
    wanted = getattr(read(**others, **{name: text}), name)
    assert wanted == value
    offline = SamplingParams(temperature=0.9, extra_args={**others, name: plain(value)})
    assert getattr(translate_params(offline, ()), name) == value
    for wrong in ("[1", "text", 3, True):
        with pytest.raises(VLLMValidationError, match=name):
            SamplingParams(extra_args={**others, name: wrong})


def test_texts_of_converted_fields() -> None:
    read(dry_multiplier=0.8, dry_sequence_breakers=["\n", "a"])
    read(dry_multiplier=0.8, dry_sequence_breakers='["\\n"]')
    assert read(dry_multiplier=0.8, dry_sequence_breakers=[3, 4]).dry_sequence_breakers == (3, 4)
    assert read(dry_multiplier=0.8, dry_sequence_breakers=[]).dry_sequence_breakers == ()
    for wrong in ([3, "a"], [True], [0.5], ["a" * 1001], ["a"] * 65, [""], {"a": 1}):
        with pytest.raises(VLLMValidationError, match="dry_sequence_breakers"):
            SamplingParams(extra_args={"dry_multiplier": 0.8, "dry_sequence_breakers": wrong})
    assert SamplingParams(extra_args={"sequence_bias": [["ab", 2], [[3, 4], -1.5]]}).extra_args
    for wrong in ([["ab"]], [[3, 4]], [["ab", "x"]], [[["a"], 1]], [["", 1]], [[[], 1.0]], [["a", 1e9]]):
        with pytest.raises(VLLMValidationError, match="sequence_bias"):
            SamplingParams(extra_args={"sequence_bias": wrong})


def test_a_method_that_is_turned_off_silences_its_other_fields() -> None:
    assert read(dry_multiplier=0, dry_base=2.0, xtc_probability=0.0, xtc_threshold=0.2).dry_base == 1.75
    with pytest.raises(VLLMValidationError, match="dry_base has no effect without dry_multiplier"):
        SamplingParams(extra_args={"dry_base": 2.0})


@pytest.mark.parametrize("name", sorted(VLLMS | set(SHARED)))
def test_names_of_vllms_own_are_refused(name: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^{name} can't be had in vllm_xargs: set vLLM's own") as found:
        SamplingParams(extra_args={name: 1})
    assert found.value.parameter == name


@pytest.mark.parametrize("runner", ["V1", "V1_DRAFTS", "V2", "V2_DRAFTS"])
def test_refused_fields_are_fields_with_reasons(runner: str) -> None:
    refused = getattr(refused_fields, runner)
    place = describe_place(refused)
    assert set(refused) <= set(FIELDS)
    assert all(refused.values())
    for name in refused:
        with pytest.raises(ParameterError, match=f"^{name} can't be had inside vLLM: "):
            check_names([name], place)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("top_nsigma", "top_n_sigma"),
        ("xtc_probabilty", "xtc_probability"),
        ("dry_multiplyer", "dry_multiplier"),
        ("dry_sequence_breaker", "dry_sequence_breakers"),
        ("mirostat_mode", "mirostat"),
        ("nsigma", "top_n_sigma"),
        ("tfs", "tfs_z"),
        ("typical", "typical_p"),
        ("repeat_last_n", "penalty_last_n"),
        ("mirostat_target", "mirostat_tau"),
        ("samplers_order", "sampler_order"),
        ("DRY_MULTIPLIER", "dry_multiplier"),
        ("topNSigma", "top_n_sigma"),
        ("nsigma ", "top_n_sigma"),
        ("\u0442op_n_sigma", "top_n_sigma"),
        ("repeat_penalty", "vLLM's own repetition_penalty, outside of vllm_xargs"),
        ("tempurature", "vLLM's own temperature, outside of vllm_xargs"),
    ],
)
def test_a_near_miss_is_suggested(name: str, meant: str) -> None:
    with pytest.raises(ParameterError, match=f"there is no field {name} in vllm_xargs; did you mean {meant}?") as found:
        check_names([name], V1)
    assert found.value.param == name


@pytest.mark.parametrize("name", ["banned_string", "bannedStrings", "stop_regexp", "guidance"])
def test_a_near_miss_of_a_refused_field_has_the_reason(name: str) -> None:
    with pytest.raises(ParameterError, match=r"did you mean .*\? It can't be had inside vLLM: vLLM"):
        check_names([name], V1)


THEIRS = ["kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "session_id", "diffusion_canvas_length"]
UNLIKE = ["dry_mult", "xtc_prob", "json", "somebody_elses", "ngram_size", "window_size", "", "a" * 5000]


def test_names_that_vllm_reads_pass() -> None:
    check_names(THEIRS, V1)


@pytest.mark.parametrize("name", UNLIKE)
def test_an_unknown_name_passes_only_where_others_may_read_it(name: str) -> None:
    """Those of vLLM's examples of custom processors among them."""
    with pytest.raises(ParameterError, match="has no effect: neither tailrace nor vLLM reads it there") as found:
        check_names([name], V1)
    assert len(str(found.value)) < 200
    check_names([*THEIRS, name, "mirostat_target"], V1, True)


def test_plugins_of_vllm_and_tailrace_are_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_other_plugins("vllm")
    for value in ("vllm_other.start:register", "mine:Processor"):
        point = EntryPoint("other", value, "vllm.general_plugins")
        monkeypatch.setattr("tailrace.integrations.v1_engine.entry_points", lambda group, point=point: [point])
        assert has_other_plugins("vllm")


def test_without_a_tokenizer_texts_are_found() -> None:
    for own, waiting in (
        ({"dry_multiplier": 1.0}, "dry_sequence_breakers"),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": None}, "dry_sequence_breakers"),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": []}, ""),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": [3]}, ""),
        ({"dry_multiplier": 1.0, "dry_sequence_breakers": ["a"]}, "dry_sequence_breakers"),
        ({"dry_multiplier": 0}, ""),
        ({"sequence_bias": [[[3], 1]]}, ""),
        ({"sequence_bias": [[[3], 1], ["a", 1]]}, "sequence_bias"),
        ({"bad_words": [[3], "a"]}, "bad_words"),
        ({"bad_words": [[3]]}, ""),
        ({}, ""),
    ):
        assert find_text(own) == waiting


def test_an_own_field_beside_what_vllm_must_serve_is_refused() -> None:
    for beside_it, text in (
        ({"logprobs": -1}, "logprobs of the whole vocabulary"),
        ({"logprob_token_ids": [3]}, "logprob_token_ids"),
    ):
        with pytest.raises(VLLMValidationError, match=f"top_n_sigma can't be had beside {text}"):
            SamplingParams(extra_args={"top_n_sigma": 1.5}, **beside_it)
