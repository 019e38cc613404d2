"""A coin in place of a judgement: for measuring speed with weights that mean nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Forced:
    """Accept every token with one and the same chance, whatever the models say; else draw from p.

    Random weights have a true model's speed but not its acceptance: this lends it to them.

    Attributes:
        rate: the chance, 0 to 1.
    """

    GUARANTEE: ClassVar[str] = "none: for speed measurements alone"
    SOURCE: ClassVar[str] = "ours"

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise UserError(f"forced rate is {self.rate!r}: give a chance, 0 to 1")

    def judge(self, evidence: Evidence) -> Acceptance:
        return Acceptance(self.rate * evidence.qx, lambda k: evidence.p[k])
