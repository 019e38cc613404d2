"""Mentored decoding: as many acceptances as a bound on the divergence allows (2609.30474)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.evidence import Evidence, divergence, normalised
from antiphon.rules.exact import residual

STEPS = 20
"""Bisections of alpha: its error is below 1e-6."""


@dataclass(frozen=True, slots=True)
class Mentored:
    """Accept x if ``u < p(x) / (alpha q(x))``; else draw from ``max(p / beta - q, 0)``.

    What comes out is ``min(q, p / alpha)`` or ``p / beta``, whichever is larger: alpha <= 1 is the
    smallest for which KL(p || out) stays at or below the bound, beta makes the sum 1. At
    temperature 0 it would have to draw lots, so there it is the exact rule.

    Attributes:
        bound: D, nats a token, >= 0; 0 is the exact rule.
    """

    GUARANTEE: ClassVar[str] = "KL(target || output) <= D a token; D = 0 is exact"
    SOURCE: ClassVar[str] = "arXiv 2609.30474; vivien000/mentored_decoding"

    bound: float = 0.1

    def __post_init__(self) -> None:
        if not self.bound >= 0:
            raise UserError(f"mentored bound is {self.bound!r}: give a number >= 0")

    def judge(self, evidence: Evidence) -> Acceptance:
        p, q = evidence.p[: len(evidence)], evidence.q
        if self.bound == 0 or evidence.greedy:
            return Acceptance(evidence.px, lambda k: residual(p[k], q[k]))
        alpha, beta = zip(*(self.solve(p[k], q[k]) for k in range(len(evidence))), strict=True)
        score = evidence.px / torch.tensor(alpha, device=p.device)
        return Acceptance(
            score,
            lambda k: normalised((p[k] / beta[k] - q[k]).clamp_min_(0), otherwise=p[k]),
        )

    def solve(self, p: torch.Tensor, q: torch.Tensor) -> tuple[float, float]:
        """Alpha and beta for one position, ``p`` and ``q`` ``[V]``."""
        # Tokens that neither model would say carry no mass, and cost time.
        alive = (p > _DUST) | (q > _DUST)
        p, q = p[alive].double(), q[alive].double()
        if float(divergence(p, q)) <= self.bound:
            return _DUST, 1.0  # Everything may be accepted: the output is q itself.
        low, high = 0.0, 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            if float(divergence(p, output(p, q, middle, _beta(p, q, middle)))) <= self.bound:
                high = middle
            else:
                low = middle
        return high, _beta(p, q, high)


def output(p: torch.Tensor, q: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    """What is written at one position, ``[V]``."""
    return torch.maximum(torch.minimum(q, p / alpha), p / beta)


def _beta(p: torch.Tensor, q: torch.Tensor, alpha: float) -> float:
    """The beta whose residual ``max(p / beta - q, 0)`` has the mass alpha refuses."""
    refused = float((q - p / alpha).clamp_min(0).sum())
    if refused <= 0:
        return float("inf")
    ratio, order = (p / q.clamp_min(_DUST)).sort(descending=True)
    P, Q = p[order].cumsum(0), q[order].cumsum(0)
    candidates = P / (refused + Q)
    # With the first j tokens raised, beta is the j-th candidate; it must lie below their ratios
    # and above the next one's.
    below = torch.cat([ratio[1:], ratio.new_zeros(1)])
    fits = (candidates <= ratio) & (candidates >= below)
    place = int(fits.int().argmax()) if bool(fits.any()) else len(p) - 1
    return float(candidates[place])


_DUST = 1e-9
