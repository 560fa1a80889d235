"""Logits → token ids: edit, refine, draw and report rows; verify drafts. Knows no method by name, no request, no text.

A backend does the work (backends/): on the CPU one call of the kernels per step, on a GPU a few launches. Rows that
need more than the kernels have fall back to the reference sampler. All backends draw by Gumbel-max. The noise is a
function of (key, position, token id). So a row's token depends only on its own logits, parameters, key and position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tailrace.errors import ParameterError
from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.kernels.plain import make_plain
from tailrace.kernels.rows import Rows
from tailrace.sampling.backends import BackendName, backend_of, name_for
from tailrace.sampling.backends.base import Backend, Pending, Sampled
from tailrace.sampling.explain import check_options, check_step, explain_rows
from tailrace.sampling.slots import Slots
from tailrace.sampling.validation import check_kind

__all__ = ["BackendName", "Pending", "Sampled", "Sampler"]


class Sampler:
    """Draws the tokens of a step from their slots' distributions. It does not commit them.

    Args:
        backend: name of the backend. None selects the kernels of the logits' device.
    """

    def __init__(self, slots: Slots, backend: BackendName | None = None) -> None:
        check_kind("slots", slots, Slots)
        name_for(backend, torch.device("cuda" if isinstance(backend, str) and backend == "gpu" else "cpu"))
        self.slots = slots
        self.backend: BackendName | None = backend

    def warm_up(self, dtypes: set[torch.dtype], device: torch.device) -> None:
        """Prepare for logits of these dtypes. On a GPU this compiles kernels, which takes a minute per dtype the first
        time on a machine."""
        check_kind("device", device, torch.device)
        self.backend_for(device).warm_up(dtypes)

    def __call__(self, logits: torch.Tensor, rows: Rows) -> Sampled:
        """Call `begin` and wait for the result."""
        return self.begin(logits, rows).wait()

    def begin(self, logits: torch.Tensor, rows: Rows) -> Pending:
        """Start to sample the rows.

        Args:
            logits: [L, V] of bf16, f16 or f32, rows may be strided; not modified.
            rows: see kernels/rows.py.

        Raises:
            ParameterError: the vocabulary or the dtype differs, the logits have no numbers in memory
                (kernels/plain.py), a slot is empty, or a number of `rows` is out of range.
        """
        logits, rows = self._complete_step(logits, rows)
        return self.backend_for(logits.device).sample(logits, rows)

    def refine(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Return the logits after each row's edits and refinements, float32 [R, V], relative to their maximum; −inf for
        removed tokens. A GPU's kernels do it without a wait, if they have all that the rows need.

        Args:
            logits, rows: those of a draw without drafts. No slot is greedy. All report processed logprobs.

        Raises:
            ParameterError: as from `begin`.
        """
        logits, rows = self._complete_step(logits, rows)
        return self.backend_for(logits.device).refine(logits, rows)

    def explain(
        self,
        logits: torch.Tensor,
        rows: Rows,
        options: ExplainOptions | Sequence[ExplainOptions | None] = ExplainOptions(),  # noqa: B008, frozen
    ) -> list[list[Explanation]]:
        """Explain the tokens that these rows decide, for every backend. Return a record per token of `Sampled.tokens`,
        by request. Call it before the tokens are committed. It changes nothing.

        It runs the reference pipeline on each row, with logits copied to the host. This takes milliseconds per token
        (docs/explain.md).

        Args:
            logits, rows: those of the draw.
            options: what to show (explain/record.py), for all requests or one entry for each. A request with None has
                an empty list. So does a request that can't be drawn.

        Raises:
            ParameterError: as from `begin`. Or the number of options differs from the requests', or they name a token
                outside the vocabulary.
        """
        logits, rows = self._complete_step(logits, rows.on_host())
        each = [options] * rows.num_requests if isinstance(options, ExplainOptions) else options
        check_options(each, rows.num_requests, self.slots.vocab_size)
        check_step(self.slots, logits, rows)
        return explain_rows(self.slots, logits, rows, each)

    def _complete_step(self, logits: torch.Tensor, rows: Rows) -> tuple[torch.Tensor, Rows]:
        """Check the step as all backends need it. Return the logits as a plain tensor, and the rows with their
        positions."""
        check_kind("rows", rows, Rows)
        check_kind("logits", logits, torch.Tensor)
        logits = make_plain("logits", logits)
        if logits.dim() != 2 or logits.shape[1] != self.slots.vocab_size:
            raise ParameterError(
                f"logits must have {self.slots.vocab_size} columns, got {tuple(logits.shape)}", "logits"
            )
        if rows.counted is not False:
            check_kind("counted", rows.counted, bool)
            rows = replace(rows, position=self.slots.positions(rows), counted=False)
        return logits, rows

    def backend_for(self, device: torch.device) -> Backend:
        """Return the backend that samples logits of this device.

        Raises:
            ParameterError: the requested backend does not read logits of this device.
        """
        return backend_of(self.slots, name_for(self.backend, device), device)
