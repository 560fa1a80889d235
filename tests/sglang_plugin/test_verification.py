"""SGLang's verification of drafts, its function eagle_sample, with tokens that tailrace draws."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from batches import PROMPT, Runner, find_g, find_limit, find_truth, make_batch, make_logits, make_request, start
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.sampler import Sampler
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import eagle_utils
from test_fields import ACTS, ALONE, SAME
from tiny_model import V

from tailrace.integrations.sglang import drawing
from tailrace.integrations.sglang.refused_fields import DRAFTS

NGRAM = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4}
# a tree of drafts: the last token, two children of it, and a child of the second
CHILDREN, SIBLINGS, DEPTHS = [1, -1, 3, -1], [-1, 2, -1, -1], [0, 1, 1, 2]
WIDTH = len(DEPTHS)
OUTPUT = [4, 4]  # of each request so far: the last token's place is that of the tree's root


def verify(logits: torch.Tensor, requests: list[Any], drafts: list[list[int]]) -> list[list[int]]:
    """Return each request's new tokens. drafts: each request's tokens at nodes 1 to 3."""
    count = len(requests)
    root = len(PROMPT) + len(OUTPUT) - 1
    nodes = [[one.output_ids[-1], *ids] for one, ids in zip(requests, drafts, strict=True)]
    verify_input = SimpleNamespace(
        draft_token=torch.tensor(nodes).flatten(),
        draft_token_num=WIDTH,
        max_tree_depth=3,
        tree_topk=2,
        positions=torch.tensor([root + depth for depth in DEPTHS] * count),
        retrieve_index=torch.arange(count * WIDTH).view(count, WIDTH),
        retrieve_next_token=torch.tensor([CHILDREN] * count),
        retrieve_next_sibling=torch.tensor([SIBLINGS] * count),
    )
    batch = SimpleNamespace(
        device="cpu",
        forward_mode=ForwardMode.TARGET_VERIFY,
        seq_lens=torch.tensor([root] * count),
        sampling_info=make_batch(requests).copy_for_forward(),
        reqs=requests,
        return_logprob=False,
    )
    output = LogitsProcessorOutput(next_token_logits=logits.clone())
    predicted, lengths, kept = eagle_utils.eagle_sample(verify_input, batch, output)
    return [predicted[kept[i, : lengths[i]].long()].tolist() for i in range(count)]


@pytest.fixture
def drafting(model, monkeypatch):
    """A server with drafts: its hooks, in this process."""
    start(model, monkeypatch, **NGRAM)
    Runner()  # SGLang makes the sampler, and tailrace installs its hooks


def make_requests(fields: dict[str, Any], seeds: list[int]) -> list[Any]:
    return [make_request(i, {**fields, "sampling_seed": seed}, OUTPUT) for i, seed in enumerate(seeds)]


def draw_plain(logits: torch.Tensor, fields: dict[str, Any], seed: int, ahead: int) -> int:
    """Return the token that the request would get without drafts, `ahead` tokens later."""
    request = make_request(0, {**fields, "sampling_seed": seed}, [*OUTPUT, *[4] * ahead])
    lengths = [len(PROMPT) + len(OUTPUT) + ahead]
    return int(Runner().draw(logits[None], make_batch([request]), lengths)[0][0])


FIELDS = [
    {"temperature": 0.9, "top_k": 5},
    {"temperature": 1.2, "top_p": 0.6, "min_p": 0.2},
    {"temperature": 1.0, "custom_params": {"xtc_probability": 0.5, "xtc_threshold": 0.01}},
    {"temperature": 0.0},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_seeded_requests_have_the_tokens_that_they_have_without_drafts(drafting, fields):
    """Along each path through the tree, whatever is drafted."""
    seeds = list(range(6))
    logits = make_logits(len(seeds) * WIDTH)
    paths = set()
    for wrong in range(4):
        drafts, expected = [], []
        for i, seed in enumerate(seeds):
            rows = logits[i * WIDTH :]
            first = draw_plain(rows[0], fields, seed, 0)
            second = draw_plain(rows[2], fields, seed, 1)
            other = (first + 1) % V
            given = [
                [other, first, second],
                [first, other, second],
                [other, first, (second + 1) % V],
                [other, other, 0],
            ]
            drafts.append(given[wrong])
            ends = {
                0: [first, second, draw_plain(rows[3], fields, seed, 2)],
                1: [first, draw_plain(rows[1], fields, seed, 1)],
                2: [first, second],
                3: [first],
            }
            expected.append(ends[wrong])
        assert verify(logits, make_requests(fields, seeds), drafts) == expected
        paths.add(tuple(map(len, expected)))
    assert len(paths) == 3


@pytest.mark.parametrize("name", [name for name in ACTS if name not in DRAFTS])
def test_fields_without_history_act_in_a_tree(drafting, name):
    needed, value = ACTS[name]
    if needed.keys() & DRAFTS.keys():
        needed = {}
    theirs = {key: setting for key, setting in SAME.items() if key != "sampling_seed" and name not in ALONE}
    fields = {**theirs, "custom_params": {**needed, name: value}}
    logits = make_logits(4 * WIDTH, 3)
    expected = [[draw_plain(logits[i * WIDTH], fields, i, 0)] for i in range(4)]
    drafts = [[(one + 1) % V, (one + 2) % V, 0] for [one] in expected]
    assert verify(logits, make_requests(fields, list(range(4))), drafts) == expected


def test_first_tokens_keep_the_distribution_and_min_p_acts(drafting):
    """A G-test at 1e-9 for requests without a seed."""
    fields, times = {"temperature": 0.9, "top_p": 0.9, "min_p": 0.1}, 40
    logits = make_logits(1, 2).expand(24 * WIDTH, V)
    counts = torch.zeros(V, dtype=torch.float64)
    for _ in range(times):
        requests = [make_request(i, fields, OUTPUT) for i in range(24)]
        for [first, *_] in verify(logits, requests, [[1, 2, 3]] * 24):
            counts[first] += 1
    expected = find_truth(logits[0], fields)
    assert not counts[expected == 0].any()
    assert find_g(counts, expected) < find_limit(int((expected > 0).sum()))
    without = find_truth(logits[0], {**fields, "min_p": 0.0})
    assert (without > 0).sum() > (expected > 0).sum()  # as SGLang's own verification has it
    assert find_g(counts, find_truth(logits[0], {**fields, "temperature": 3.0})) > find_limit(V)


def test_after_an_error_sglangs_own_sampler_draws(drafting, monkeypatch):
    """Its tokens are the targets. The batch goes on."""

    def planted(*args, **more):
        raise RuntimeError("planted")

    monkeypatch.setattr(drawing, "sample", planted)
    logits = make_logits(2 * WIDTH)
    said = verify(logits, make_requests({"temperature": 1.0, "top_k": 3}, [1, 2]), [[1, 2, 3]] * 2)
    for i, [first, *_] in enumerate(said):
        assert first in logits[i * WIDTH].topk(3).indices.tolist()


def test_sglangs_own_verification_leaves_min_p_out():
    """What docs/integrations/sglang.md says of SGLang, in its source."""
    source = inspect.getsource(inspect.unwrap(eagle_utils.eagle_sample))
    assert source.index("top_k_renorm_prob(") < source.index("top_p_renorm_prob(")
    assert "min_p" not in source
    assert "_seeded_verify_coins" in inspect.getsource(eagle_utils._verify_coins)
    source = inspect.getsource(Sampler._sample_from_probs)
    assert (
        source.index("top_k_renorm_prob(probs")
        < source.index("top_p_renorm_prob(probs")
        < source.index("min_p_sampling_from_probs(")
    )
    assert "Sampling seed is not supported for" in source
