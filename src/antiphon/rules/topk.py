"""Top-k acceptance: the draft may say whatever the target ranks highly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.base import Acceptance
from antiphon.rules.evidence import Evidence, at
from antiphon.rules.typical import always


@dataclass(frozen=True, slots=True)
class TopK:
    """Accept x iff it is among the target's k most probable tokens; after a refusal draw from p.

    Ties with the k-th token count as among them, tokens of probability 0 never. As a rescue it
    keeps what the base refused. At temperature 0, k = 1 is the exact rule.

    Attributes:
        k: >= 1.
        delta: x must also have at least this share of the top probability (TensorRT-LLM's
            relaxed acceptance); 0 asks nothing.
    """

    GUARANTEE: ClassVar[str] = "none; k = 1 at temperature 0 is exact"
    SOURCE: ClassVar[str] = "AutoJudge's baseline, arXiv 2504.20039"

    k: int = 2
    delta: float = 0.0

    def __post_init__(self) -> None:
        if type(self.k) is not int or self.k < 1:  # A bool is an int, too.
            raise UserError(f"topk k is {self.k!r}: give a whole number >= 1")
        if not 0 <= self.delta <= 1:
            raise UserError(f"topk delta is {self.delta!r}: give a share, 0 to 1")

    def keep(self, evidence: Evidence) -> torch.Tensor:
        p = evidence.P[: len(evidence)]
        top = p.topk(min(self.k, p.shape[-1]), dim=-1).values
        x = at(p, evidence.tokens)
        return (x > 0) & (x >= top[:, -1]) & (x >= self.delta * top[:, 0])

    def judge(self, evidence: Evidence) -> Acceptance:
        return Acceptance(always(self.keep(evidence)), lambda k: evidence.p[k])
