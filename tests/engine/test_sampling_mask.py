"""Each token that is sent has the ids that it was drawn from, whatever is guessed, taken back, forked or preempted."""

from __future__ import annotations

import numpy as np
import pytest

from engine.harness import EOS, VOCAB, Fickle, Harness, Story
from engine.test_speculation import ASKED, PROMPTS, TOKEN_BYTES, logits
from tailrace.params import FIELDS, SamplingParams
from tailrace.request.fields import removes_most
from tailrace.runners.scripted import ScriptedRunner
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.keys import request_key
from tailrace.sampling.validation import CALLER_FIELDS

pytestmark = pytest.mark.usefixtures("both_modes")


def asking(fields: dict) -> dict:
    """The same with the report; where nothing cuts, top_k lets everything through."""
    cuts = any(removes_most(FIELDS[name]) for name in fields)
    return fields | ({} if cuts else {"top_k": VOCAB}) | {"return_sampling_mask": True, "max_tokens": 30}


def lists(story: Story) -> list[list[int]]:
    return [np.frombuffer(data, "<i4").tolist() for data in story.survivors]


def stories(fields: dict, accuracy: float | None, **limits) -> dict[tuple[str, int, int], Story]:
    known = [] if accuracy is None else list(plain_texts(fields).values())
    world = Harness(
        ScriptedRunner(VOCAB, logits, 512),
        drafter=None if accuracy is None else (lambda sampler: Fickle(known, accuracy)),
        token_bytes=TOKEN_BYTES,
        **({"num_blocks": 48} | limits),
    )
    for place, prompt in enumerate(PROMPTS):
        world.submit(f"r{place}", prompt, **asking({"temperature": 1.0} | fields))
    world.submit("nobody's", PROMPTS[0], temperature=0.8, top_p=0.9, seed=1, max_tokens=9)
    found = world.run()
    assert found.pop(("nobody's", 0, 0)).survivors == []
    return found


def plain_texts(fields: dict) -> dict[str, list[int]]:
    """What plain decoding says, prompt and all."""
    return {id: PROMPTS[int(id[1:])] + story.tokens for (id, _, _), story in stories(fields, None).items()}


def expected(fields: dict, prompt: list[int], index: int, tokens: list[int]) -> list[list[int]]:
    """Of each token, by the reference sampler alone."""
    params = SamplingParams(**asking({"temperature": 1.0} | fields))
    slots, key = Slots(1, VOCAB), request_key(params.seed or 0, index)
    slots.add(0, params, key=key, prompt=prompt, eos_token_ids=[EOS], handled_by_caller=tuple(CALLER_FIELDS))
    sampler, said, found = Sampler(slots, "reference"), list(prompt), []
    for token in tokens:
        out = sampler(logits(said)[None], Rows.plain([0], [0], [len(said)]))
        assert out.token_ids.item() == token
        assert out.sampling_mask is not None
        found.append(out.sampling_mask.token_ids.tolist())
        slots.commit([0], [[token]])
        said.append(token)
    return found


@pytest.mark.few(5)
@pytest.mark.parametrize("accuracy", [None, 0.7])
@pytest.mark.parametrize("name", [name for name, fields in ASKED.items() if "banned_strings" not in fields])
def test_masks_are_those_of_plain_sampling(name, accuracy):
    fields = ASKED[name]
    found = stories(fields, accuracy)
    assert sum(len(story.tokens) for story in found.values()) > 8
    for (id, _, index), story in found.items():
        assert lists(story) == expected(fields, PROMPTS[int(id[1:])], index, story.tokens)


@pytest.mark.few(2)
@pytest.mark.parametrize("blocks", [48, 9])
@pytest.mark.parametrize("accuracy", [None, 0.7])
def test_tokens_that_are_taken_back_take_their_masks_along(accuracy, blocks):
    """With preemption where blocks are few."""
    fields = ASKED["banned strings"] | {"logprobs": 2}
    for story in stories(fields, accuracy, num_blocks=blocks).values():
        assert len(story.tokens) == len(story.survivors) == len(story.logprobs) > 3
        for token, ids in zip(story.tokens, lists(story), strict=True):
            assert token in ids


def test_a_mask_beyond_the_limit_is_left_out():
    fields = {"temperature": 1.0, "top_p": 0.9, "seed": 3}
    whole = stories(fields, None)
    sizes = sorted(len(ids) for story in whole.values() for ids in lists(story))
    limit = sizes[len(sizes) // 2]
    assert sizes[0] < limit < sizes[-1]
    for name, story in stories(fields, None, max_sampling_mask=limit).items():
        assert story.tokens == whole[name].tokens
        assert lists(story) == [ids if len(ids) <= limit else [] for ids in lists(whole[name])]


def test_masks_of_other_tokens_are_seen(monkeypatch):
    """The planted fault: every token has the mask of the one before."""
    from tailrace.kernels.output import SamplingMask

    packed, before = SamplingMask.packed, [[b""] * 8]

    def late(self: SamplingMask, limit: int) -> list[bytes]:
        before.append(packed(self, limit))
        return (before[-2] * 8)[: len(before[-1])]

    monkeypatch.setattr(SamplingMask, "packed", late)
    with pytest.raises(AssertionError):
        test_masks_are_those_of_plain_sampling("sampled", None)
