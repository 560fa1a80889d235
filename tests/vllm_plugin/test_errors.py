"""What tailrace raises inside vLLM: vLLM serves that step, and what follows is right again."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from crowd import CONFIG, CPU, ROWS, THEIRS, VOCAB, Crowd
from planting import count_errors, make_failing
from vllm import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput, SamplerOutput
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.worker_base import WorkerBase

from tailrace.integrations.vllm import door, draws, layout, masks, patches, v2
from tailrace.integrations.vllm.fallbacks import call_or_none, fall_back, fallbacks, log
from tailrace.integrations.vllm.requests import MAX_ERRORS, BatchFollower
from tailrace.sampling import Sampler as Ours
from tailrace.sampling import Slots

pytestmark = pytest.mark.planted

SEEDED = {"temperature": 1.0, "seed": 5, "presence_penalty": 0.8, "repetition_penalty": 1.2}
IN_STEP: dict[str, tuple[Any, str]] = {
    "ready": (BatchFollower, "ready"),
    "begin": (Ours, "begin"),
    "token": (draws, "token_for_each"),
    "logprobs": (draws, "list_logprobs"),
    "merged": (draws, "merge_outputs"),
    "changed": (draws, "change_logits"),
}


def follower_of(crowd: Crowd) -> BatchFollower:
    found = draws.follower_of(crowd.metadata)
    assert found is not None
    return found


@pytest.mark.parametrize("name", IN_STEP)
@pytest.mark.parametrize("kind", [RuntimeError, torch.OutOfMemoryError, KeyError])
def test_vllm_draws_the_step_once_from_logits_as_they_were(
    name: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = Crowd(1)
    for fields in ({"presence_penalty": 1.0}, {"logprobs": 3}, {"logprobs": -1}, {"allowed_token_ids": [3, 4, 5]}):
        crowd.add(SamplingParams(temperature=0.0, **fields))
    crowd.settle()
    logits, drawn = crowd.logits(), []
    wanted = THEIRS(Sampler(), logits.clone(), crowd.metadata)

    def theirs(sampler: Sampler, given: torch.Tensor, *args: Any) -> SamplerOutput:
        assert torch.equal(given, logits)
        drawn.append(given)
        return THEIRS(sampler, given.clone(), *args)

    with monkeypatch.context() as patch:
        where, attribute = IN_STEP[name]
        patch.setattr(where, attribute, make_failing(kind))
        found = draws.sample_for_vllm(theirs, Sampler(), logits.clone(), crowd.metadata)
    assert len(drawn) == 1
    assert count_errors() == 1
    assert found.sampled_token_ids.tolist() == wanted.sampled_token_ids.tolist()
    torch.testing.assert_close(found.logprobs_tensors.logprobs, wanted.logprobs_tensors.logprobs)
    found = Sampler()(logits.clone(), crowd.metadata)
    assert found.sampled_token_ids.tolist() == wanted.sampled_token_ids.tolist()
    assert count_errors() == 1


def test_vllms_own_errors_pass_and_its_sampler_is_called_once() -> None:
    """Beside a request that vLLM serves, and where it serves the batch."""
    for fields in ([{}, {"logprobs": -1}], [{"logprobs": -1}]):
        crowd, calls = Crowd(1), []
        for one in fields:
            crowd.add(SamplingParams(temperature=0.0, **one))
        crowd.settle()

        def theirs(*args: Any, calls: list[Any] = calls) -> NoReturn:
            calls.append(args)
            raise ZeroDivisionError("vLLM's own")

        with pytest.raises(ZeroDivisionError, match="vLLM's own"):
            draws.sample_for_vllm(theirs, Sampler(), crowd.logits(), crowd.metadata)
        assert len(calls) == 1
        assert count_errors() == 0


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_passes(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        call_or_none("sampler", make_failing(kind))


def test_the_first_traceback_of_each_kind_is_logged_and_its_count_at_powers_of_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody can read a counter in a server's process."""
    logged: list[tuple[str, BaseException | None]] = []
    monkeypatch.setattr(log, "error", lambda text, *args, exc_info: logged.append((text % args, exc_info)))
    monkeypatch.setattr(log, "warning", lambda text, *args: logged.append((text % args, None)))
    for kind in (RuntimeError,) * 120 + (KeyError,):
        assert call_or_none("sampler", make_failing(kind)) is None
    for _ in range(25):
        fall_back("a reason")
    texts = [text.rpartition(" (")[2] for text, _ in logged]
    assert texts == [f"{times} so far)" for times in (1, 10, 100, 1, 1, 10)]
    tracebacks = [error for _, error in logged]
    assert [type(error) for error in tracebacks] == [RuntimeError, *[type(None)] * 2, KeyError, *[type(None)] * 2]
    assert all(error.__traceback__ for error in tracebacks if error is not None)
    assert fallbacks == {
        "an error in tailrace's sampler (RuntimeError)": 120,
        "an error in tailrace's sampler (KeyError)": 1,
        "a reason": 25,
    }


