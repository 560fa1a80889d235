"""Every field of tailrace's × each runner of vLLM's: it acts as in tailrace's library, or it is refused with a reason.

Fields that the sampler does not act on are vLLM's own. test_engine_fields.py asks a real engine for them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from crowd import CONFIG, VOCAB, Crowd
from shared_examples import company
from v2_stand_in import V2_GIVEN, V2Sampler
from vllm import SamplingParams
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from tailrace.integrations.vllm import refused_fields, v2
from tailrace.integrations.vllm.door import Door
from tailrace.integrations.vllm.fallbacks import fallbacks
from tailrace.integrations.vllm.translate import EDITS
from tailrace.integrations.vllm.xargs import OURS, SHARED
from tailrace.params import FIELDS
from tailrace.params import SamplingParams as Ours
from tailrace.sampling import Rows, Slots
from tailrace.sampling import Sampler as OurSampler
from tailrace.sampling.processors import REGISTERED, register

PROMPT, STEPS, EOS = [1, 2, 1, 3], 24, 7
PATHS = {name: getattr(refused_fields, name) for name in ("V1", "V1_DRAFTS", "V2", "V2_DRAFTS")}
# fields that the sampler acts on; the others that vLLM has are the engine's
SAMPLED = [
    name
    for name, field in FIELDS.items()
    if not field.instead and field.kind != "report" and name not in refused_fields.EVERYWHERE
]
BASE = {"temperature": 0.9, "seed": 5}


@pytest.fixture(autouse=True)
def processor() -> Any:
    """The processor of field_examples.EXAMPLES."""
    REGISTERED.pop("mine", None)
    register("mine", lambda row, tokens, x: row.__setitem__(5, 1e9) or row)
    yield
    del REGISTERED["mine"]


def config_of(path: str) -> Any:
    """A server's configuration, as far as the door reads it."""
    drafts = SimpleNamespace(num_speculative_tokens=2) if path.endswith("DRAFTS") else None
    model = SimpleNamespace(**vars(CONFIG.model_config), logits_processors=None)
    more = {"speculative_config": drafts, "use_v2_model_runner": path.startswith("V2"), "model_config": model}
    return SimpleNamespace(**{**vars(CONFIG), **more})


def make_logits(fields: dict[str, Any]) -> torch.Tensor:
    """The logits of each place of the output. For methods that look for repetitions few of the tokens are likely."""
    logits = torch.randn(STEPS + 3, VOCAB, generator=torch.Generator().manual_seed(1)) * 1.5
    likely = 0 if "mirostat" in fields else 3 if "dry_multiplier" in fields else 10
    logits[:, :likely] += 12 if likely == 3 else 6
    return logits


MORE = {
    "dynatemp_range": {"dynatemp_range": 0.6},
    "dynatemp_exponent": {"dynatemp_range": 0.6},
    "normalize_logits": {"repetition_penalty": 1.5},
    "dry_base": {"dry_base": 300.0, "dry_multiplier": 0.1, "dry_allowed_length": 1},
    "min_k_tau": {"min_k_tau": 1e4},
    "forced_token_ids": {"forced_token_ids": (4, 4)},
}


def fields_of(name: str) -> dict[str, Any]:
    """The field with a value at which it acts, and the fields that it needs."""
    return company(name) | MORE.get(name, {})


def make_theirs(fields: dict[str, Any]) -> SamplingParams:
    """The fields in vLLM's form: its own, and tailrace's in extra_args."""
    fields = BASE | fields
    own = {name: msgspec.to_builtins(value) for name, value in fields.items() if name in OURS}
    theirs = {name: value for name, value in fields.items() if name in SHARED and name != "bad_words"}
    if "min_tokens" in fields:
        theirs |= {"min_tokens": STEPS, "max_tokens": STEPS + 1}
    if "allowed_token_ids" in fields:
        theirs["allowed_token_ids"] = list(fields["allowed_token_ids"])
    params = SamplingParams(**theirs, extra_args=own or None)
    params._all_stop_token_ids.add(EOS)
    params._bad_words_token_ids = [list(ids) for ids in fields.get("bad_words", ())]
    return params


