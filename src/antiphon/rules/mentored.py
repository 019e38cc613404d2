"""Mentored decoding: as many acceptances as a bound on the divergence allows (2609.30474)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from antiphon.drawing import Floats
from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.evidence import Evidence, normalised
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
        ranked = Ranked(p[alive].double().cpu().numpy(), q[alive].double().cpu().numpy())
        if ranked.divergence <= self.bound:
            return _DUST, 1.0  # Everything may be accepted: the output is q itself.
        low, high = 0.0, 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            if ranked.spent(middle) <= self.bound:
                high = middle
            else:
                low = middle
        return high, ranked.beta(high)


class Ranked:
    """One position's tokens by falling p / q: sums over stretches of them take no time.

    For any alpha and beta the output is p / beta on the first tokens (p / q above beta), q on
    those in the middle and p / alpha on the last (p / q below alpha).

    Args:
        p, q: float64 ``[V]``, without tokens that have no mass in either.
    """

    def __init__(self, p: Floats, q: Floats) -> None:
        q = np.maximum(q, _DUST)
        ratio = p / q
        order = np.argsort(-ratio)
        self.ratio = ratio[order]
        self.p, self.q = (np.cumsum(each[order]) for each in (p, q))
        parts = p * np.log(np.maximum(ratio, _TINY))
        self.parts = np.cumsum(parts[order])
        # What raising all tokens up to each one's ratio adds; it grows along the ranks.
        self.raised = self.p / np.maximum(self.ratio, _TINY) - self.q

    @property
    def divergence(self) -> float:
        """KL(p || q), in nats."""
        return float(self.parts[-1])

    def beta(self, alpha: float) -> float:
        """The beta whose residual ``max(p / beta - q, 0)`` has the mass alpha refuses."""
        return self._raise(alpha)[1]

    def spent(self, alpha: float) -> float:
        """KL(p || output), in nats."""
        first, beta = self._raise(alpha)
        last = self._last(alpha)
        begun = self.parts[first - 1] if first else 0.0
        spent = self.parts[last - 1] - begun + (self.p[-1] - self.p[last - 1]) * np.log(alpha)
        return float(spent + (self.p[first - 1] * np.log(beta) if first else 0.0))

    def _last(self, alpha: float) -> int:
        """How many tokens are not lowered by alpha: one at least."""
        return max(int(np.searchsorted(-self.ratio, -alpha, side="right")), 1)

    def _raise(self, alpha: float) -> tuple[int, float]:
        """How many tokens are raised, and beta."""
        last = self._last(alpha)
        lowered = (self.p[-1] - self.p[last - 1]) / alpha
        refused = float(self.q[-1] - self.q[last - 1] - lowered)
        if refused <= 0:
            return 0, float("inf")
        first = max(int(np.searchsorted(self.raised, refused, side="right")), 1)
        return first, float(self.p[first - 1] / (refused + self.q[first - 1]))


_DUST = 1e-9
_TINY = 1e-300
