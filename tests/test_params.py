"""The declarations of a request's fields: complete, consistent, and refused where they are not; what they say is what
is checked."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Annotated

import msgspec
import numpy as np
import pytest
import torch

from field_examples import company, example
from tailrace.errors import ParameterError
from tailrace.kernels.program import STAGES
from tailrace.params import FIELDS, NEUTRAL, VOIDS, SamplingParams, list_switches, voids_of
from tailrace.request.fields import COUNT, KINDS, OFF, Field, Range, declared_fields
from tailrace.request.method_order import EDIT_ORDER, REFINEMENT_ORDER, STEPS
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.pipeline import EDITS, REFINEMENTS, beyond_kernels, check_state, load_methods, stages_of
from tailrace.sampling.slot import LogitsEdit, Refinement


def test_declarations_name_what_there_is():
    for field in FIELDS.values():
        assert field.kind in KINDS
        assert field.off in ("", *OFF)
        assert field.excludes in ("", "some", "most")
        assert set(field.needs) <= FIELDS.keys()
        assert set(voids_of(field)) <= VOIDS.keys() <= FIELDS.keys()
        assert field.doc[0].isupper() or not field.doc[0].isalpha()
        assert not field.doc.endswith(".")
    for name in (*EDITS, *REFINEMENTS):
        assert list_switches(name), f"nothing switches {name} on"


def test_a_default_is_neutral_and_an_example_is_not():
    assert SamplingParams() == SamplingParams(**NEUTRAL)
    for name, field in FIELDS.items():
        assert field.neutral(field.default), name
        assert not field.neutral(example(field)), name


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.range is not None])
def test_a_value_outside_the_range_is_refused_with_the_range(name):
    field = FIELDS[name]
    low, high, low_in, high_in = field.range
    step = 1 if field.range.whole else 1e-9 + abs(high) * 1e-9
    for outside in (low - step if low_in else low, high + step if high_in else high, "1", True, float("nan")):
        with pytest.raises(ParameterError) as error:
            SamplingParams(**company(name) | {name: outside})
        assert error.value.param == name
        assert str(field.range) in str(error.value)


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.entries is not None])
def test_more_entries_than_a_field_may_have_are_refused(name):
    value, most = example(FIELDS[name]), FIELDS[name].entries
    many = dict.fromkeys(range(most + 1), 1.0) if name == "logit_bias" else value
    if name == "processors":
        many = {str(i): {} for i in range(most + 1)}
    elif isinstance(value, tuple):
        many = value[:1] * (most + 1)
    with pytest.raises(ParameterError, match=f"{name} must have at most {most} {FIELDS[name].unit}"):
        SamplingParams(**company(name) | {name: many})


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if voids_of(field) and not field.needs])
def test_what_something_else_makes_void_is_refused_beside_it(name):
    beside = {"temperature": {"temperature": 0.0}, "mirostat": {"mirostat": 2}, "p_less": {"p_less": True}}
    for by in voids_of(FIELDS[name]):
        with pytest.raises(ParameterError, match=f"{name} has no effect with {VOIDS[by][1]}"):
            SamplingParams(**beside[by] | {name: example(FIELDS[name])})


def test_all_that_is_void_is_named_with_what_is_off():
    whole = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "p_less": False}
    with pytest.raises(ParameterError) as error:
        SamplingParams(mirostat=2, **whole)
    assert (error.value.param, str(error.value)) == (
        "top_k",
        "top_k, top_p and min_p: each has no effect with mirostat, which replaces it; leave them out (or 0, 1 and 0)",
    )
    with pytest.raises(ParameterError, match=r"top_k has no effect with mirostat, .*; leave it out \(or 0\)$"):
        SamplingParams(mirostat=2, top_k=40)
    assert SamplingParams(mirostat=2, top_k=0, top_p=1.0, min_p=0.0).mirostat == 2


@pytest.mark.parametrize("name", ["epsilon_cutoff", "eta_cutoff"])
def test_a_cutoff_in_other_units_is_explained(name):
    """text-generation-webui's panel has 3 where the probability is 0.0003."""
    with pytest.raises(ParameterError, match=r"in \[0, 1\), got 3: a probability, not .* units of 0.0001$"):
        SamplingParams(**{name: 3})


def test_values_become_of_the_declared_type():
    params = SamplingParams(top_k=np.int64(4), stop=["a"], logit_bias={np.int64(3): np.float32(1.0)}, p_less=np.True_)
    assert (params.top_k, params.stop, params.logit_bias, params.p_less) == (4, ("a",), {3: 1.0}, True)
    assert [type(value) for value in (params.top_k, params.stop, params.p_less)] == [int, tuple, bool]
    for name in ("top_p", "p_less", "stop", "penalty_scope"):
        with pytest.raises(ParameterError) as error:
            SamplingParams(**{name: None})
        assert error.value.param == name


def test_params_are_read_back_as_they_were_sent():
    for name in FIELDS:
        params = SamplingParams(**({"logprobs": 0} if name == "logprob_token_ids" else company(name)))
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


# ---- planted faults: a table that forgot something does not load


class Undeclared(msgspec.Struct):
    size: Annotated[int, Field("A size", COUNT, kind="edit")] = 0
    forgotten: int = 0


class OutOfRange(msgspec.Struct):
    share: Annotated[float, Field("A share", Range(0.0, 1.0, high_in=False), kind="edit")] = 1.0


