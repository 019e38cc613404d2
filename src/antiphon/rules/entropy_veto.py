"""Entropy-aware rejection (EASD): veto where both models are unsure and agree on the candidates.

Su, Zhang and He, "Entropy-Aware Token Rejection for Improving Speculative Decoding" (arXiv
2512.23765; its first version was called "Entropy-Aware Speculative Decoding").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.evidence import Evidence, normalised
from antiphon.sampling import one_hot_argmax


@dataclass(frozen=True, slots=True)
class EntropyVeto:
    """Refuse an accepted x iff H(q) and H(p) exceed their bounds and the top-N sets overlap.

    The target then draws from p with the chance of x multiplied by `penalty`: 0 excludes it, 1
    is a plain new draw. Entropies are of the distributions tokens are drawn from, after
    temperature and truncation. At temperature 0 those are one-hot and no one is ever unsure, so
    entropies and top-N sets are of the beliefs at temperature 1, and what is drawn is the most
    probable token of the penalised belief: with penalty 0 the target's second choice.

    A veto only shortens a block: this can never be faster than its base rule.

    Attributes:
        target, draft: bounds of H(p) and H(q), in nats; above log V no veto can fire.
        top_n: size N of the sets of most probable tokens.
        overlap: least share of the N tokens that both sets hold (rho).
        penalty: factor on the chance of the vetoed token, 0 to 1.
        spare: ours: never veto the target's most probable token. As published the rule drives
            the text away from what both models like best.
    """

    GUARANTEE: ClassVar[str] = "none; bounds above log V are the base rule"
    SOURCE: ClassVar[str] = "arXiv 2512.23765"

    target: float
    draft: float
    top_n: int = 10
    overlap: float = 0.8
    penalty: float = 0.0
    spare: bool = False

    def __post_init__(self) -> None:
        if type(self.top_n) is not int or self.top_n < 1:  # A bool is an int, too.
            raise UserError(f"top_n is {self.top_n!r}: give a whole number >= 1")
        for name in ("overlap", "penalty"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name)!r}: give a share, 0 to 1")
        for name in ("target", "draft"):
            if getattr(self, name) != getattr(self, name):
                raise UserError(f"the {name}'s entropy bound is not a number: give one")

    def refuse(self, evidence: Evidence) -> torch.Tensor:
        unsure = (evidence.target_entropy > self.target) & (evidence.draft_entropy > self.draft)
        if self.spare:
            unsure = unsure & ~evidence.is_top
        if self.overlap <= 0 or not bool(unsure.any()):
            return unsure
        return unsure & (self._shared(evidence) >= self.overlap)

    def redraw(self, evidence: Evidence, k: int) -> torch.Tensor:
        x = int(evidence.tokens[k])
        weights = evidence.P[k].clone()
        weights[x] *= self.penalty
        left = normalised(weights, otherwise=evidence.p[k])
        return one_hot_argmax(left[None])[0] if evidence.greedy else left

    def _shared(self, evidence: Evidence) -> torch.Tensor:
        """Share of the top-N tokens that both models have, ``[K]``.

        Where truncation leaves fewer, those that are left count: of the longer list.
        """
        n = min(self.top_n, evidence.Q.shape[-1])
        ours = evidence.P[: len(evidence)].topk(n, dim=-1)
        theirs = evidence.Q.topk(n, dim=-1)
        mine, others = ours.values > 0, theirs.values > 0
        same = ours.indices[:, :, None] == theirs.indices[:, None, :]
        both = (same & mine[:, :, None] & others[:, None, :]).any(-1).sum(-1)
        return both / torch.maximum(mine.sum(-1), others.sum(-1))
