"""Transformers' watermarks and detectors against ours in its scheme: the same green lists and bits, and texts that its
detectors recognise."""

from __future__ import annotations

import msgspec
import pytest
import torch
from transformers import (
    LlamaConfig,
    SynthIDTextWatermarkLogitsProcessor,
    WatermarkDetector,
    WatermarkingConfig,
    WatermarkLogitsProcessor,
)

from tailrace.errors import ParameterError
from tailrace.params import SamplingParams
from tailrace.request.options import Watermark
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.reference import compute_distribution
from tailrace.sampling.watermark import detect, g_values, green_list

V = 500
PROMPT = [1, 2, 3, 4]
KEYS = (654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639)
KGW = Watermark(kind="kgw", scheme="transformers", key=15485863, context=1)
SYNTHID = Watermark(kind="synthid", scheme="transformers", keys=KEYS)
TABLE = torch.randn(64, V, generator=torch.Generator().manual_seed(2))


def theirs(mark: Watermark) -> SynthIDTextWatermarkLogitsProcessor:
    return SynthIDTextWatermarkLogitsProcessor(
        ngram_len=mark.context + 1,
        keys=list(mark.keys),
        sampling_table_size=mark.sampling_table_size,
        sampling_table_seed=mark.sampling_table_seed,
        context_history_size=mark.context_history_size,
        device="cpu",
    )


def text(mark: Watermark | None, length: int = 250, key: int = 5, backend: str = "cpu") -> list[int]:
    """The output alone, sampled at temperature 1 from a table of fairly flat rows."""
    slots = Slots(1, V)
    slots.add(0, SamplingParams(watermark=mark), key=key, prompt=PROMPT)
    sampler, tokens = Sampler(slots, backend), list(PROMPT)
    while len(tokens) < length:
        out = sampler(TABLE[tokens[-1] % 64][None], Rows.plain([0], [0], [len(tokens)]))
        slots.commit([0], out.token_ids.tolist())
        tokens.append(int(out.token_ids[0, 0]))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("key", [15485863, 1, 2**62 + 5, -7])
@pytest.mark.parametrize(("vocab", "gamma"), [(V, 0.25), (49_152, 0.5)])
def test_green_lists_are_theirs(key, vocab, gamma):
    processor = WatermarkLogitsProcessor(vocab, "cpu", greenlist_ratio=gamma, hashing_key=key)
    mark = msgspec.structs.replace(KGW, key=key, gamma=gamma)
    for token in (0, 1, 77, vocab - 1):
        expected = processor._get_greenlist_ids(torch.tensor([3, token])).sort().values
        assert green_list(mark, [3, token], vocab).tolist() == expected.tolist()


def test_biased_logits_are_theirs():
    row = torch.randn(V, generator=torch.Generator().manual_seed(1))
    expected = WatermarkLogitsProcessor(V, "cpu", bias=2.5)(torch.tensor([PROMPT]), row[None]).softmax(-1)[0]
    slots = Slots(1, V)
    slots.add(0, SamplingParams(watermark=msgspec.structs.replace(KGW, delta=2.5)), key=1, prompt=PROMPT)
    torch.testing.assert_close(
        compute_distribution(row, slots[0]).probabilities().float(), expected, atol=1e-6, rtol=1e-5
    )


def test_their_detector_recognises_green_text():
    detector = WatermarkDetector(
        LlamaConfig(vocab_size=V, bos_token_id=V - 1), "cpu", WatermarkingConfig(greenlist_ratio=0.25)
    )
    marked, plain = text(KGW), text(None)
    found = detector(torch.tensor([marked]), return_dict=True)
    assert float(found.z_score[0]) > 4
    assert abs(float(detector(torch.tensor([plain]), return_dict=True).z_score[0])) < 4
    # the planted fault: our own scheme, of the same key
    ours = text(msgspec.structs.replace(KGW, scheme="tailrace"))
    assert abs(float(detector(torch.tensor([ours]), return_dict=True).z_score[0])) < 4
    assert detect(KGW, marked, V) > 4 > abs(detect(KGW, plain, V))
    with pytest.raises(ValueError, match="vocab_size must be given"):
        detect(KGW, marked)


