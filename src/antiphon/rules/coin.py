"""A coin as a rescue: what keeping as many tokens is worth when nobody looks which ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.drawing import derived_seed
from antiphon.errors import UserError
from antiphon.rules.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Coin:
    """Keep a refused token with one and the same chance: the baseline of every other rescue.

    The coin is tossed by the block's tokens, up to the one in question: the same text falls the
    same way, whatever else is decoded beside it.

    Attributes:
        rate: the chance, 0 to 1.
        seed: another seed, other coins.
    """

    GUARANTEE: ClassVar[str] = "none; rate 0 is the base rule"
    SOURCE: ClassVar[str] = "ours"

    rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise UserError(f"coin rate is {self.rate!r}: give a chance, 0 to 1")

    def keep(self, evidence: Evidence) -> torch.Tensor:
        tokens = evidence.tokens.tolist()
        lots = [derived_seed(self.seed, tokens[: k + 1]) / 2**56 for k in range(len(tokens))]
        return torch.tensor(lots, device=evidence.tokens.device) < self.rate
