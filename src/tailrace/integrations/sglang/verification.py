"""SGLang's verification of drafts with tokens that tailrace draws.

SGLang can verify a tree of drafts against given tokens, one for each node: a draft stays if it is its parent's token.
tailrace draws these tokens. So a request's tokens are those of a server without drafts, whatever the drafts are, and
min-p acts, which SGLang's own verification leaves out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from tailrace.integrations.sglang.drawing import Drawer, DrawStep, get_own_text
from tailrace.integrations.sglang.sampler import draw_or_fall_back, draw_theirs

UTILS = "sglang.srt.speculative.eagle_utils"


class TreeVerifier:
    """Draws the target tokens of SGLang's verification. Its methods are hooks.

    - errors: tailrace's errors, by type.
    """

    def __init__(self) -> None:
        self.drawer = Drawer("verification")
        self.errors: Counter[str] = Counter()
        self._nodes: Any = None  # of the verification in progress
        self._requests: list[Any] | None = None

    def sample_tree(self, original: Any, verify_input: Any, batch: Any, *args: Any, **more: Any) -> Any:
        """Wrap `eagle_sample`: remember the nodes' positions and the requests."""
        self._nodes, self._requests = verify_input, list(batch.reqs)
        try:
            return original(verify_input, batch, *args, **more)
        finally:
            self._nodes = self._requests = None

    def uses_greedy(self, original: Any, *args: Any, is_all_greedy: bool, **more: Any) -> bool:
        """Wrap `_verify_uses_greedy`: only greedy batches take the largest logits."""
        return is_all_greedy and not self._has_own_fields()

    def uses_targets(self, original: Any, *args: Any, **more: Any) -> bool:
        """Wrap `_can_use_sparse_uno_tree_target_sampling`: verify against given tokens."""
        return True

    def sample_targets(self, original: Any, **given: Any) -> torch.Tensor:
        """Wrap `sample_uno_tree_target_tokens`: draw a token for each node, int64 [N, width]."""
        logits, info, width = given["next_token_logits"], given["sampling_info"], given["verify_width"]
        step = DrawStep(self._nodes.positions + 1, self._requests, width=width)

        def draw_their_tokens() -> torch.Tensor:
            wide = widen_info(info, width)
            return draw_theirs(logits, wide, self._nodes.positions)

        ids = draw_or_fall_back(lambda: self.drawer.draw(logits, info, step), self, draw_their_tokens)
        return ids.view(-1, width)

    def _has_own_fields(self) -> bool:
        return any(get_own_text(one) for one in self._requests or ())


def widen_info(info: Any, width: int) -> Any:
    """Return SGLang's batch with each request's numbers for `width` rows."""
    names = ("temperatures", "top_ks", "top_ps", "min_ps", "sampling_seed")
    values = {name: getattr(info, name) for name in names}
    return replace(
        info,
        **{name: None if value is None else value.repeat_interleave(width, 0) for name, value in values.items()},
    )
