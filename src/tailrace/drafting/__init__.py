"""Recent token ids → drafts. See drafting/base.py for what a drafter is; `load_drafter` makes the one that is
configured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tailrace.config import ModelConfig, SpeculationConfig
from tailrace.drafting.base import Drafter
from tailrace.errors import ConfigError
from tailrace.runners import load_runner
from tailrace.runners.base import LayeredRunner, ModelRunner
from tailrace.sampling import Sampler

__all__ = ["Drafter", "load_drafter"]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a drafter is made from. sampler: with the engine's own slots. block_size: of the target's cache."""

    config: SpeculationConfig
    model: ModelConfig
    target: ModelRunner
    sampler: Sampler
    block_size: int

    @property
    def layered(self) -> LayeredRunner:
        """The target, if its layers can be looked at."""
        if not isinstance(self.target, LayeredRunner):
            raise ConfigError(
                f"speculation.drafter: {self.config.drafter} needs a model with layers; this one has none"
            )
        return self.target

    @property
    def folder(self) -> Path:
        """Where the drafter's own weights are."""
        if self.config.model is None:
            raise ConfigError(
                f"speculation.model: drafter {self.config.drafter} needs weights of its own (--draft-model)"
            )
        return Path(self.config.model)

    def blocks(self, block_bytes: int) -> int:
        """Blocks of a cache of the drafter's own, as many as its memory holds."""
        return max(1, int(self.config.cache_gib * 2**30) // max(1, block_bytes))


def _ngram(where: Surroundings) -> Drafter:
    from tailrace.drafting.ngram import NGram

    return NGram()


def _suffix(where: Surroundings) -> Drafter:
    from tailrace.drafting.suffix import Suffix

    return Suffix()


def _early_exit(where: Surroundings) -> Drafter:
    from tailrace.drafting.draft_sampler import DraftSampler
    from tailrace.drafting.early_exit import EarlyExit

    target = where.layered
    layers = where.config.layers or max(1, target.num_layers // 4)
    return EarlyExit(target, layers, DraftSampler(where.sampler), where.block_size)


def _draft_model(where: Surroundings) -> Drafter:
    from tailrace.drafting.draft_sampler import DraftSampler
    from tailrace.drafting.model import DraftModel

    runner = load_runner(
        msgspec.structs.replace(where.model, model=str(where.folder), lora=""),  # adapters are the target's
        where.folder,
        block_size=where.block_size,
        max_num_seqs=len(where.sampler.slots.slots),
    )
    return DraftModel(runner, DraftSampler(where.sampler), where.blocks(runner.block_bytes), where.block_size)


def _eagle(where: Surroundings) -> Drafter:
    from tailrace.drafting.draft_sampler import DraftSampler
    from tailrace.drafting.eagle import EagleDrafter
    from tailrace.drafting.eagle_heads import load_head

    head = load_head(where.folder, where.layered)
    blocks = where.blocks(head.layer.position_bytes * where.block_size)
    return EagleDrafter(head, DraftSampler(where.sampler), blocks, where.block_size)


def _block(where: Surroundings) -> Drafter:
    from tailrace.drafting.block import BlockDrafter
    from tailrace.drafting.block_head import BlockHead
    from tailrace.drafting.draft_sampler import DraftSampler

    head = BlockHead.load(where.folder, where.layered)
    blocks = where.blocks(head.position_bytes * where.block_size)
    return BlockDrafter(head, DraftSampler(where.sampler), blocks, where.block_size)


DRAFTERS: dict[str, Callable[[Surroundings], Drafter]] = {
    "ngram": _ngram,
    "suffix": _suffix,
    "early_exit": _early_exit,
    "draft_model": _draft_model,
    "eagle": _eagle,
    "block": _block,
}


def load_drafter(
    config: SpeculationConfig, model: ModelConfig, target: ModelRunner, sampler: Sampler, block_size: int
) -> Drafter:
    """The drafter that `config` names, not "none"; the target shows it the layers that it wants to see.

    Raises:
        ConfigError: it needs weights that are not named, or a model with layers. ModelLoadError: the weights do not
            fit.
    """
    drafter = DRAFTERS[config.drafter](Surroundings(config, model, target, sampler, block_size))
    if drafter.captures and isinstance(target, LayeredRunner):
        target.capture(drafter.captures)
    return drafter
