"""Typical acceptance: good enough for a target that is unsure (Medusa, arXiv 2401.10774)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Typical:
    """Accept x iff ``p(x) > min(eps, delta exp(-H(p)))``; after a refusal draw from p.

    At temperature 0 it is the exact rule, as in Medusa. It has no exact setting above it.

    Attributes:
        eps: the bar where the target is sure.
        delta: scales the bar down where it is not.
    """

    GUARANTEE: ClassVar[str] = "none"
    SOURCE: ClassVar[str] = "arXiv 2401.10774, section 2.3.1"

    eps: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        for name in ("eps", "delta"):
            if not getattr(self, name) >= 0:
                raise UserError(f"typical {name} is {getattr(self, name)!r}: give a number >= 0")

    def judge(self, evidence: Evidence) -> Acceptance:
        if evidence.greedy:
            return Acceptance(evidence.px, lambda k: evidence.p[k])
        bar = (self.delta * (-evidence.target_entropy).exp()).clamp_max(self.eps)
        return Acceptance(always(evidence.px > bar), lambda k: evidence.p[k])


def always(accepted: torch.Tensor) -> torch.Tensor:
    """The score of a rule that draws no lots: ``u * q`` is below 1 and never below 0."""
    return accepted.float()
