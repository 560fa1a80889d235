"""tailrace as a sampling backend, through SGLang's own registry and classes, with its own batch objects: the same
distribution as SGLang's pytorch backend, its own logprobs, seeds that mean the same in any batch."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers import sampler as sglang
from sglang.srt.layers.logits_processor import LogitsProcessorOutput, SamplingMaskStatus
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import TOP_K_ALL, SamplingParams

from tailrace.integrations.sglang import register
from tailrace.sampling import sample

V = 60
ROWS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_p": 0.7},
    {"temperature": 1.0, "top_k": 8, "top_p": 0.8},
    {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "min_p": 0.1},
]


@pytest.fixture(params=["tailrace", "pytorch"])
def backend(request, monkeypatch) -> str:
    return configure(request.param, monkeypatch)


def configure(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A server's settings, as far as the sampler reads them."""
    config = SimpleNamespace(
        deterministic=SimpleNamespace(rl_on_policy_target=None, enable_deterministic_inference=False),
        kernel=SimpleNamespace(sampling_backend=name),
        features=SimpleNamespace(sampling_mask_max_tokens=32),
    )
    parallel = SimpleNamespace(tp_group=SimpleNamespace(device_group=None), attn_dp_rank=0, dp_rank=0)
    monkeypatch.setattr(sglang, "get_exec", lambda: config)
    monkeypatch.setattr(sglang, "get_parallel", lambda: parallel)
    monkeypatch.setattr(sglang, "get_server_args", lambda: SimpleNamespace(random_seed=5))
    monkeypatch.setattr(sglang, "is_dp_attention_enabled", lambda: False)
    monkeypatch.setattr(sglang, "sampler_softmax", lambda logits: logits.softmax(-1))
    register()
    return name


def batch_of(rows: list[dict[str, Any]], seeds: list[int] | None = None, masks: list[int] | None = None) -> Any:
    """As SGLang makes it of requests' parameters, which it normalises: greedy is top-k 1 at temperature 1."""
    params = [SamplingParams(**row) for row in rows]
    for one in params:
        one.normalize(None)
    found = SamplingBatchInfo(
        temperatures=torch.tensor([one.temperature for one in params]).view(-1, 1),
        top_ps=torch.tensor([one.top_p for one in params]),
        top_ks=torch.tensor([one.top_k for one in params], dtype=torch.int32),
        min_ps=torch.tensor([one.min_p for one in params], dtype=torch.float32),
        is_all_greedy=all(one.top_k <= 1 for one in params),
        is_any_greedy=any(one.top_k <= 1 for one in params),
        need_top_p_sampling=any(one.top_p != 1.0 for one in params),
        need_top_k_sampling=any(one.top_k != TOP_K_ALL for one in params),
        need_min_p_sampling=any(one.min_p > 0 for one in params),
        vocab_size=V,
        device="cpu",
    )
    found.sampling_seed = None if seeds is None else torch.tensor(seeds)
    found.sampling_mask_batch_indices = None if masks is None else torch.tensor(masks)
    return found


