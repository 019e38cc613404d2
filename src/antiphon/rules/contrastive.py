"""Speculative contrastive decoding: the target minus what a weak model thinks (2311.08981)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.ensemble import against
from antiphon.rules.evidence import Evidence
from antiphon.sampling import one_hot_argmax


@dataclass(frozen=True, slots=True)
class Contrastive:
    """Exact sampling from ``s ~ p^(1 + b) / q^b`` on the tokens with ``p >= a max p``.

    At temperature 0 it takes the most probable token of s made from the beliefs. The bonus token
    is the target's own: the draft has no opinion there yet.

    Attributes:
        b: strength of the contrast, >= 0.
        a: plausibility, 0 to 1: share of the top probability that a token needs. With b = 0 and
            a = 0 it is the exact rule.
    """

    GUARANTEE: ClassVar[str] = "samples the contrast; b = 0 and a = 0 is exact"
    SOURCE: ClassVar[str] = "arXiv 2311.08981"

    b: float = 0.5
    a: float = 0.1

    def __post_init__(self) -> None:
        if not self.b >= 0:
            raise UserError(f"contrastive b is {self.b!r}: give a number >= 0")
        if not 0 <= self.a <= 1:
            raise UserError(f"contrastive a is {self.a!r}: give a share, 0 to 1")

    def judge(self, evidence: Evidence) -> Acceptance:
        s = self.contrast(evidence.P[: len(evidence)], evidence.Q)
        return against(one_hot_argmax(s) if evidence.greedy else s, evidence)

    def contrast(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """The distributions s, ``[K, V]``."""
        if self.b == 0 and self.a == 0:
            return p
        # A token the draft gives no chance at all would have infinite contrast: q has a floor.
        scores = (1 + self.b) * p.log() - self.b * q.clamp_min(_FLOOR).log()
        plausible = (p >= self.a * p.amax(-1, keepdim=True)) & (p > 0)
        return scores.masked_fill(~plausible, -math.inf).softmax(-1)


_FLOOR = 1e-6