def draw_library(fields: dict[str, Any], shape: dict[str, Any] | None = None) -> list[int]:
    """The tokens of tailrace's library. shape: the fields whose logits they are drawn from."""
    slots = Slots(1, VOCAB)
    given: dict[str, Any] = BASE | fields | ({"min_tokens": STEPS} if "min_tokens" in fields else {})
    slots.add(0, Ours(**given), prompt=PROMPT, eos_token_ids=[EOS])
    sampler, logits, found = OurSampler(slots), make_logits(shape or fields), []
    for step in range(STEPS):
        [token] = sampler(logits[step : step + 1], Rows.plain([0], [0], [len(PROMPT) + step])).token_ids[:, 0].tolist()
        slots.commit([0], [[token]])
        found.append(token)
    return found


def start_crowd(fields: dict[str, Any], drafting: bool) -> tuple[Crowd, list[int]]:
    """A batch of one request, and its output."""
    drafts = SimpleNamespace(rejection_sample_method="standard") if drafting else None
    crowd = Crowd(3, SimpleNamespace(**{**vars(CONFIG), "speculative_config": drafts}))
    name = crowd.add(make_theirs(fields), prompt=list(PROMPT))
    crowd.settle()
    return crowd, crowd.live[name].output_token_ids


def draw_v1(fields: dict[str, Any]) -> list[int]:
    crowd, output = start_crowd(fields, False)
    for step in range(STEPS):
        crowd.batch.refresh_metadata()
        output += Sampler()(make_logits(fields)[step : step + 1], crowd.metadata).sampled_token_ids[:, 0].tolist()
    return output


def draw_drafted(fields: dict[str, Any]) -> list[int]:
    """Two drafts each step: the right one, as far as the output without drafts tells, and a wrong one in each third."""
    right = draw_library(fields)
    crowd, output = start_crowd(fields, True)
    steps = 0
    while len(output) < STEPS:
        at = len(output)
        metadata = SpecDecodeMetadata.make_dummy([choose_drafts(right[at : at + 2], steps)], torch.device("cpu"))
        crowd.batch.refresh_metadata()
        out = RejectionSampler(Sampler())(metadata, None, make_logits(fields)[at : at + 3], crowd.metadata)
        output += RejectionSampler.parse_output(out.sampled_token_ids, VOCAB)[0][0]
        steps += 1
    assert steps < STEPS / 2
    return output[:STEPS]


def draw_v2(fields: dict[str, Any]) -> list[int]:
    """By tailrace's part of the V2 runner. vLLM's own kernels do the edits, before it."""
    theirs = V2Sampler()
    ours = v2.DrawnRequests(theirs, V2_GIVEN)
    ours.add_request(0, make_theirs(fields))
    found: list[int] = []
    for step in range(STEPS):
        place: dict[str, Any] = dict.fromkeys(v2.PLACE)
        write_tokens(theirs.req_states, found)
        place |= {"idx_mapping_np": np.arange(1), "seq_lens_upper_bound_np": np.full(1, len(PROMPT) + step)}
        found += ours.sample(make_logits(fields)[step : step + 1], *place.values())[0].tolist()
    assert theirs.draws == 0
    return found


def write_tokens(states: Any, output: list[int]) -> None:
    """Write a request's tokens into vLLM's buffers."""
    tokens = [*PROMPT, *output]
    states.all_token_ids.gpu[0, : len(tokens)] = torch.tensor(tokens)
    states.prompt_len.gpu[0] = states.prefill_len.gpu[0] = len(PROMPT)
    states.total_len.gpu[0] = len(tokens)


def choose_drafts(right: list[int], step: int) -> list[int]:
    """Two drafts: the right ones, as far as the output without drafts tells, and a wrong one in each third step."""
    first, second = [*right, 0, 0][:2]
    return [first, (second + 1) % VOCAB if step % 3 == 2 else second]


def draw_v2_drafted(fields: dict[str, Any]) -> list[int]:
    """The same with two drafts each step. The host's bound of the length is too large."""
    theirs, right = V2Sampler(), draw_library(fields)
    ours = v2.DrawnRequests(theirs, V2_GIVEN | {"num_speculative_tokens": 3})
    ours.add_request(0, make_theirs(fields))
    ours.batch = SimpleNamespace(idx_mapping_np=np.arange(1), cu_num_logits_np=np.array([0, 3]))
    found: list[int] = []
    steps = 0
    while (at := len(found)) < STEPS:
        write_tokens(theirs.req_states, found)
        length, ids = len(PROMPT) + at, torch.tensor([0, *choose_drafts(right[at : at + 2], steps)])
        ids[0] = [*PROMPT, *found][-1]
        given: dict[str, Any] = dict.fromkeys(v2.PLACE) | {"draft_sampled": ids, "verify_draft_sampled": ids}
        given |= {"logits": make_logits(fields)[at : at + 3], "pos": torch.arange(length - 1, length + 2)}
        given |= {"idx_mapping_np": np.arange(1), "seq_lens_upper_bound_np": np.full(1, length + 4)}
        given["expanded_local_pos"] = torch.arange(3)
        _, tokens, numbers = ours.verify(lambda: None, given)
        found += tokens[0, : int(numbers[0])].tolist()
        steps += 1
    assert steps < STEPS / 2
    return found[:STEPS]


