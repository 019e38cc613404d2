"""When another draft pass pays: while what was drafted so far is likely enough to stand.

A draft token is worth its time if the chance that it stands exceeds the tokens that the same time
would bring otherwise. That chance is the product of those of the tokens before it and its own, and
a draft mostly knows how sure it is. Nothing here looks at a token before it is drafted: whether
another one is drafted depends on those before it alone, so the rules stay as exact as they were.
"""

from __future__ import annotations

from antiphon.drafting.length import LONGEST, FittedLength


class Pace:
    """A `BlockLength` that stops a draft model's block where the next token would not pay.

    The draft's largest probability c is taken for the chance that its token stands; how far that
    is off is learnt from what becomes of the tokens: ``1 - r (1 - c)``, where r is the number of
    refused tokens over the number that c had led to expect.

    Args:
        length: knows the passes' costs, and the acceptance so far.
        memory: tokens after which an observation has lost 63 % of its weight.

    Attributes:
        sure: c of the block's tokens, in order; the drafter notes them.
    """

    def __init__(self, length: FittedLength, memory: float = 64.0) -> None:
        self.length = length
        self.forget = 1.0 - 1.0 / memory
        self.refused, self.doubted = 1.0, 1.0
        self.sure: list[float] = []

    def next(self) -> int:
        """As many tokens as there may be, where drafting pays at all.

        In company no more than pay on average: whoever drafts on makes all others wait.
        """
        self.sure = []
        gamma = self.length.next()
        return gamma if self.length.idle or self.length.company() > 1 else LONGEST

    def chance(self, confidence: float) -> float:
        """The chance that a token stands of which the draft is that sure."""
        ratio = self.refused / self.doubted
        return min(max(1.0 - ratio * (1.0 - confidence), 0.0), 1.0)

    def pays(self, chance: float) -> bool:
        """Whether one more token is worth its passes, where all before it stand with `chance`."""
        return chance * self.length.acceptance >= self.length.price

    def observe(self, drafted: int, accepted: int) -> None:
        """Hear how many of the block's first tokens stand."""
        self.length.observe(drafted, accepted)
        judged = self.sure[: accepted + 1]
        if judged:
            keep = self.forget ** len(judged)
            self.refused = self.refused * keep + (len(judged) - accepted)
            self.doubted = self.doubted * keep + sum(1.0 - each for each in judged)
