"""LoRA adapters that are loaded and unloaded while the engine runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from runners.test_lora import BLOCK, TARGETS, VOCAB, adapter, alone, base_model, ids_of
from tailrace.config import CacheConfig, ModelConfig, SchedulerConfig
from tailrace.engine.adapters import AdapterChanges
from tailrace.engine.engine import Engine
from tailrace.params import SamplingParams
from tailrace.runners.load_transformers import load_transformers
from tailrace.wire.messages import (
    AdapterChange,
    AdapterOutcome,
    Failed,
    Finished,
    ModelInfo,
    PeerQuery,
    PeerReply,
    Ready,
    Submit,
    Tokens,
)


class World:
    """A small model that may get adapters, and its engine; `said` is what each adapter's merged model says."""

    def __init__(self, folder: Path, most: int = 2) -> None:
        self.root = folder / "adapters"
        self.root.mkdir()
        model = base_model()
        model.save_pretrained(folder / "m")
        self.merged = {"": model}
        for name, seed in (("x", 5), ("y", 6)):
            self.merged[name] = adapter(self.root / name, model, TARGETS[name], 4, seed)
        self.config = ModelConfig(dtype="float32", threads=1, lora_folder=str(self.root), max_loras=most)
        self.folder = folder / "m"
        self.start_engine()
        self.number = 0

    def start_engine(self, lora: str = "", changes: Sequence[AdapterChange] = ()) -> None:
        """Start an engine whose first adapters are `lora`, and make the changes of an earlier one."""
        self.config = msgspec.structs.replace(self.config, lora=lora)
        self.runner = load_transformers(self.config, self.folder, block_size=BLOCK)
        info, cache = ModelInfo("m", VOCAB, 256, []), CacheConfig(num_blocks=64)
        self.engine = Engine(self.runner, info, cache, SchedulerConfig(max_num_seqs=8))
        self.sent: list[object] = []
        self.changes = AdapterChanges(
            self.engine, self.config, lambda client, messages: self.sent.extend(messages), {b"a"}
        )
        self.changes.restore(changes)

    def change(self, question: str, name: str, folder: str = "", in_place: bool = False) -> AdapterOutcome:
        """Ask for a change, and wait for its outcome."""
        self.number += 1
        self.sent.clear()
        argument = msgspec.json.encode(AdapterChange(name, folder, in_place)).decode()
        assert self.changes.answers(b"a", PeerQuery(self.number, question, argument))
        until = time.monotonic() + 300
        while not any(isinstance(message, PeerReply) for message in self.sent):
            assert time.monotonic() < until
            self.changes.advance()
            time.sleep(0.01)
        [reply] = [message for message in self.sent if isinstance(message, PeerReply)]
        assert reply.data is not None
        outcome = msgspec.json.decode(reply.data, type=AdapterOutcome)
        told = [message.model.adapters for message in self.sent if isinstance(message, Ready)]
        assert told == ([] if outcome.code else [[*filter(None, self.runner.adapters)]])
        return outcome

    def begin(self, id: str, name: str, prompt: list[int], count: int = 6) -> None:
        """Submit a greedy request."""
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        self.engine.submit(Submit(id, 0, prompt, params, adapter=name))

    def finish(self) -> dict[str, list[int] | str]:
        """Run all requests to their ends: id → its tokens, or its error."""
        found: dict[str, list[int] | str] = {}
        while self.engine.has_work:
            self.changes.advance()
            for message in self.engine.step().get(b"", []):
                if isinstance(message, Tokens):
                    found.setdefault(message.id, [])
                    found[message.id] += message.token_ids  # type: ignore[operator]
                if isinstance(message, Failed):
                    found[message.id] = message.message
                assert not isinstance(message, Finished) or message.reason == "length"
        return found

    def says(self, name: str, prompt: list[int], count: int = 6) -> list[int]:
        """What the merged model says, by transformers."""
        return alone(self.merged[name], prompt)[:count]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


PROMPT = ids_of(1, 40)


def test_loaded_adapters_compute_what_their_merged_models_do(world):
    world.begin("before", "", PROMPT)
    assert world.finish() == {"before": world.says("", PROMPT)}
    assert world.change("load_adapter", "x", "x") == AdapterOutcome()
    assert world.change("load_adapter", "y", str(world.root / "y")) == AdapterOutcome()
    for name in ("", "x", "y"):
        world.begin(f"of {name}", name, PROMPT)
    found = world.finish()
    assert found == {f"of {name}": world.says(name, PROMPT) for name in ("", "x", "y")}
    assert len({tuple(tokens) for tokens in found.values()}) == 3  # or this test could not fail


def test_running_requests_of_an_unloaded_adapter_finish(world):
    world.change("load_adapter", "x", "x")
    world.begin("runs", "x", PROMPT, 20)
    assert world.engine.step()  # its first token
    assert world.change("unload_adapter", "x") == AdapterOutcome()
    world.begin("late", "x", PROMPT)
    found = world.finish()
    assert found["runs"] == world.says("x", PROMPT, 20)[1:]
    assert 'there is no adapter "x"' in found["late"]
    world.changes.advance()
    assert not any(world.runner.paged.lora._deltas.values())  # the memory is free again


