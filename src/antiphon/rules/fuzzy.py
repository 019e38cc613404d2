"""Fuzzy speculative decoding: accept where the distributions are close (arXiv 2502.20704)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.evidence import Evidence, divergence
from antiphon.rules.typical import always


def jensen_shannon(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """JS(p, q) of each row, in nats, at most log 2."""
    middle = (p + q) / 2
    return (divergence(p, middle) + divergence(q, middle)) / 2


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """TV(p, q) of each row, at most 1."""
    return (p - q).abs().sum(-1) / 2


def kullback_leibler(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(q || p) of each row, draft from target, in nats: as the authors' code takes it."""
    return divergence(q, p)


DIVERGENCES = {"js": jensen_shannon, "tv": total_variation, "kl": kullback_leibler}


@dataclass(frozen=True, slots=True)
class Fuzzy:
    """Accept whatever was drafted where ``D(p, q) <= threshold``; else draw from p.

    As a rescue ("reduced" fuzzy decoding) it is asked for refused tokens alone. A negative
    threshold accepts nothing: as a rescue that is the base rule itself. At temperature 0 the
    models' beliefs are compared.

    Attributes:
        threshold: in nats (js, kl) or as a share (tv).
        div: "js", "kl" or "tv".
    """

    GUARANTEE: ClassVar[str] = "none"
    SOURCE: ClassVar[str] = "arXiv 2502.20704"

    threshold: float = 0.1
    div: str = "js"

    def __post_init__(self) -> None:
        if self.div not in DIVERGENCES:
            raise UserError(f"fuzzy div is {self.div!r}: choose {', '.join(DIVERGENCES)}")
        if self.threshold != self.threshold:
            raise UserError("fuzzy threshold is not a number: give one")

    def keep(self, evidence: Evidence) -> torch.Tensor:
        return DIVERGENCES[self.div](evidence.P[: len(evidence)], evidence.Q) <= self.threshold

    def judge(self, evidence: Evidence) -> Acceptance:
        return Acceptance(always(self.keep(evidence)), lambda k: evidence.p[k])
