"""Early exit: the target's own first layers draft, through its final norm and output head (Zhang et al., arXiv
2309.08168; Elhoushi et al., LayerSkip, arXiv 2404.16710). It needs no other weights, no cache, and no update after each
step.

The drafts' keys and values are stored in the target's own blocks, after the computed positions. Verification writes the
same positions again, with the same values in these layers. So a draft pass leaves no changes behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.drafting.base import Draft, Drafter, DraftRequest
from tailrace.drafting.draft_sampler import DraftSampler
from tailrace.errors import ConfigError
from tailrace.runners.base import LayeredRunner, StatefulRunner
from tailrace.runners.flat_batch import block_table, lay_out


class EarlyExit(Drafter):
    """Drafter that runs the target's first layers.

    It reads each request's `blocks` and `computed`, and writes its positions computed … len(tokens) + count − 2. No
    other sequence may share these blocks.

    Args:
        runner: the target.
        layers: how many of its layers draft, 1 … L − 1.
        block_size: of the target's cache.

    Raises:
        ConfigError: the target has too few layers, or layers with states.
    """

    draws = True

    def __init__(self, runner: LayeredRunner, layers: int, draft_sampler: DraftSampler, block_size: int) -> None:
        if isinstance(runner, StatefulRunner) and runner.state_bytes:
            raise ConfigError("early exit: the model keeps a state per sequence, so its first layers can't run alone")
        if not 1 <= layers < runner.num_layers:
            raise ConfigError(f"early exit: layers must be an integer in [1, {runner.num_layers - 1}], got {layers}")
        self.runner, self.layers, self.draft_sampler, self.block_size = runner, layers, draft_sampler, block_size

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        tables = block_table([request.blocks for request in requests])
        computed = [request.computed for request in requests]
        with self.draft_sampler.start(requests) as draft_batch:
            unfinished = list(range(len(requests)))
            while unfinished:
                first = [computed[i] for i in unfinished]
                tokens = [draft_batch.slice_tokens(i, start) for i, start in zip(unfinished, first, strict=True)]
                batch = lay_out(tokens, first, tables[unfinished], self.block_size)
                for i, fed in zip(unfinished, tokens, strict=True):
                    computed[i] += len(fed)
                unfinished = draft_batch.sample(self.runner.forward_layers(batch, self.layers), unfinished)
            return draft_batch.drafts()

    def remove(self, slot: int) -> None:
        pass