def test_a_name_that_is_loaded_again_is_another_adapter(world):
    """Cached prefixes of the first one do not serve the second."""
    world.change("load_adapter", "x", "x")
    world.begin("first", "x", PROMPT)
    world.finish()
    taken = world.change("load_adapter", "x", "y")
    assert (taken.code, taken.param) == ("invalid_value", "lora_name")
    assert world.change("load_adapter", "x", "y", in_place=True) == AdapterOutcome()
    world.begin("second", "x", PROMPT)
    assert world.finish() == {"second": world.says("y", PROMPT)}
    world.change("unload_adapter", "x")
    world.change("load_adapter", "x", "x")
    world.begin("third", "x", PROMPT)
    assert world.finish() == {"third": world.says("x", PROMPT)}


def test_an_engine_that_has_slept_gets_its_adapters_again(world):
    world.change("load_adapter", "x", "x")
    world.change("load_adapter", "y", "x")
    world.change("load_adapter", "y", "y", in_place=True)
    assert world.changes.changes == [AdapterChange("x", "x"), AdapterChange("y", "y", True)]
    world.start_engine(changes=world.changes.changes)
    assert world.engine.info.adapters == ["x", "y"]
    for name in ("", "x", "y"):
        world.begin(name, name, PROMPT)
    assert world.finish() == {name: world.says(name, PROMPT) for name in ("", "x", "y")}
    world.change("unload_adapter", "x")
    assert world.changes.changes == [AdapterChange("y", "y", True)]


def test_changes_of_first_adapters_are_made_again(world):
    """Also if a file is gone: the adapter that was replaced must not answer in its place."""
    first = f"x={world.root / 'x'},y={world.root / 'y'}"
    world.start_engine(first)
    world.change("unload_adapter", "x")
    world.change("load_adapter", "y", "x", in_place=True)
    changes = world.changes.changes
    assert changes == [AdapterChange("x"), AdapterChange("y", "x", True)]
    world.start_engine(first, changes)
    world.begin("y", "y", PROMPT)
    assert world.finish() == {"y": world.says("x", PROMPT)}
    (world.root / "x" / "adapter_config.json").unlink()
    world.start_engine(f"y={world.root / 'y'}", changes[1:])
    assert world.engine.info.adapters == []
    world.begin("y", "y", PROMPT)
    assert 'there is no adapter "y"' in world.finish()["y"]


def test_only_so_many_adapters(world):
    world.change("load_adapter", "x", "x")
    world.change("load_adapter", "y", "y")
    refused = world.change("load_adapter", "z", "x")
    assert "2 adapters are loaded (--max-loras)" in refused.message
    assert world.change("load_adapter", "y", "x", in_place=True) == AdapterOutcome()
    world.change("unload_adapter", "y")
    assert world.change("load_adapter", "z", "x") == AdapterOutcome()


def test_only_folders_below_the_operators(world, tmp_path):
    outside = tmp_path / "outside"
    adapter(outside, base_model(), TARGETS["x"], 4, 5)
    os.symlink(outside, world.root / "link")
    (world.root / "files").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        os.symlink(outside / name, world.root / "files" / name)
    for path in (str(outside), "../outside", "x/../../outside", "link", "files", "/", "../adapters-of-others"):
        refused = world.change("load_adapter", "z", path)
        assert (refused.code, refused.param) == ("invalid_value", "lora_path"), path
        assert "below the one of --lora-folder" in refused.message
    for path in ("", "none", "x\0", "x" * 5000):
        refused = world.change("load_adapter", "z", path)
        assert refused.param == "lora_path"
        assert str(world.root) not in refused.message
        assert "Error" not in refused.message  # a client has nothing from Python's names
    os.symlink("x", world.root / "inside")  # as a hub's cache has it
    assert world.change("load_adapter", "z", "inside") == AdapterOutcome()


def test_what_does_not_fit_is_refused_and_changes_nothing(world):
    adapter(world.root / "odd", base_model(), TARGETS["x"], 4, 5, use_dora=True)
    refused = world.change("load_adapter", "odd", "odd")
    assert (refused.code, refused.param) == ("invalid_value", "lora_path")
    assert "use_dora" in refused.message
    (world.root / "x" / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
    assert "can't be read" in world.change("load_adapter", "x", "x").message
    assert world.runner.adapters == ()
    for name in ("", "a b", "a" * 200):
        assert world.change("load_adapter", name, "y").param == "lora_name"
    gone = world.change("unload_adapter", "x")
    assert (gone.code, gone.param) == ("model_not_found", "lora_name")


def test_without_a_folder_nothing_changes(world):
    world.changes = AdapterChanges(
        world.engine, ModelConfig(), lambda client, messages: world.sent.extend(messages), {b"a"}
    )
    for question in ("load_adapter", "unload_adapter"):
        refused = world.change(question, "x", "x")
        assert (refused.code, "--lora-folder" in refused.message) == ("invalid_value", True)
