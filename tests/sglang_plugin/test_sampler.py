"""tailrace's draws through SGLang's own way from requests to tokens: the same distribution as SGLang's pytorch backend,
its own logprobs, seeds that mean the same in any batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from batches import Runner, draw, find_g, find_limit, find_truth, make_batch, make_logits, make_request, start
from sglang.srt.layers import sampler as sglang
from sglang.srt.layers.logits_processor import SamplingMaskStatus
from sglang.srt.sampling.watermarking.core import WatermarkState
from tiny_model import V

from tailrace.integrations.sglang import drawing
from tailrace.sampling import sample

ROWS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_p": 0.7},
    {"temperature": 1.0, "top_k": 8, "top_p": 0.8},
    {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "min_p": 0.1},
]
OWN = {"custom_params": {"xtc_probability": 1e-6}}  # too rare to be seen: such rows take the other way
LENGTHS = [5] * len(ROWS)


def make_requests(rows: list[dict[str, Any]], seeds: list[int] | None = None, **more: Any) -> list[Any]:
    given = rows if seeds is None else [{**row, "sampling_seed": seed} for row, seed in zip(rows, seeds, strict=True)]
    return [make_request(place, fields, **more) for place, fields in enumerate(given)]


def count_draws(runner: Runner, logits: torch.Tensor, requests: list[Any], times: int) -> torch.Tensor:
    batch, counts = make_batch(requests), torch.zeros(len(requests), V, dtype=torch.float64)
    for _ in range(times):
        ids, _ = runner.draw(logits, batch, [5] * len(requests))
        counts[torch.arange(len(requests)), ids.long()] += 1
    return counts


def check_counts(counts: torch.Tensor, logits: torch.Tensor, rows: list[dict[str, Any]]) -> None:
    for row, fields in enumerate(rows):
        expected = find_truth(logits[row], fields)
        assert not counts[row][expected == 0].any()
        assert find_g(counts[row], expected) < find_limit(int((expected > 0).sum()))


@pytest.mark.parametrize("backend", ["tailrace", "pytorch"])
def test_each_row_has_sglangs_distribution(backend, model, monkeypatch):
    """A G-test at 1e-9 of each row. SGLang's own backend passes it, too."""
    start(model, monkeypatch, sampling_backend=backend)
    if backend == "pytorch":  # SGLang sets it on a CPU whatever is asked for
        assert type(sglang.create_sampler()) is sglang.Sampler
    torch.manual_seed(1)
    logits = make_logits(len(ROWS))
    counts = count_draws(Runner(), logits, make_requests(ROWS), 1000)
    check_counts(counts, logits, ROWS)
    wrong = find_truth(logits[1], {"temperature": 2.0})  # the planted fault: another temperature
    assert find_g(counts[1], wrong) > find_limit(V)


def test_rows_with_own_fields_keep_the_distribution_of_sglangs_fields(model, monkeypatch):
    start(model, monkeypatch)
    torch.manual_seed(1)
    rows = ROWS[1:]
    logits, runner = make_logits(len(rows)), Runner()
    counts = torch.zeros(len(rows), V, dtype=torch.float64)
    for _ in range(300):  # new requests have new keys
        batch = make_batch(make_requests([{**row, **OWN} if place % 2 else row for place, row in enumerate(rows)]))
        ids, _ = runner.draw(logits, batch, [5] * len(rows))
        counts[torch.arange(len(rows)), ids] += 1
    check_counts(counts, logits, rows)
    assert not runner.sampler.errors


def test_after_an_error_sglangs_own_sampler_draws(model, monkeypatch, caplog):
    """The tokens have SGLang's distribution. An error ends no scheduler, and is logged once."""
    start(model, monkeypatch)
    torch.manual_seed(1)
    logits, runner = make_logits(len(ROWS)), Runner()

    def planted(*args, **more):
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(drawing, "sample", planted)
        counts = count_draws(runner, logits, make_requests(ROWS), 300)
        assert draw(logits[:1], make_requests(ROWS[:1]), runner).tolist() == logits[:1].argmax(-1).tolist()
    check_counts(counts, logits, ROWS)
    assert runner.sampler.errors == {"RuntimeError": 301}
    assert caplog.text.count("RuntimeError: planted") == 1


