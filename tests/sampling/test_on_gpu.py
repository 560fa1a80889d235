"""What a GPU knows of the slots follows what the host knows, token by token: the same tokens as the CPU's kernels draw,
whatever happens to a slot. Without a GPU in Triton's interpreter."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.backends import DEVICES, QUIET
from sampling.repeats import REQUESTS, differing
from tailrace.kernels.gpu.step import Launch, StepReports
from tailrace.params import SamplingParams
from tailrace.sampling import Rows, Sampler, Slots
from tailrace.sampling.backends import backend_of
from tailrace.sampling.backends.device_slots import DeviceSlots

V = 290
ASKED: dict[str, dict] = {
    "greedy": {"temperature": 0.0, "frequency_penalty": 0.9},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.6, "frequency_penalty": 0.3, "top_p": 0.9},
    "of the output": {"presence_penalty": 1.9, "frequency_penalty": 1.5, "temperature": 0.4},
    "window": {"presence_penalty": 1.5, "repetition_penalty": 1.2, "penalty_last_n": 3, "top_k": 9},
    "dry": {"dry_multiplier": 2.0, "dry_allowed_length": 1, "presence_penalty": 0.4, "min_p": 0.02},
    "bad words": {"bad_words": ((3, 4), (9,), (1, 2, 3)), "top_k": 30, "logprobs": 2},
    "min_tokens": {"min_tokens": 4, "stop_token_ids": tuple(range(0, 12, 2)), "temperature": 0.6},
    "ngrams": {"no_repeat_ngram_size": 2, "repetition_penalty": 1.1},
    "bias": {
        "sequence_bias": (((1, 2), 4.0), ((7,), 2.0)),
        "logit_bias": {11: 3.0},
        "logprobs": 1,
        "logprobs_mode": "processed",
    },
    "allowed": {"allowed_token_ids": tuple(range(0, V, 3)), "frequency_penalty": 0.5},
    "forced": {"forced_token_ids": (4, 5), "presence_penalty": 0.5},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.02, "min_p": 0.005},
}


class World:
    """Slots, and the same step drawn by both backends."""

    def __init__(self, seed: int = 1) -> None:
        self.slots = Slots(len(ASKED) + 2, V)
        self.gpu, self.cpu = Sampler(self.slots, "gpu"), Sampler(self.slots, "cpu")
        self.noise, self.rng = torch.Generator().manual_seed(seed), random.Random(seed)
        self.length: dict[int, int] = {}
        for slot, fields in enumerate(ASKED.values()):
            self.join(slot, fields)

    def join(self, slot: int, fields: dict) -> None:
        prompt = [self.rng.randrange(12) for _ in range(self.rng.randrange(1, 9))]
        self.slots.add(slot, SamplingParams(**fields), key=slot * 31 + 7, prompt=prompt, eos_token_ids=[0])
        self.length[slot] = len(prompt)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        """Draw with both, compare, commit."""
        here = self.rng.sample(sorted(self.length), len(self.length))  # order does not matter
        logits = torch.randn(len(here), V, generator=self.noise)
        logits[:, :12] += 4.0
        rows = Rows.plain(here, range(len(here)), [self.length[slot] for slot in here])
        found, expected = self.gpu(logits.to(DEVICES["gpu"]), rows), self.cpu(logits, rows)
        assert found.token_ids.tolist() == expected.token_ids.tolist(), here
        for mine, theirs in zip(found.logprobs, expected.logprobs, strict=True):
            assert (mine and [(e.rank, e.top_ids) for e in mine]) == (theirs and [(e.rank, e.top_ids) for e in theirs])
        self.slots.commit(here, found.token_ids.tolist())
        for slot in here:
            self.length[slot] += 1


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(DeviceSlots, "falling_back", lambda *_: [])
    return World()


@QUIET
@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.long)])
def test_history_grows_and_is_taken_back(world, steps):
    world.steps(steps)
    for slot in range(len(ASKED)):
        world.slots.rewind(slot, steps - 1)
        world.slots.ban(slot, world.rng.randrange(12))
        world.length[slot] -= steps - 1
    world.steps(steps - 1)


@pytest.mark.long
@QUIET
def test_slots_change_hands(world):
    names = list(ASKED)
    for turn in range(2):
        world.step()
        for slot in world.rng.sample(range(len(ASKED)), 5):
            world.slots.remove(slot)
            world.join(slot, ASKED[names[(slot + turn + 1) % len(names)]])
    world.slots.fork(1, len(ASKED), key=99)
    world.slots.fork(5, len(ASKED) + 1, key=98)
    world.length |= {len(ASKED): world.length[1], len(ASKED) + 1: world.length[5]}
    world.steps(2)


@pytest.mark.long
@QUIET
def test_what_is_forced_comes_at_once(world):
    world.step()
    for slot in range(0, len(ASKED), 2):
        world.slots.force(slot, [slot % 5, 7])
    world.steps(3)  # the last without


@pytest.mark.long
@QUIET
def test_a_device_that_does_not_follow_is_seen(world, monkeypatch):
    """The planted fault: what a token changes never gets there."""
    world.step()
    monkeypatch.setattr(DeviceSlots, "_list_amendments", lambda *_: [])
    with pytest.raises(AssertionError):
        world.steps(6)


@QUIET
def test_a_row_is_the_same_bits_alone_and_in_company():
    slots = Slots(4, V)
    for slot, fields in enumerate(({"top_p": 0.9, "logprobs": 3}, {}, {"logit_bias": {1: 2.0}}, {"typical_p": 0.9})):
        slots.add(slot, SamplingParams(**fields), key=slot, prompt=[1, 2])
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(2)).to(DEVICES["gpu"])
    sampler = Sampler(slots, "gpu")
    alone = sampler(logits[:1], Rows.plain([0], [0], [5]))
    company = sampler(logits, Rows.plain([3, 1, 0, 2], [3, 1, 0, 4], [5, 6, 5, 9]))
    assert company.token_ids[2].tolist() == alone.token_ids[0].tolist()
    assert repr(company.logprobs[2]) == repr(alone.logprobs[0])


@pytest.mark.few(2)
@QUIET
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocab", [V, 5])
def test_every_dtype_is_read_as_it_is(dtype, vocab):
    slots = Slots(2, vocab)
    for slot in range(2):
        slots.add(slot, SamplingParams(temperature=1.5, presence_penalty=0.5 * slot), key=slot, prompt=[1], output=[2])
    logits = (torch.randn(2, vocab, generator=torch.Generator().manual_seed(6)) * 3).to(dtype)
    for position in range(3):
        rows = Rows.plain([0, 1], [0, 1], [position] * 2)
        found = Sampler(slots, "gpu")(logits.to(DEVICES["gpu"]), rows).token_ids
        assert torch.equal(found, Sampler(slots, "reference")(logits, rows).token_ids)


@QUIET
def test_draws_can_be_used_before_they_have_arrived():
    slots = Slots(3, V)
    for slot, fields in enumerate(({}, {"mirostat": 2}, {"top_k": 4})):
        slots.add(slot, SamplingParams(**fields), key=slot, prompt=[1, 2])
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(4)).to(DEVICES["gpu"])
    pending = Sampler(slots, "gpu").begin(logits, Rows.plain([0, 1, 2], [0, 1, 2], [2, 2, 2]))
    assert pending.token_ids.tolist() == pending.wait().token_ids.tolist()
    assert pending.wait() is pending.wait()


def test_a_vocabulary_that_is_too_large_is_refused():
    slots = Slots(1, 1 << 19)
    slots.add(0, SamplingParams(), key=1, prompt=[1])
    with pytest.raises(ValueError, match="vocabularies below"):
        Sampler(slots, "gpu")(torch.zeros(1, 1 << 19, device=DEVICES["gpu"]), Rows.plain([0], [0], [1]))


@QUIET
def test_warming_up_runs_every_kernel(monkeypatch):
    ran: list[tuple[tuple[int, int], StepReports, bool]] = []

    def run(launch: Launch) -> None:
        ran.append((launch.shape, launch.reports, launch.masses is not None))

    monkeypatch.setattr("tailrace.sampling.backends.gpu.run", run)
    Sampler(Slots(1, V), "gpu").warm_up({torch.float32}, torch.device(DEVICES["gpu"]))
    reports = StepReports(1, -(-V // 32))
    assert ran == [((2, 1), reports, False), ((2, 2), reports, False), ((1, 1), StepReports(), True)]


def both(row: torch.Tensor, fields: dict, *, prompt=(1, 2), eos=(0,), backend="reference"):
    """What the GPU and another backend say of one row."""
    out = []
    for name in ("gpu", backend):
        slots = Slots(1, row.numel())
        slots.add(0, SamplingParams(**fields), key=3, prompt=prompt, eos_token_ids=eos)
        out.append(Sampler(slots, name)(row[None].to(DEVICES[name]), Rows.plain([0], [0], [len(prompt)])))
    return out


@pytest.mark.few(1)
@QUIET
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_numbers_at_their_limits(backend):
    """Each once said something else."""
    noise = torch.randn(V, generator=torch.Generator().manual_seed(3))
    lowest, apart, top = noise.clone(), torch.full((V,), -5.0), torch.zeros(V)
    lowest[100:120] = -3.4e38
    apart[5], apart[9] = 0.3, 0.2999
    top[7] = 3e38
    biased = {"temperature": 0.0, "logit_bias": {5: 1e4}, "sequence_bias": (((5,), -1e4),)}
    together = {"temperature": 0.0, "logit_bias": {5: 3.0}, "sequence_bias": (((5,), -2.0),)}
    half = torch.zeros(V)
    half[9] = 0.5
    late = {"sampler_order": ("top_k",), "top_k": 5, "temperature": 1e-40, "logprobs": 4, "logprobs_mode": "processed"}
    processed = {"top_k": 3, "logprobs": 4, "logprobs_mode": "processed"}
    for row, fields, eos in (
        (lowest, {"top_n_sigma": 1.0}, (0,)),
        (apart, biased, (0,)),
        (half, together, (0,)),
        (noise, late, (0,)),
        (top, processed, (0,)),
        (noise, {"top_k": 3}, range(9)),
        (noise, {"top_k": 3}, range(109)),
        (noise, {"xtc_probability": 1.0, "xtc_threshold": 0.01}, range(0, 100, 2)),
    ):
        found, expected = both(row, fields, eos=eos, backend=backend)
        assert found.token_ids.tolist() == expected.token_ids.tolist(), fields
        for mine, theirs in zip(found.logprobs[0] or (), expected.logprobs[0] or (), strict=True):
            assert (mine.rank, mine.top_ids) == (theirs.rank, theirs.top_ids)
            assert mine.top_logprobs == pytest.approx(theirs.top_logprobs, abs=2e-5)


@QUIET
def test_what_is_drawn_elsewhere_is_not_followed(monkeypatch):
    slots = Slots(1, V)
    slots.add(0, SamplingParams(mirostat=2, presence_penalty=1.0), key=1, prompt=[1, 2])
    sampler, logits = Sampler(slots, "gpu"), torch.randn(1, V, generator=torch.Generator().manual_seed(1))
    sampler(logits.to(DEVICES["gpu"]), Rows.plain([0], [0], [2]))
    monkeypatch.setattr(DeviceSlots, "_update_owner", lambda *_: pytest.fail("followed for nothing"))
    sampler(logits.to(DEVICES["gpu"]), Rows.plain([0], [0], [3]))
    monkeypatch.undo()
    slots.remove(0)  # another one in its place is
    slots.add(0, SamplingParams(temperature=0.0), key=1, prompt=[1])
    assert sampler(logits.to(DEVICES["gpu"]), Rows.plain([0], [0], [1])).token_ids.item() == int(logits.argmax())


@QUIET
def test_rows_that_are_part_of_wider_ones_are_drawn_by_the_same_code():
    """A drafter may have more ids than the target: kernels must not be compiled anew for its stride."""
    slots = Slots(2, 64)
    for slot in range(2):
        slots.add(slot, SamplingParams(seed=slot), prompt=[1])
    gpu = backend_of(slots, "gpu", torch.device(DEVICES["gpu"]))
    wide = torch.randn(2, 67, generator=torch.Generator().manual_seed(5)).to(DEVICES["gpu"])
    rows = Rows.plain([0, 1], [0, 1], [1, 1])
    prepared = [gpu.prepare(logits, rows, StepReports()).step for logits in (wide[:, :64], wide[:, :64].contiguous())]
    assert prepared[0].compiled_for == prepared[1].compiled_for
    assert torch.equal(*(step.logits for step in prepared))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_thousand_times_the_same_bits():
    assert differing([*ASKED.values(), *REQUESTS]) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_without_barriers_the_bits_differ(tmp_path):
    """The planted fault of the test above, in a process with a cache of kernels of its own."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "sampling.repeats", "--without-barriers"]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert "illegal" in done.stderr or int(done.stdout) > 0, done.stderr  # it may read where nothing is