def logits_of(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 2


def draw(logits: torch.Tensor, batch: Any, position: int = 9, logprob: bool = False) -> tuple[torch.Tensor, Any]:
    count = len(logits)
    output = LogitsProcessorOutput(next_token_logits=logits.clone())
    positions = torch.full((count,), position)
    ids = sglang.create_sampler().forward(output, batch, logprob, [2] * count, [None] * count, positions)
    return ids, output


def test_each_row_has_sglangs_distribution(backend):
    """A G-test at 1e-9 of each row against what SGLang's documentation says: top-p's prefix of the whole distribution,
    beside top-k, then min-p. SGLang's own backend passes it, too."""
    torch.manual_seed(1)
    logits, times = logits_of(len(ROWS)), 1500
    counts = torch.zeros(len(ROWS), V, dtype=torch.float64)
    sampler = sglang.create_sampler()
    for _ in range(times):
        output = LogitsProcessorOutput(next_token_logits=logits.clone())
        ids = sampler.forward(output, batch_of(ROWS), False, [0] * 5, [None] * 5, torch.full((5,), 9))
        counts[torch.arange(5), ids.long()] += 1
    for row, fields in enumerate(ROWS):
        expected = truth(logits[row], fields)
        assert not counts[row][expected == 0].any()
        assert g_of(counts[row], expected) < limit(int((expected > 0).sum()))
    wrong = truth(logits[1], {"temperature": 1.0})  # the planted fault: another temperature
    assert g_of(counts[1], wrong) > limit(V)


def test_after_an_error_sglangs_own_sampler_draws(monkeypatch, caplog):
    """The tokens have SGLang's distribution. An error ends no scheduler, and is logged once."""
    configure("tailrace", monkeypatch)
    torch.manual_seed(1)
    logits, times = logits_of(len(ROWS)), 600
    sampler, counts = sglang.create_sampler(), torch.zeros(len(ROWS), V, dtype=torch.float64)

    def planted(*args, **more):
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr("tailrace.integrations.sglang.sampler.sample", planted)
        for _ in range(times):
            output = LogitsProcessorOutput(next_token_logits=logits.clone())
            ids = sampler.forward(output, batch_of(ROWS), True, [2] * 5, [None] * 5, torch.full((5,), 9))
            counts[torch.arange(5), ids] += 1
        greedy = LogitsProcessorOutput(next_token_logits=logits[:1].clone())
        ids = sampler.forward(greedy, batch_of(ROWS[:1]), False, [0], [None], torch.full((1,), 9))
        assert ids.tolist() == logits[:1].argmax(-1).tolist()
    for row, fields in enumerate(ROWS):
        expected = truth(logits[row], fields)
        assert not counts[row][expected == 0].any()
        assert g_of(counts[row], expected) < limit(int((expected > 0).sum()))
    assert sampler.errors == {"RuntimeError": times + 1}
    assert caplog.text.count("RuntimeError: planted") == 1


def truth(logits: torch.Tensor, fields: dict[str, Any]) -> torch.Tensor:
    if fields["temperature"] == 0.0:
        return torch.nn.functional.one_hot(logits.argmax(), V).double()
    probs = (logits.double() / fields["temperature"]).softmax(0)
    ordered, order = probs.sort(descending=True)
    kept = ordered.cumsum(0) - ordered < fields.get("top_p", 1.0)
    kept &= torch.arange(V) < fields.get("top_k", V)
    kept &= ordered >= ordered[0] * fields.get("min_p", 0.0)
    found = torch.zeros(V, dtype=torch.float64).scatter(0, order, ordered * kept)
    return found / found.sum()


def g_of(counts: torch.Tensor, expected: torch.Tensor) -> float:
    seen = (counts > 0) & (expected > 0)
    return float(2 * (counts[seen] * (counts[seen] / counts.sum() / expected[seen]).log()).sum())


def limit(cells: int) -> float:
    """Above chi-square's quantile of 1 − 1e-9."""
    return cells + 2 * math.sqrt(20.7 * cells) + 2 * 20.7


def test_logprobs_are_sglangs(monkeypatch):
    logits = logits_of(len(ROWS))
    configure("tailrace", monkeypatch)
    ids, output = draw(logits, batch_of(ROWS, seeds=[1, 2, 3, 4, 5]), logprob=True)
    configure("pytorch", monkeypatch)
    _, theirs = draw(logits, batch_of([{"temperature": row["temperature"] or 1.0} for row in ROWS]), logprob=True)
    for row in range(len(ROWS)):
        mine, other = output.next_token_top_logprobs_val[row], theirs.next_token_top_logprobs_val[row]
        assert torch.as_tensor(mine).tolist() == pytest.approx(torch.as_tensor(other).tolist(), abs=1e-5)
        temperature = ROWS[row]["temperature"] or 1.0
        expected = (logits[row] / temperature).log_softmax(0)[ids[row]]
        assert float(output.next_token_logprobs[row]) == pytest.approx(float(expected), abs=1e-5)


def test_a_seed_means_the_same_in_any_batch_and_in_the_library(monkeypatch):
    configure("tailrace", monkeypatch)
    logits, seeds = logits_of(len(ROWS)), [11, 12, 13, 14, 15]
    together, _ = draw(logits, batch_of(ROWS, seeds=seeds))
    for row, fields in enumerate(ROWS):
        alone, _ = draw(logits[row : row + 1], batch_of([fields], seeds=[seeds[row]]))
        assert alone.tolist() == [together[row]]
    assert together[1] == sample(logits[1:2], temperature=float(torch.tensor(0.8)), seed=[12], position=10)[0]
    moved, _ = draw(logits.repeat(20, 1), batch_of(ROWS * 20, seeds=list(range(100))))
    assert len(set(moved.view(20, 5)[:, 1].tolist())) > 3


def test_ranks_agree_and_requests_without_a_seed_draw_anew(monkeypatch):
    configure("tailrace", monkeypatch)
    logits, batch = logits_of(len(ROWS)), batch_of(ROWS)
    ranks = [sglang.create_sampler(), sglang.create_sampler()]
    said = [
        [
            rank.forward(LogitsProcessorOutput(logits.clone()), batch, False, [0] * 5, [None] * 5, torch.full((5,), 9))
            for _ in range(30)
        ]
        for rank in ranks
    ]
    assert torch.equal(torch.stack(said[0]), torch.stack(said[1]))
    assert len({ids[1].item() for ids in said[0]}) > 3


def test_greedy_is_the_argmax_and_logits_stay(monkeypatch):
    configure("tailrace", monkeypatch)
    logits = logits_of(4)
    output = LogitsProcessorOutput(next_token_logits=logits.clone())
    ids = sglang.create_sampler().forward(
        output, batch_of([{"temperature": 0.0}] * 4), False, [0] * 4, [None] * 4, torch.zeros(4, dtype=torch.int64)
    )
    assert torch.equal(ids, logits.argmax(-1))
    assert torch.equal(output.next_token_logits, logits)


def test_sampling_masks_hold_what_may_be_drawn(monkeypatch):
    configure("tailrace", monkeypatch)
    logits, asked = logits_of(len(ROWS)), [2, 3, 4]
    for seed in range(20):
        ids, output = draw(logits, batch_of(ROWS, seeds=[seed] * 5, masks=asked))
        found = output.sampling_mask_output
        for place, row in enumerate(asked):
            kept = set(found.token_ids[place, : found.lengths[place]].tolist())
            expected = truth(logits[row], ROWS[row])
            assert kept == set((expected > 0).nonzero().squeeze(1).tolist())
            assert int(ids[row]) in kept
            logprob = math.log(float(expected[ids[row]]))
            assert float(found.selected_logprobs[place]) == pytest.approx(logprob, abs=1e-4)
            assert found.statuses[place] == SamplingMaskStatus.OK


def test_a_row_without_a_token_gets_one_and_touches_no_other(monkeypatch):
    configure("tailrace", monkeypatch)
    logits = logits_of(len(ROWS))
    whole, _ = draw(logits, batch_of(ROWS, seeds=[1] * 5))
    logits[2] = -torch.inf
    broken, _ = draw(logits, batch_of(ROWS, seeds=[1] * 5))
    assert 0 <= int(broken[2]) < V
    assert broken[[0, 1, 3, 4]].tolist() == whole[[0, 1, 3, 4]].tolist()