def test_logprobs_are_sglangs(model, monkeypatch):
    logits = make_logits(len(ROWS))
    start(model, monkeypatch)
    ids, output = Runner().draw(logits, make_batch(make_requests(ROWS, [1, 2, 3, 4, 5])), LENGTHS, logprob=True)
    start(model, monkeypatch, sampling_backend="pytorch")
    plain = [{"temperature": row["temperature"] or 1.0} for row in ROWS]
    _, theirs = Runner().draw(logits, make_batch(make_requests(plain)), LENGTHS, logprob=True)
    for row in range(len(ROWS)):
        mine, other = output.next_token_top_logprobs_val[row], theirs.next_token_top_logprobs_val[row]
        assert torch.as_tensor(mine).tolist() == pytest.approx(torch.as_tensor(other).tolist(), abs=1e-5)
        temperature = ROWS[row]["temperature"] or 1.0
        expected = (logits[row] / temperature).log_softmax(0)[ids[row]]
        assert float(output.next_token_logprobs[row]) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("flags", [{}, {"enable_deterministic_inference": True}])
def test_a_seed_means_the_same_in_any_batch_and_in_the_library(model, monkeypatch, flags):
    start(model, monkeypatch, **flags)
    logits, seeds = make_logits(len(ROWS)), [11, 12, 13, 14, 15]
    together = draw(logits, make_requests(ROWS, seeds))
    for row, fields in enumerate(ROWS):
        alone = draw(logits[row : row + 1], make_requests([fields], [seeds[row]]))
        mixed = draw(logits[[row, 0]], make_requests([fields, {**ROWS[1], **OWN}], [seeds[row], 3]))
        assert alone.tolist() == [together[row]] == mixed[:1].tolist()
        if row:  # XTC is refused at temperature 0, where it has no effect
            own = draw(logits[row : row + 1], make_requests([{**fields, **OWN}], [seeds[row]]))
            assert own.tolist() == alone.tolist()
    assert together[1] == sample(logits[1:2], temperature=0.8, seed=[12], position=5)[0]
    moved = draw(logits.repeat(8, 1), make_requests(ROWS * 8, list(range(40))))
    assert len(set(moved.view(8, 5)[:, 1].tolist())) > 3
    later = make_requests(ROWS[1:2], [12], output=[7])
    assert draw(logits[1:2], later)[0] == sample(logits[1:2], temperature=0.8, seed=[12], position=6)[0]


def test_without_a_seed_deterministic_inference_has_sglangs(model, monkeypatch):
    start(model, monkeypatch, enable_deterministic_inference=True)
    logits = make_logits(len(ROWS))
    expected = draw(logits, make_requests(ROWS, [42] * len(ROWS)))
    assert draw(logits, make_requests(ROWS)).tolist() == expected.tolist()


def test_batches_that_merge_and_shrink_keep_their_seeds(model, monkeypatch):
    start(model, monkeypatch)
    logits, seeds = make_logits(4), [11, 12, 13, 14]
    requests = make_requests([ROWS[1], ROWS[3], {**ROWS[4], **OWN}, ROWS[2]], seeds)
    whole = draw(logits, requests).tolist()
    first, second = make_batch(requests[:2]), make_batch(requests[2:])
    first.merge_batch(second)
    assert Runner().draw(logits, first, [5] * 4)[0].tolist() == whole
    keep = [0, 2]
    first.filter_batch(keep, torch.tensor(keep))
    assert Runner().draw(logits[keep], first, [5] * 2)[0].tolist() == [whole[i] for i in keep]


def test_requests_that_have_ended_need_no_slot(model, monkeypatch):
    """With a grammar SGLang draws a step after the ended requests of the step before have left its pool."""
    start(model, monkeypatch)
    logits, runner = make_logits(3), Runner()
    requests = make_requests([{**ROWS[1], **OWN}, ROWS[3], {**ROWS[4], **OWN}], [11, 12, 13])
    whole = draw(logits, requests, runner).tolist()
    requests[0].kv.req_pool_idx = None
    assert draw(logits, requests, runner).tolist()[1:] == whole[1:]
    assert not runner.sampler.errors


