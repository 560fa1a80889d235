"""The tokens of requests in vLLM's V2 runner, which stay on the device. Only `read_text` waits for the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from tailrace.kernels.transfer import there


class TokenRows(NamedTuple):
    """The tokens of R requests.

    - tokens: int64 [R, L]. An id without a logit, such as an image's, is `vocab`. Beyond a request's tokens stands
      anything.
    - lengths, prompts: int64 [R], the numbers of all tokens and of the prompt's.
    - vocab: the number of logits.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    prompts: torch.Tensor
    vocab: int

    @property
    def places(self) -> torch.Tensor:
        """Return int64 [L], the places of the tokens."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)

    def read_text(self, row: int) -> tuple[list[int], list[int]]:
        """Return the ids of a row's prompt and output, without those that have no logit. It waits for the device."""
        ids, first = self.tokens[row, : int(self.lengths[row])].tolist(), int(self.prompts[row])
        prompt, output = ([id for id in part if id < self.vocab] for part in (ids[:first], ids[first:]))
        return prompt, output

    def flag_prompts(self) -> torch.Tensor:
        """Return bool [R, L]: the places of the prompts."""
        return (self.places < self.prompts[:, None]) & (self.places < self.lengths[:, None])

    def flag_outputs(self) -> torch.Tensor:
        """Return bool [R, L]: the places of the outputs."""
        return (self.places >= self.prompts[:, None]) & (self.places < self.lengths[:, None])

    def flag_tokens(self, where: torch.Tensor) -> torch.Tensor:
        """Return bool [R, vocab]: the ids that stand at one of these places. where: bool [R, L]."""
        found = torch.zeros((len(self.tokens), self.vocab + 1), dtype=torch.bool, device=self.tokens.device)
        return found.scatter_(1, self.tokens.where(where, self.vocab), True)[:, : self.vocab]

    def count_tokens(self, where: torch.Tensor) -> torch.Tensor:
        """Return int32 [R, vocab]: at how many of these places each id stands. where: bool [R, L]."""
        found = torch.zeros((len(self.tokens), self.vocab + 1), dtype=torch.int32, device=self.tokens.device)
        return found.scatter_add_(1, self.tokens.where(where, self.vocab), where.int())[:, : self.vocab]

    def end_with(self, owners: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return bool [P]: whether the tokens of the request owners[p] end with ids[p].

        Args:
            owners: int64 [P], rows. ids: int64 [P, W], padded at the left with −1, which every token equals.
        """
        at = self.lengths[owners, None] - torch.arange(ids.shape[1], 0, -1, device=ids.device)
        last = self.tokens[owners].gather(1, at.clamp(min=0))
        return ((ids < 0) | ((at >= 0) & (last == ids))).all(1)


def read_tokens(states: Any, indices: Sequence[int], longest: int, vocab: int, device: torch.device) -> TokenRows:
    """Return the tokens of the requests with these indices. states: vLLM's states of requests. longest: an upper bound
    of the numbers of their tokens."""
    index = there(torch.tensor(indices), device)
    tokens = states.all_token_ids.gpu[:, :longest].index_select(0, index).long()  # perhaps from the host's memory
    tokens = tokens.where((tokens >= 0) & (tokens < vocab), vocab).contiguous()
    # a prompt that is computed in parts has more tokens, and draws none yet
    lengths, prompts = (getattr(states, name).gpu.index_select(0, index).long() for name in ("total_len", "prompt_len"))
    return TokenRows(tokens, lengths.clamp(max=tokens.shape[1]), prompts, vocab)


class DraftedRows(NamedTuple):
    """R rows of logits of a step with drafts, of all its rows.

    - rows: int64 [R], their places. pos: int64, of all rows: the position of the token that the model read there. ids,
      local: that token, and the number of drafts before it in its request.
    - width: the most rows of a request.
    """

    rows: torch.Tensor
    pos: torch.Tensor
    ids: torch.Tensor
    local: torch.Tensor
    width: int


def add_drafts(read: TokenRows, drafted: DraftedRows) -> TokenRows:
    """Return the tokens with the drafts up to each row."""
    tokens, pos, local = read.tokens.clone(), drafted.pos[drafted.rows], drafted.local[drafted.rows]
    ids = drafted.ids.long()
    ids = ids.where((ids >= 0) & (ids < read.vocab), read.vocab)
    for back in range(drafted.width):
        place = (pos - back).clamp(min=0, max=tokens.shape[1] - 1)[:, None]
        earlier = ids[(drafted.rows - back).clamp(min=0)][:, None]
        tokens.scatter_(1, place, earlier.where((local >= back)[:, None], tokens.gather(1, place)))
    return read._replace(tokens=tokens, lengths=(pos + 1).clamp(max=tokens.shape[1]))


def make_column(values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the values as [R, 1] on the device."""
    return there(torch.tensor(values, dtype=dtype), device)[:, None]


@lru_cache(maxsize=64)
def make_id_table(ids: tuple[int, ...], vocab: int, device: torch.device) -> torch.Tensor:
    """Return bool [vocab + 1]: whether an id is among these. Requests of the same ids share the table."""
    table = torch.zeros(vocab + 1, dtype=torch.bool)
    table[list(ids)] = True
    return there(table, device)
