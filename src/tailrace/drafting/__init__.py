"""Recent token ids → drafts. drafting/base.py defines a drafter; `load_drafter` makes the configured one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tailrace.config import ModelConfig, SpeculationConfig
from tailrace.drafting.base import Drafter
from tailrace.drafting.lookup import LookupDrafter
from tailrace.errors import ConfigError
from tailrace.runners import load_runner
from tailrace.runners.base import LayeredRunner, ModelRunner
from tailrace.sampling import Sampler

if TYPE_CHECKING:
    from tailrace.drafting.draft_sampler import DraftSampler

__all__ = ["Drafter", "load_drafter"]


# Tokens that must agree before a text is copied although another drafter could draft. After so many a copy is right as
# often as a good head (drafting/ngram.py).
LOOKUP_MATCH = 6


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The inputs for making a drafter. sampler: with the engine's own slots. block_size: of the target's cache."""

    config: SpeculationConfig
    model: ModelConfig
    target: ModelRunner
    sampler: Sampler
    block_size: int

    @property
    def layered(self) -> LayeredRunner:
        """The target, if the outputs of its layers can be read; otherwise raises ConfigError."""
        if not isinstance(self.target, LayeredRunner):
            raise ConfigError(
                f"speculation.drafter: {self.config.drafter} needs a model with layers; this one has none"
            )
        return self.target

    @property
    def draft_sampler(self) -> DraftSampler:
        """A sampler of drafts. Nobody reads scores if all drafts are verified, so then there are none."""
        from tailrace.drafting.draft_sampler import DraftSampler

        return DraftSampler(self.sampler, scored=self.config.adaptive)

    @property
    def folder(self) -> Path:
        """The folder of the drafter's own weights. Raises ConfigError if none is configured."""
        if self.config.model is None:
            raise ConfigError(
                f"speculation.model: drafter {self.config.drafter} needs weights of its own (--draft-model)"
            )
        return Path(self.config.model)

    def blocks(self, block_bytes: int) -> int:
        """Return the number of blocks that fit into the drafter's cache memory, at least 1."""
        return max(1, int(self.config.cache_gib * 2**30) // max(1, block_bytes))


def _make_ngram_drafter(where: Surroundings) -> Drafter:
    from tailrace.drafting.ngram import NGram

    return NGram()


def _make_suffix_drafter(where: Surroundings) -> Drafter:
    from tailrace.drafting.suffix import Suffix

    return Suffix()


def _early_exit(where: Surroundings) -> Drafter:
    from tailrace.drafting.early_exit import EarlyExit

    target = where.layered
    layers = where.config.layers or max(1, target.num_layers // 4)
    return EarlyExit(target, layers, where.draft_sampler, where.block_size)


def _draft_model(where: Surroundings) -> Drafter:
    from tailrace.drafting.model import DraftModel

    runner = load_runner(
        msgspec.structs.replace(where.model, model=str(where.folder), lora="", lora_folder=None),  # the target's
        where.folder,
        block_size=where.block_size,
        max_num_seqs=len(where.sampler.slots.slots),
    )
    return DraftModel(runner, where.draft_sampler, where.blocks(runner.block_bytes), where.block_size)


def _make_eagle_drafter(where: Surroundings) -> Drafter:
    from tailrace.drafting.chain import ChainDrafter
    from tailrace.drafting.eagle_heads import load_head

    head = load_head(where.folder, where.layered)
    blocks = where.blocks(head.position_bytes * where.block_size)
    return ChainDrafter(head, where.draft_sampler, blocks, where.block_size)


def _make_mtp_drafter(where: Surroundings) -> Drafter:
    from tailrace.drafting.assistant import Assistant, AssistantDrafter, is_assistant
    from tailrace.drafting.chain import ChainDrafter
    from tailrace.drafting.mtp_head import MtpHead, take_target

    target, sampler = take_target(where.target), where.draft_sampler
    folder = Path(where.config.model or where.model.model or "")
    if is_assistant(folder):
        return AssistantDrafter(Assistant(folder, target), sampler, where.block_size)
    head = MtpHead.load(folder, target)
    blocks = where.blocks(head.position_bytes * where.block_size)
    return ChainDrafter(head, sampler, blocks, where.block_size)


def _make_block_drafter(where: Surroundings) -> Drafter:
    from tailrace.drafting.block import BlockDrafter
    from tailrace.drafting.block_head import BlockHead

    head = BlockHead.load(where.folder, where.layered)
    blocks = where.blocks(head.position_bytes * where.block_size)
    return BlockDrafter(head, where.draft_sampler, blocks, where.block_size)


DRAFTERS: dict[str, Callable[[Surroundings], Drafter]] = {
    "ngram": _make_ngram_drafter,
    "suffix": _make_suffix_drafter,
    "early_exit": _early_exit,
    "draft_model": _draft_model,
    "eagle": _make_eagle_drafter,
    "mtp": _make_mtp_drafter,
    "block": _make_block_drafter,
}


def _make_ngram_lookup() -> Drafter:
    from tailrace.drafting.ngram import NGram

    return NGram(LOOKUP_MATCH, LOOKUP_MATCH)


def _make_suffix_lookup() -> Drafter:
    from tailrace.drafting.suffix import Suffix

    return Suffix(min_match=LOOKUP_MATCH)


LOOKUPS: dict[str, Callable[[], Drafter]] = {"ngram": _make_ngram_lookup, "suffix": _make_suffix_lookup}


def load_drafter(
    config: SpeculationConfig, model: ModelConfig, target: ModelRunner, sampler: Sampler, block_size: int
) -> Drafter:
    """Make the drafter that `config` names (not "none"). From then on the target keeps the layer outputs that the
    drafter reads.

    Raises:
        ConfigError: the drafter needs weights that are not named, or a model with layers. Or a lookup has no drafter
            after it.
        ModelLoadError: the weights do not fit.
    """
    config.check_lookup()
    where = Surroundings(config, model, target, sampler, block_size)
    drafter = DRAFTERS[config.drafter](where)
    if config.lookup != "none":
        drafter = LookupDrafter(LOOKUPS[config.lookup](), drafter)
    if drafter.captures:
        where.layered.capture(drafter.captures)
    return drafter
