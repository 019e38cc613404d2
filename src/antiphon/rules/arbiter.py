"""The arbiter as a rescue: a learned policy says which mismatches the draft wins (CoSpec)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from antiphon.drawing import Randomness
from antiphon.rules.evidence import Evidence

if TYPE_CHECKING:  # See `methods.cospec`.
    from antiphon.arbiter.policy import Policy


@dataclass(frozen=True, slots=True)
class Arbiter:
    """Keep a refused draft token where the policy's chance for it exceeds the threshold.

    Attributes:
        policy: log-odds from features.
        threshold: 1 keeps nothing (the base rule), below 0 keeps everything.
        lots: for rollouts: keep with the policy's chance instead; None: by the threshold.
    """

    GUARANTEE: ClassVar[str] = "none; threshold 1 is the base rule"
    SOURCE: ClassVar[str] = "arXiv 2605.24793"

    policy: Policy
    threshold: float = 0.5
    lots: Randomness | None = None

    @torch.no_grad()
    def keep(self, evidence: Evidence) -> torch.Tensor:
        odds: torch.Tensor = self.policy(self.policy.look(evidence))
        chances = odds.sigmoid()
        if self.lots is None:
            return chances > self.threshold
        drawn = torch.tensor(self.lots.uniforms(len(chances)), device=chances.device)
        return drawn < chances