def test_ranks_agree_and_requests_without_a_seed_draw_anew(model, monkeypatch):
    start(model, monkeypatch)
    logits, said = make_logits(len(ROWS)), []
    for _ in range(2):
        runner, requests = Runner(), make_requests([ROWS[0], {**ROWS[1], **OWN}, *ROWS[2:]])
        said.append([draw(logits, requests, runner) for _ in range(30)])
    assert torch.equal(torch.stack(said[0]), torch.stack(said[1]))
    assert len({ids[2].item() for ids in said[0]}) > 3


def test_greedy_is_the_argmax_and_logits_stay(model, monkeypatch):
    start(model, monkeypatch)
    logits = make_logits(4)
    ids, output = Runner().draw(logits, make_batch(make_requests([{"temperature": 0.0}] * 4)), [5] * 4)
    assert torch.equal(ids, logits.argmax(-1))
    assert torch.equal(output.next_token_logits, logits)


def test_sampling_masks_hold_what_may_be_drawn(model, monkeypatch):
    start(model, monkeypatch)
    logits, asked = make_logits(len(ROWS)), [2, 3, 4]
    for seed in range(20):
        requests = make_requests(ROWS, [seed] * 5)
        for row in asked:
            requests[row].return_sampling_mask = True
        ids, output = Runner().draw(logits, make_batch(requests), LENGTHS)
        found = output.sampling_mask_output
        for place, row in enumerate(asked):
            kept = set(found.token_ids[place, : found.lengths[place]].tolist())
            expected = find_truth(logits[row], ROWS[row])
            assert kept == set((expected > 0).nonzero().squeeze(1).tolist())
            assert int(ids[row]) in kept
            logprob = math.log(float(expected[ids[row]]))
            assert float(found.selected_logprobs[place]) == pytest.approx(logprob, abs=1e-4)
            assert found.statuses[place] == SamplingMaskStatus.OK


def test_a_row_without_a_token_gets_one_and_touches_no_other(model, monkeypatch):
    start(model, monkeypatch)
    logits = make_logits(len(ROWS))
    whole = draw(logits, make_requests(ROWS, [1] * 5))
    logits[2] = -torch.inf
    broken = draw(logits, make_requests(ROWS, [1] * 5))
    assert 0 <= int(broken[2]) < V
    assert broken[[0, 1, 3, 4]].tolist() == whole[[0, 1, 3, 4]].tolist()


@pytest.mark.parametrize("row", [1, 4])  # without and with truncations: SGLang has two ways
def test_on_policy_training_draws_by_tailrace_with_sglangs_logprobs(model, monkeypatch, row):
    start(model, monkeypatch, rl_on_policy_target="fsdp")
    logits, runner = make_logits(1), Runner()
    ids, output = runner.draw(logits, make_batch(make_requests([ROWS[row]], [7])), [5], logprob=True)
    rounded = (logits.bfloat16() / ROWS[row]["temperature"]).bfloat16()
    expected = torch.log_softmax(rounded, -1)[0, ids[0]]
    assert float(output.next_token_logprobs[0]) == pytest.approx(float(expected), abs=0.02)
    fields = {name: value for name, value in ROWS[row].items() if name != "temperature"}
    scaled = torch.log_softmax(rounded, -1) if row == 1 else (logits / ROWS[row]["temperature"]).softmax(-1).log()
    order = ("temperature", "top_p", "top_k", "min_p")
    assert ids[0] == sample(scaled, seed=[7], position=5, sampler_order=order, **fields)[0]
    assert not runner.sampler.errors


def test_a_watermarks_token_is_drawn(model, monkeypatch):
    """SGLang's watermark removes all tokens but one before the draw. The logprobs are those without the watermark."""
    start(model, monkeypatch)
    logits, runner = make_logits(3), Runner()
    batch = make_batch(make_requests([ROWS[1]] * 3, [1, 2, 3]))
    forced = torch.full_like(logits, -torch.inf)
    forced[torch.arange(3), torch.tensor([9, 17, 200])] = 0.0
    output = sglang.LogitsProcessorOutput(next_token_logits=forced)
    ids = runner.sampler.forward(
        output, batch, True, [0] * 3, [None] * 3, torch.full((3,), 4), logprob_logits=logits.clone()
    )
    assert ids.tolist() == [9, 17, 200]
    expected = (logits / 0.8).log_softmax(-1)[torch.arange(3), ids]
    assert output.next_token_logprobs.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert hasattr(WatermarkState, "force")
