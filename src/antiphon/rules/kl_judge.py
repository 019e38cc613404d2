"""KL judge: a training-free stand-in for a learned judge (arXiv 2601.04766)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.evidence import Evidence, divergence


@dataclass(frozen=True, slots=True)
class KLJudge:
    """Rescue x where ``KL(q || p) <= kl``, unless the target is sure of its first choice.

    Attributes:
        kl: nats; a negative number rescues nothing.
        sure: where the target's largest probability exceeds this, the base rule alone decides.
    """

    GUARANTEE: ClassVar[str] = "none; kl < 0 is the base rule"
    SOURCE: ClassVar[str] = "arXiv 2601.04766"

    kl: float = 0.5
    sure: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.sure <= 1:
            raise UserError(f"kl-judge sure is {self.sure!r}: give a probability, 0 to 1")
        if self.kl != self.kl:
            raise UserError("kl-judge kl is not a number: give one")

    def keep(self, evidence: Evidence) -> torch.Tensor:
        p = evidence.P[: len(evidence)]
        return (p.amax(-1) <= self.sure) & (divergence(evidence.Q, p) <= self.kl)
