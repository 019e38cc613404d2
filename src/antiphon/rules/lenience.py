"""Lenience: the exact test with a looser bound (Leviathan et al. 2023, appendix A.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.evidence import Evidence
from antiphon.rules.exact import residual


@dataclass(frozen=True, slots=True)
class Lenience:
    """Accept x if ``u < p(x) / (l q(x))``; after a refusal draw from ``max(p - q, 0)``.

    A token is at most 1 / l times as probable as under the target, up to its share of the
    residual. At temperature 0 it is the exact rule.

    Attributes:
        l: 0 < l <= 1; 1 is the exact rule.
    """

    GUARANTEE: ClassVar[str] = "none; l = 1 is exact"
    SOURCE: ClassVar[str] = "arXiv 2211.17192, A.5"

    l: float = 0.5  # noqa: E741 - the paper's letter

    def __post_init__(self) -> None:
        if not 0 < self.l <= 1:
            raise UserError(f"lenience l is {self.l!r}: give a number above 0, at most 1")

    def judge(self, evidence: Evidence) -> Acceptance:
        return Acceptance(evidence.px / self.l, lambda k: residual(evidence.p[k], evidence.q[k]))
