"""Logits → token ids: edit, prune, refine, draw, report; with drafts, verify. Knows no method by name, no request, no
text.

A backend does it (backends/): on the CPU one call of the kernels per step, on a GPU a few launches. Rows that ask for
what the kernels don't have fall back to the reference sampler. All draw by Gumbel-max with noise that is a function of
(key, position, token id): a row's token depends on its own logits, parameters, key and position alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tailrace.errors import ParameterError
from tailrace.explain.record import ExplainOptions, Explanation
from tailrace.kernels.rows import Rows
from tailrace.sampling.backends import BackendName, backend_of, name_for
from tailrace.sampling.backends.base import Backend, Pending, Sampled
from tailrace.sampling.explain import check_options, check_step, explain_rows
from tailrace.sampling.slots import Slots
from tailrace.sampling.validation import check_kind

__all__ = ["BackendName", "Pending", "Sampled", "Sampler"]


class Sampler:
    """Draws for the requests of a step from their slots' distributions; does not commit what it drew.

    Args:
        backend: None takes the kernels of the device where the logits are.
    """

    def __init__(self, slots: Slots, backend: BackendName | None = None) -> None:
        check_kind("slots", slots, Slots)
        name_for(backend, torch.device("cuda" if isinstance(backend, str) and backend == "gpu" else "cpu"))
        self.slots = slots
        self.backend: BackendName | None = backend

    def warm_up(self, dtypes: set[torch.dtype], device: torch.device) -> None:
        """Be ready for logits of these dtypes: on a GPU kernels are compiled, which takes a minute each the first time
        on a machine."""
        check_kind("device", device, torch.device)
        self.backend_for(device).warm_up(dtypes)

    def __call__(self, logits: torch.Tensor, rows: Rows) -> Sampled:
        """`begin`, and wait."""
        return self.begin(logits, rows).wait()

    def begin(self, logits: torch.Tensor, rows: Rows) -> Pending:
        """logits [L, V] of bf16, f16 or f32, rows may be strided; not modified. rows: see kernels/rows.py.

        Raises:
            ParameterError: the vocabulary or the dtype differs, a slot is empty, or a number of `rows` is out of range.
        """
        rows = self._complete_rows(logits, rows)
        return self.backend_for(logits.device).sample(logits, rows)

    def explain(
        self,
        logits: torch.Tensor,
        rows: Rows,
        options: ExplainOptions | Sequence[ExplainOptions | None] = ExplainOptions(),  # noqa: B008, frozen
    ) -> list[list[Explanation]]:
        """Why the tokens come that are drawn from these rows, whatever the backend: a record for each token that
        `Sampled.tokens` has, request by request. Before they are committed; nothing changes by it.

        The reference pipeline is walked, row by row, with logits copied to the host: milliseconds per token
        (docs/explain.md).

        Args:
            logits, rows: those of the draw.
            options: what to show (explain/record.py): for all requests, or for each; None: it is not explained,
                and its list is empty, as that of a request that can't be drawn.

        Raises:
            ParameterError: as from `begin`; or there are not as many options as requests, or they name a token outside
                the vocabulary.
        """
        rows = self._complete_rows(logits, rows)
        each = [options] * rows.num_requests if isinstance(options, ExplainOptions) else options
        check_options(each, rows.num_requests, self.slots.vocab_size)
        check_step(self.slots, logits, rows)
        return explain_rows(self.slots, logits, rows, each)

    def _complete_rows(self, logits: torch.Tensor, rows: Rows) -> Rows:
        """The rows with their positions, after the checks that all backends have in common."""
        check_kind("rows", rows, Rows)
        check_kind("logits", logits, torch.Tensor)
        if logits.dim() != 2 or logits.shape[1] != self.slots.vocab_size:
            raise ParameterError(
                f"logits must have {self.slots.vocab_size} columns, got {tuple(logits.shape)}", "logits"
            )
        if rows.counted is not False:
            check_kind("counted", rows.counted, bool)
            rows = replace(rows, position=self.slots.positions(rows), counted=False)
        return rows

    def backend_for(self, device: torch.device) -> Backend:
        """What samples logits of this device.

        Raises:
            ParameterError: the backend that was asked for does not read them.
        """
        return backend_of(self.slots, name_for(self.backend, device), device)
