"""The rows that `python -m bench.verify` verifies, and how servers verify them on tensors: its baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch

TEMPERATURE, TOP_P = 0.8, 0.95
STRONG = {"0.7": 1.95, "all": 40.0}  # the strong token's lead over the rest of the row together, in logits
NOISE = {"0.7": 0.8, "all": 0.0}  # standard deviation of the drafter's errors, in logits


@dataclass(frozen=True)
class VerifyWork:
    """The tensors of a verification. targets: [R, V]. proposals: float32 [R, V] or None. drafts: of each request."""

    targets: torch.Tensor
    proposals: torch.Tensor | None
    drafts: torch.Tensor

    @property
    def width(self) -> int:
        return self.drafts.shape[1] + 1


def make(requests: int, drafts: int, vocab: int, acceptance: str, dense: bool, dtype: torch.dtype) -> VerifyWork:
    """Rows as a model gives them where drafts are good."""
    rng = torch.Generator().manual_seed(vocab)
    rows = requests * (drafts + 1)
    targets = torch.randn(rows, vocab, generator=rng).mul_(2.5)
    strong = torch.randint(0, vocab, (rows, 1), generator=rng)
    rivals = torch.randint(0, vocab, (rows, 8), generator=rng)
    lead = torch.tensor(STRONG[acceptance]) + 14.0
    targets.scatter_(1, rivals, 13.0 + torch.rand(rows, 8, generator=rng)).scatter_(1, strong, lead.expand(rows, 1))
    targets = targets.to(dtype)
    if not dense:
        return VerifyWork(targets, None, strong.view(requests, drafts + 1)[:, :drafts])
    proposals = torch.empty(rows, vocab)
    for row in range(rows):
        noisy = targets[row].float() + NOISE[acceptance] * torch.randn(vocab, generator=rng)
        proposals[row] = nucleus(noisy[None])[0]
    drawn = torch.multinomial(proposals, 1, generator=rng).view(requests, drafts + 1)
    return VerifyWork(targets, proposals, drawn[:, :drafts])


def nucleus(logits: torch.Tensor) -> torch.Tensor:
    """Temperature, then top-p by sorting the vocabulary: probabilities float32 [R, V]."""
    x, order = (logits.float() / TEMPERATURE).sort(dim=-1)
    outside = x.softmax(-1).cumsum_(-1) <= 1 - TOP_P
    outside[:, -1] = False
    x.masked_fill_(outside, float("-inf"))
    return torch.empty_like(x).scatter_(-1, order, x).softmax(-1)


def in_torch(work: VerifyWork) -> torch.Tensor:
    """Rejection sampling of all requests at once: tokens [N, K + 1], −1 where there is none."""
    n, k = work.drafts.shape
    p = nucleus(work.targets).view(n, k + 1, -1)
    target, bonus = p[:, :k], p[:, k]
    drawn = work.drafts[:, :, None]
    mine = target.gather(2, drawn)[..., 0]
    q = None if work.proposals is None else work.proposals.view(n, k + 1, -1)[:, :k]
    theirs = torch.ones_like(mine) if q is None else q.gather(2, drawn)[..., 0]
    accepted = (torch.rand_like(mine) * theirs < mine).long().cumprod(1)
    rest = target.scatter(2, drawn, 0.0) if q is None else (target - q).clamp_(min=0)
    race = torch.empty(n, 1, rest.shape[2]).exponential_(1)
    recovered = (rest / race).argmax(-1)
    extra = (bonus / torch.empty_like(bonus).exponential_(1)).argmax(-1)
    count = accepted.sum(1)
    follower = torch.where(count == k, extra, recovered.gather(1, count.clamp(max=k - 1)[:, None])[:, 0])
    tokens = torch.where(accepted.bool(), work.drafts, -1)
    return torch.cat([tokens, torch.full((n, 1), -1)], 1).scatter_(1, count[:, None], follower[:, None])
