"""Cactus: each accepted token's probability is raised by a bounded amount (arXiv 2604.04987)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.evidence import Evidence, normalised


@dataclass(frozen=True, slots=True)
class Cactus:
    """Judge x against ``h = min(1, p(x) + sqrt(2 delta p(x) (1 - p(x))))`` in place of p(x).

    After a refusal the target draws from ``max(g - q, 0)``, where g holds h at x and the other
    tokens scaled to fill 1 - h. The divergence a token costs is bounded by about delta nats.
    At temperature 0 it is the exact rule.

    Attributes:
        delta: nats, >= 0; 0 is the exact rule.
    """

    GUARANTEE: ClassVar[str] = "bounded divergence a token; delta = 0 is exact"
    SOURCE: ClassVar[str] = "arXiv 2604.04987"

    delta: float = 0.5

    def __post_init__(self) -> None:
        if not self.delta >= 0:
            raise UserError(f"cactus delta is {self.delta!r}: give a number >= 0")

    def judge(self, evidence: Evidence) -> Acceptance:
        px = evidence.px
        h = (px + (2 * self.delta * px * (1 - px)).clamp_min(0).sqrt()).clamp_max(1.0)

        def left(k: int) -> torch.Tensor:
            p, x = evidence.p[k], int(evidence.tokens[k])
            others = float(1 - px[k])
            g = p * (float(1 - h[k]) / others) if others > 0 else p.clone()
            g[x] = h[k]
            return normalised((g - evidence.q[k]).clamp_min_(0), otherwise=p)

        return Acceptance(h, left)