@pytest.mark.parametrize(
    "mark",
    [
        SYNTHID,
        msgspec.structs.replace(
            SYNTHID, keys=(-(2**63), 2**63 - 1, 5), context=2, sampling_table_size=1001, sampling_table_seed=9
        ),
    ],
    ids=["usual", "odd"],
)
def test_bits_are_theirs(mark):
    tokens = torch.randint(0, V, (1, 40), generator=torch.Generator().manual_seed(4))
    expected = theirs(mark).compute_g_values(tokens)[0]
    for i in range(expected.shape[0]):
        context = tokens[0, i : i + mark.context].tolist()
        ours = torch.stack(g_values(mark, context, tokens[0, i + mark.context :][:1]))[:, 0]
        assert ours.tolist() == expected[i].tolist()


def test_every_step_of_a_text_has_their_probabilities():
    """Their processor is called as their loop does; contexts that come again are among the steps."""
    mark = msgspec.structs.replace(SYNTHID, context=1, context_history_size=8)
    processor, slots = theirs(mark), Slots(1, V)
    slots.add(0, SamplingParams(watermark=mark), key=1, prompt=PROMPT)
    said, repeats = list(PROMPT), [7, 9, 7, 8, 9, 1, 2, 3, 4, 5, 6, 10, 7]
    unmarked = 0
    for token in repeats:
        row = TABLE[token % 64]
        expected = processor(torch.tensor([said]), row[None]).softmax(-1)[0]
        found = compute_distribution(row, slots[0])
        torch.testing.assert_close(found.probabilities().float(), expected[found.ids], atol=1e-5, rtol=1e-3)
        unmarked += bool(torch.allclose(expected, row.softmax(-1), atol=1e-6))
        slots.commit([0], [[token]])
        said.append(token)
    assert unmarked == 2  # after the second 7, and after the second 9


def mean_score(mark: Watermark, tokens: list[int]) -> float:
    """Their g-values where their mask lets them count, in standard deviations from a coin's."""
    processor, ids = theirs(mark), torch.tensor([tokens])
    g, mask = processor.compute_g_values(ids)[0].double(), processor.compute_context_repetition_mask(ids)[0]
    kept = g[mask]
    return float((kept.mean() - 0.5) * 2 * kept.numel() ** 0.5)


def test_their_g_values_recognise_synthid_text():
    marked, plain = text(SYNTHID), text(None)
    assert mean_score(SYNTHID, marked) > 4
    assert abs(mean_score(SYNTHID, plain)) < 4
    assert abs(mean_score(SYNTHID, text(Watermark(kind="synthid", key=654)))) < 4  # the planted fault: our own bits
    assert detect(SYNTHID, marked) > 4 > abs(detect(SYNTHID, plain))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "kgw"}, "watermark.key must be an integer"),
        ({"kind": "synthid", "key": 1, "keys": (1,)}, "scheme transformers"),
        ({"kind": "synthid", "scheme": "transformers"}, "keys must have 1 to 64"),
        ({"kind": "synthid", "scheme": "transformers", "keys": (1, 2**63)}, "watermark.keys must be an integer"),
        ({"kind": "synthid", "scheme": "transformers", "keys": (1,), "key": 1}, "no effect beside keys"),
        (
            {"kind": "synthid", "scheme": "transformers", "keys": (1,), "sampling_table_size": 2**18 + 1},
            r"sampling_table_size .* \[1, 262144\]",
        ),
        ({"kind": "kgw", "key": 1, "sampling_table_size": 7}, "scheme transformers"),
    ],
)
def test_what_does_not_belong_together_is_refused(fields, said):
    with pytest.raises(ParameterError, match=said):
        Watermark(**fields)
