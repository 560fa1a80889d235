"""Early exit: the target's own first layers draft, through its final norm and output head (Zhang et al., arXiv
2309.08168; Elhoushi et al., LayerSkip, arXiv 2404.16710). Needs no other weights and no cache, and has nothing to catch
up on.

The drafts' keys and values go to the target's own blocks, behind what it has computed. Verification writes the same
positions again, in these layers with the same values, so nothing of a draft pass is left but what the target computes
itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.drafting.base import Draft, DraftRequest, TargetStates
from tailrace.drafting.pick import Picker
from tailrace.errors import ConfigError
from tailrace.runners.base import LayeredRunner
from tailrace.runners.flat_batch import block_table, lay_out


class EarlyExit:
    """See drafting.base.Drafter. Reads the asks' `blocks` and `computed`, and writes positions computed … len(tokens) +
    count − 2: these blocks must be the sequence's alone.

    Args:
        runner: the target. layers: how many of its layers draft, 1 … L − 1. block_size: of the target's cache.

    Raises:
        ConfigError: the target has not so many layers.
    """

    draws = True
    captures: tuple[int, ...] = ()

    def __init__(self, runner: LayeredRunner, layers: int, picker: Picker, block_size: int) -> None:
        if not 1 <= layers < runner.num_layers:
            raise ConfigError(f"early exit: layers must be an integer in [1, {runner.num_layers - 1}], got {layers}")
        self.runner, self.layers, self.picker, self.block_size = runner, layers, picker, block_size

    def draft(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        tables = block_table([ask.blocks for ask in asks])
        computed = [ask.computed for ask in asks]
        with self.picker.start(asks) as picks:
            going = list(range(len(asks)))
            while going:
                first = [computed[i] for i in going]
                tokens = [picks.since(i, start) for i, start in zip(going, first, strict=True)]
                batch = lay_out(tokens, first, tables[going], self.block_size)
                for i, fed in zip(going, tokens, strict=True):
                    computed[i] += len(fed)
                going = picks.take(self.runner.forward_layers(batch, self.layers), going)
            return picks.drafts()

    def observe(self, seen: TargetStates) -> None:
        pass

    def remove(self, slot: int) -> None:
        pass