def test_a_field_without_a_declaration_or_with_a_default_outside_its_range_is_an_error():
    with pytest.raises(TypeError, match=r"Undeclared\.forgotten has no Field"):
        declared_fields(Undeclared)
    with pytest.raises(TypeError, match=r"the default of OutOfRange\.share, 1\.0, is not in \[0, 1\)"):
        declared_fields(OutOfRange)


def test_a_method_that_is_not_in_the_order_or_that_no_field_names_does_not_load():
    with pytest.raises(ImportError, match=r"different methods: \['top_p'\]"):
        load_methods(Refinement, [entry for entry in REFINEMENT_ORDER if entry.name != "top_p"], set(REFINEMENTS))
    with pytest.raises(ImportError, match=r"different methods: \['dry'\]"):
        load_methods(LogitsEdit, EDIT_ORDER, set(EDITS) - {"dry"})
    with pytest.raises(ImportError, match=r"dry\.py must have a METHOD that is a Refinement"):
        load_methods(Refinement, [STEPS["dry"]], {"dry"})


def test_a_method_that_learns_must_be_declared_so():
    learning = Refinement(REFINEMENTS["top_p"].apply, None, begin=lambda params: {})
    with pytest.raises(ImportError, match="top_p: its fields must be declared stateful"):
        check_state({"top_p": learning})
    with pytest.raises(ImportError, match="mirostat: its fields must be declared stateful"):
        check_state({"mirostat": REFINEMENTS["top_p"]})


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("change", "module", "message"),
    [
        (
            "p.STAGES['more'] = p.StageInfo('depth')",
            "cpu.program",
            f"number {len(STAGES)} is missing in csrc/sample/program.h and ('more', 'depth') in kernels/program.py",
        ),
        (
            "p.STAGES['eta'] = p.StageInfo('mass')",
            "cpu.program",
            "number 9 is ('eta', 'moments') in csrc/sample/program.h and ('eta', 'mass') in kernels/program.py",
        ),
        ("p.STAGES['top_h'] = p.StageInfo('depth')", "gpu.refine", "differ about these stages: top_h"),
        ("c.XTC_STREAM = 4", "cpu.program", "XTC_STREAM is 3 in csrc/ and 4 in kernels/"),
        ("c.TYPICAL_DELTA = 0.31", "cpu.program", "TYPICAL_DELTA is 0.3 in csrc/ and 0.31 in kernels/"),
        ("c.ANOTHER = 1", "cpu.program", "ANOTHER is missing in csrc/ and 1 in kernels/"),
        ("del c.COSTLY", "cpu.program", "COSTLY is 128 in csrc/ and missing in kernels/"),
        ("r.PLACES['block'] = 3", "cpu.program", "'block': 3, 'typical': 3} in kernels/rows.py"),
    ],
)
def test_numbers_that_differ_between_python_and_the_kernels_do_not_load(change, module, message):
    code = f"""
import importlib, sys
import tailrace.kernels.constants as c
import tailrace.kernels.needs
import tailrace.kernels.program as p
import tailrace.kernels.rows as r
{change}
name = "tailrace.kernels.{module}"
sys.modules.pop(name, None)
importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "ImportError: " in done.stderr
    assert message in done.stderr.splitlines()[-1]


def test_a_method_without_a_kernel_falls_back(monkeypatch):
    """Its rows are drawn by the reference, and its neighbours' tokens are the same."""

    def drawn() -> list[list[int]]:
        slots = Slots(2, 40)
        slots.add(0, SamplingParams(top_k=3), key=1, prompt=[1])
        slots.add(1, SamplingParams(min_p=0.1, top_p=0.9), key=2, prompt=[1])
        logits = torch.linspace(3.0, -3.0, 40).repeat(2, 1)
        return [Sampler(slots, "cpu")(logits, Rows.plain([0, 1], [0, 1], [i, i])).tokens() for i in range(20)]

    params, before = SamplingParams(min_p=0.1, top_p=0.9), drawn()
    assert not beyond_kernels(params)
    monkeypatch.setitem(REFINEMENTS, "top_p", dataclasses.replace(REFINEMENTS["top_p"], stage=None))
    assert beyond_kernels(params)
    assert [stage.kind for stage in stages_of(params)] == ["min_p"]
    assert not beyond_kernels(SamplingParams(min_p=0.1))
    assert drawn() == before


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.needs])
def test_an_error_about_a_field_mentions_the_fields_that_it_needs(name):
    field = FIELDS[name]
    with pytest.raises(ParameterError, match="has no effect without") as caught:
        SamplingParams(**{name: example(field)})
    assert (caught.value.param, caught.value.mentions) == (name, field.needs)
    renamed = caught.value.rename_fields(dict.fromkeys(field.needs, "another"))
    assert str(renamed) == f"{name} has no effect without another"


def test_only_the_field_and_mentioned_fields_are_renamed():
    text = "stop[0] must be shorter than max_tokens (4), got 'n and min_tokens'"
    error = ParameterError(text, "stop[0]", mentions=["max_tokens"])
    names = {"max_tokens": "num_predict", "stop": "stop_sequence", "n": "n_cmpl", "min_tokens": "min_new_tokens"}
    renamed = error.rename_fields(names)
    assert str(renamed) == "stop_sequence[0] must be shorter than num_predict (4), got 'n and min_tokens'"
    assert (renamed.param, renamed.mentions) == ("stop_sequence[0]", ("num_predict",))
    assert ParameterError(text).rename_fields(names).args == (text,)
