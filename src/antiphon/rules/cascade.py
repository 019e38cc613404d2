"""Speculative cascades: a deferral rule says whose distribution counts (arXiv 2405.19261)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.ensemble import against
from antiphon.rules.evidence import Evidence
from antiphon.rules.fuzzy import total_variation

KINDS = ("chow", "diff", "opt")


@dataclass(frozen=True, slots=True)
class Cascade:
    """Exact sampling from p where the draft defers to the target, from q where it does not.

    It defers where ``max q < 1 - a`` (chow), ``max q < max p - a`` (diff) or
    ``max q < max p - a TV(p, q)`` (opt). A token drafted where it does not defer always stands.

    Attributes:
        a: the larger, the more the draft is trusted; below -1 chow and diff are the exact rule.
        kind: "chow", "diff" or "opt".
    """

    GUARANTEE: ClassVar[str] = "samples the cascade; a < -1 is exact (chow, diff)"
    SOURCE: ClassVar[str] = "arXiv 2405.19261"

    a: float = 0.2
    kind: str = "opt"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"cascade kind is {self.kind!r}: choose {', '.join(KINDS)}")
        if self.a != self.a:
            raise UserError("cascade a is not a number: give one")

    def judge(self, evidence: Evidence) -> Acceptance:
        p = evidence.p[: len(evidence)]
        chosen = torch.where(self.defers(evidence)[:, None], p, evidence.q)
        return against(chosen, evidence)

    def defers(self, evidence: Evidence) -> torch.Tensor:
        """Positions ``[K]`` where the target's distribution counts."""
        P, Q = evidence.P[: len(evidence)], evidence.Q
        sure = Q.amax(-1)
        if self.kind == "chow":
            return sure < 1 - self.a
        if self.kind == "diff":
            return sure < P.amax(-1) - self.a
        return sure < P.amax(-1) - self.a * total_variation(P, Q)
