"""Static ensemble: judge the draft against a mixture of both models (DIVERSED, 2604.07622)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.evidence import Evidence, at
from antiphon.rules.exact import residual
from antiphon.sampling import one_hot_argmax


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Exact sampling from ``m = w q + (1 - w) p`` at every drafted position.

    At temperature 0 it takes the most probable token of the mixture of beliefs. The bonus token
    is the target's own: the draft has no opinion there yet.

    Attributes:
        w: the draft's weight, 0 to 1; 0 is the exact rule.
    """

    GUARANTEE: ClassVar[str] = "samples the mixture; w = 0 is exact"
    SOURCE: ClassVar[str] = "arXiv 2604.07622"

    w: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.w <= 1:
            raise UserError(f"ensemble w is {self.w!r}: give a weight, 0 to 1")

    def judge(self, evidence: Evidence) -> Acceptance:
        mixed = self.w * evidence.Q + (1 - self.w) * evidence.P[: len(evidence)]
        return against(one_hot_argmax(mixed) if evidence.greedy else mixed, evidence)


def against(m: torch.Tensor, evidence: Evidence) -> Acceptance:
    """The exact rule with ``m [K, V]`` in the target's place."""
    return Acceptance(at(m, evidence.tokens), lambda k: residual(m[k], evidence.q[k]))