def seeded_tokens(logits: torch.Tensor, output: list[int]) -> int:
    """Of a request that has said `output`, and joins now."""
    crowd = Crowd(9)
    crowd.add(SamplingParams(**SEEDED), prompt=[1, 2, 3], name="one")
    crowd.live["one"].output_token_ids += output
    crowd.settle()
    return int(Sampler()(logits.clone(), crowd.metadata).sampled_token_ids)


@pytest.mark.parametrize("place", [(Slots, "commit"), (Ours, "begin"), (draws, "token_for_each")])
def test_later_steps_know_the_tokens_that_vllm_drew(place: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions and penalties of a seeded request: as if it had joined with this output."""
    crowd, noise = Crowd(2), torch.Generator().manual_seed(0)
    crowd.add(SamplingParams(**SEEDED), prompt=[1, 2, 3], name="one")
    crowd.batch.refresh_metadata()
    output = crowd.live["one"].output_token_ids
    for step in range(12):
        logits = torch.randn(1, VOCAB, generator=noise) * 2
        wanted = seeded_tokens(logits, list(output))
        with monkeypatch.context() as patch:
            if step in (3, 7):
                patch.setattr(*place, make_failing())
            token = int(Sampler()(logits.clone(), crowd.metadata).sampled_token_ids)
        if step not in (3, 7):
            assert token == wanted
        output.append(token)
    assert count_errors() == 2


def test_a_request_keeps_its_key_and_its_methods_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of requests without a seed are counted: ranks that count differently would draw differently."""
    crowd = Crowd(3)
    crowd.add(SamplingParams(temperature=1.0, extra_args={"mirostat": 2, "mirostat_tau": 2.0}), name="one")
    crowd.settle()
    follower, seen = follower_of(crowd), []

    def state() -> dict[str, Any]:
        [entry] = [one for one in follower.slots.slots if one is not None]
        return {"key": entry.key, "taken": follower.slots.default_keys.taken, **entry.sequence_state.state}

    def failing(*_: Any) -> NoReturn:
        seen.append(state())
        raise RuntimeError("planted")

    for step in range(8):
        with monkeypatch.context() as patch:
            if step == 5:
                patch.setattr(Ours, "begin", failing)
            token = int(Sampler()(crowd.logits(), crowd.metadata).sampled_token_ids)
        if step == 6:
            assert state() == seen[0]
            assert "mirostat_mu" in seen[0]
        crowd.live["one"].output_token_ids.append(token)
    assert count_errors() == 1


def test_a_request_of_several_errors_is_left_to_vllm_and_later_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(4)
    old = crowd.add(SamplingParams(temperature=0.0, presence_penalty=0.5))
    crowd.settle()
    for _ in range(MAX_ERRORS):
        with monkeypatch.context() as patch:
            patch.setattr(Ours, "begin", make_failing())
            Sampler()(crowd.logits(), crowd.metadata)
    new = crowd.add(SamplingParams(temperature=0.0))
    crowd.settle()
    Sampler()(crowd.logits(), crowd.metadata)
    refusals = {crowd.order()[row]: one.refusal for row, one in follower_of(crowd).rows.items()}
    assert refusals == {old: "requests of several steps with an error in tailrace", new: ""}


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_right_after_updates_that_were_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that were there are vLLM's; those that come later are tailrace's, in whatever rows."""
    crowd, served = Crowd(seed), 0
    for step in range(60):
        for name in list(crowd.live):
            if crowd.random.random() < 0.15:
                crowd.remove(name)
        while len(crowd.live) < ROWS and crowd.random.random() < 0.5:
            crowd.add(SamplingParams(temperature=0.0, presence_penalty=1.0))
        with monkeypatch.context() as patch:
            if step % 9 == 4:
                patch.setattr("tailrace.integrations.vllm.requests.process_dict_updates", make_failing())
            crowd.settle()
        if not crowd.live:
            continue
        logits = crowd.logits()
        wanted = THEIRS(Sampler(), logits.clone(), crowd.metadata).sampled_token_ids
        found = Sampler()(logits.clone(), crowd.metadata).sampled_token_ids
        assert found.tolist() == wanted.tolist()
        served += len(follower_of(crowd).ready(len(crowd.live)).served)
        crowd.keep(dict(zip(crowd.order(), found[:, 0].tolist(), strict=True)))
    assert count_errors() > 3
    assert served > 20


def test_another_number_of_rows_is_left_to_vllm() -> None:
    crowd = Crowd(6)
    crowd.add(SamplingParams(temperature=0.0))
    crowd.settle()
    logits = torch.randn(3, VOCAB)
    found = Sampler()(logits.clone(), crowd.metadata)
    assert found.sampled_token_ids[:, 0].tolist() == logits.argmax(-1).tolist()
    assert fallbacks == {"3 rows for a batch of 1 requests": 1}


def test_an_engine_without_a_follower_samples_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchFollower, "__init__", make_failing())
    processors, config = LogitsProcessors(), SimpleNamespace(model_config=SimpleNamespace(runner_type="generate"))
    assert patches.build_logitsprocs(lambda *_: processors, config, CPU, False) is processors
    assert not processors.argmax_invariant
    assert count_errors() == 1


def test_a_worker_begins_whatever_v2_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v2, "install_v2", make_failing())
    begun: list[Any] = []
    worker: Any = SimpleNamespace()
    patches.begin_worker(lambda *args: begun.append(args), worker, SimpleNamespace(use_v2_model_runner=True))
    assert len(begun) == 1
    assert count_errors() == 1
    assert hasattr(WorkerBase.__init__, "theirs")


def test_a_broken_check_refuses_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "check_values", make_failing())
    SamplingParams(extra_args={"top_n_sigma": 1.5})
    assert count_errors() == 1


def test_what_vllm_adds_later_raises_nothing_where_its_engine_reads_a_request() -> None:
    """vLLM checks parameters again when it reads them in another process, which would end. The request is refused
    where it gets its slot."""
    params = SamplingParams(temperature=0.0, extra_args={"top_n_sigma": 1.5})
    params._bad_words_token_ids = [[id % VOCAB, id // VOCAB] for id in range(3000)]
    read = pickle.loads(pickle.dumps(params))
    crowd = Crowd(7)
    crowd.add(read)
    crowd.settle()
    Sampler()(crowd.logits(), crowd.metadata)
    assert list(fallbacks) == ["bad_words must have at most 1024 entries, got 3000"]


@pytest.mark.skipif(bool(layout.describe_missing(masks.WANTED)), reason="this vLLM has no place for masks")
@pytest.mark.parametrize("calls", [1, 2])
def test_a_step_whose_masks_fail_keeps_its_tokens(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SimpleNamespace(**{**vars(CONFIG.model_config), "return_sampling_mask": True})
    Crowd(8, SimpleNamespace(**{**vars(CONFIG), "model_config": model}))
    real, left = masks.masks_of, [None] * calls

    def failing(*args: Any) -> Any:
        if left:
            left.pop()
            raise RuntimeError("planted")
        return real(*args)

    monkeypatch.setattr(masks, "masks_of", failing)
    runner: Any = None
    found = masks.with_masks(lambda _: ModelRunnerOutput(["a"], {"a": 0}, [[4]]), runner)
    assert found.sampled_token_ids == [[4]]
    shown = found.sampling_masks
    assert shown is None if calls == 2 else shown.slice_request(0, 1).to_nested_list() == [[]]
    assert count_errors() == calls