DRAWS = {"V1": draw_v1, "V1_DRAFTS": draw_drafted, "V2": draw_v2, "V2_DRAFTS": draw_v2_drafted}


def test_no_field_is_without_a_test() -> None:
    """Each is refused, sampled, or vLLM's own and in test_engine_fields.py."""
    from test_engine_fields import ENGINE_FIELDS

    for refused in PATHS.values():
        assert set(FIELDS) == {*SAMPLED, *ENGINE_FIELDS, *refused}
    assert not {*SAMPLED} & {*ENGINE_FIELDS}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [name for name in FIELDS if name not in SHARED])
def test_a_refused_field_is_refused_at_the_door_and_no_other(name: str, path: str) -> None:
    door, fields = Door(config_of(path)), fields_of(name)
    params = SamplingParams(temperature=0.9)
    for other, value in fields.items():
        if other in SHARED:
            setattr(params, other, value)
    given = {other: msgspec.to_builtins(value) for other, value in fields.items() if other not in SHARED}
    params.extra_args = given
    error = door.find_error(params, None)
    refused = {other: reason for other, reason in PATHS[path].items() if other in given}
    if name in PATHS[path]:
        assert error is not None
        assert error.param in refused
        assert str(error) == f"{error.param} can't be had inside vLLM: {refused[error.param]}"
    elif "dry_multiplier" in fields and name != "dry_sequence_breakers":
        assert error is not None  # without a tokenizer its breakers are not known
        assert error.param == "dry_sequence_breakers"
    else:
        assert error is None


@pytest.mark.parametrize("path", PATHS)
def test_a_field_of_vllms_own_is_refused_at_the_door_where_it_would_be_lost(path: str) -> None:
    asked = {"logprob_token_ids": [3], "prompt_logprob_token_ids": [[3]], "prompt_logprob_start": 1}
    assert set(PATHS["V1_DRAFTS"]) & set(SHARED) == set(asked)
    for name, value in asked.items():
        params = SamplingParams()
        setattr(params, name, value)
        error = Door(config_of(path)).find_error(params, None)
        assert (error is not None) == (name in PATHS[path])
        assert error is None or (error.param == name and PATHS[path][name] in str(error))


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "processed_logits"])
@pytest.mark.parametrize("path", PATHS)
def test_the_servers_reports_leave_no_request_to_vllm(path: str, mode: str) -> None:
    """A field of tailrace's acts in each mode, with sampling masks, too. Beside logits nothing reports it."""
    config = config_of(path)
    config.model_config.logprobs_mode, config.model_config.return_sampling_mask = mode, mode == "processed_logprobs"
    own: dict[str, Any] = {"extra_args": {"top_n_sigma": 1.0}}
    assert Door(config).find_error(SamplingParams(top_k=9, **own), None) is None
    error = Door(config).find_error(SamplingParams(top_k=9, logprobs=2, **own), None)
    assert (error is None) == mode.endswith("_logprobs")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", SAMPLED)
def test_a_sampled_field_acts_as_in_the_library(name: str, path: str) -> None:
    if name in PATHS[path]:
        pytest.skip("refused: the test before this one")
    fields = fields_of(name)
    if path.startswith("V2") and set(fields) <= set(EDITS):  # vLLM's kernels act on it: they are told
        theirs = V2Sampler()
        ours = v2.DrawnRequests(theirs, V2_GIVEN)
        ours.add_request(0, asked := make_theirs(fields))
        assert all(getattr(theirs.told[0], other) == getattr(asked, other) for other in fields)
        return
    found = DRAWS[path](fields)
    assert found == draw_library(fields)
    switches = {other: value for other, value in fields.items() if other != name}
    if name == "seed":
        switches = {"seed": 6}
    if name != "sampler_order":
        assert found != draw_library(switches, fields), "the field changes no token"
    assert not fallbacks, fallbacks
