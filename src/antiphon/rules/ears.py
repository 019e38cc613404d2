"""EARS: tolerance that grows with the target's uncertainty (arXiv 2512.13194)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.evidence import Evidence
from antiphon.rules.exact import residual


@dataclass(frozen=True, slots=True)
class EARS:
    """Accept x if ``u < p(x) / q(x) + a (1 - max p)``; the residual is the exact rule's.

    At temperature 0 it is the exact rule, because max p is 1.

    Attributes:
        a: tolerance, >= 0; 0 is the exact rule.
    """

    GUARANTEE: ClassVar[str] = "none; a = 0 is exact"
    SOURCE: ClassVar[str] = "arXiv 2512.13194"

    a: float = 0.3

    def __post_init__(self) -> None:
        if not self.a >= 0:
            raise UserError(f"ears a is {self.a!r}: give a number >= 0")

    def judge(self, evidence: Evidence) -> Acceptance:
        doubt = 1 - evidence.p[: len(evidence)].amax(-1)
        return Acceptance(
            evidence.px + self.a * doubt * evidence.qx,
            lambda k: residual(evidence.p[k], evidence.q[k]),
        )
