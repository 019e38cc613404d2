"""FLy: a mismatch that the draft's next tokens survive was no mistake (arXiv 2511.22972)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.errors import UserError
from antiphon.rules.evidence import Evidence, entropy


@dataclass(frozen=True, slots=True)
class FLy:
    """Rescue x where the target is unsure and then agrees with the draft for a while.

    Unsure: the entropy of the target's three most probable tokens, as a distribution of their
    own, is at least `theta`. A while: the next ``window - 1`` drafts are each the target's most
    probable token, all of them inside the block. The last ``window - 1`` positions of a block
    are therefore strict; a window above K is the base rule.

    The paper works at temperature 0. Above it, the same look-ahead is used here: it asks for the
    most probable token, so no lots are drawn for positions that may never be reached.

    Attributes:
        theta: nats.
        window: positions, the mismatch included; 1 asks for no agreement after it.
    """

    GUARANTEE: ClassVar[str] = "none; a window longer than the block is the base rule"
    SOURCE: ClassVar[str] = "arXiv 2511.22972"

    theta: float = 0.3
    window: int = 4

    def __post_init__(self) -> None:
        if type(self.window) is not int or self.window < 1:  # A bool is an int, too.
            raise UserError(f"fly window is {self.window!r}: give a whole number >= 1")
        if self.theta != self.theta:
            raise UserError("fly theta is not a number: give one")

    def keep(self, evidence: Evidence) -> torch.Tensor:
        p = evidence.P[: len(evidence)]
        top = p.topk(min(3, p.shape[-1]), dim=-1).values
        unsure = entropy(top / top.sum(-1, keepdim=True)) >= self.theta
        agreed = evidence.is_top
        kept = torch.zeros_like(agreed)
        for k in range(len(evidence) - self.window + 1):
            kept[k] = bool(agreed[k + 1 : k + self.window].all())
        return kept & unsure
