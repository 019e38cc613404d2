"""How many tokens to draft: a fixed block length, or the one that pays best.

With acceptance rate a, block length g and pass costs measured on this machine, a round emits
``(1 - a^(g+1)) / (1 - a)`` tokens on average and takes one target pass over g + 1 tokens and
g draft passes (Leviathan et al. 2023, section 3.3, with measured instead of assumed costs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from antiphon.costs import PairCosts
from antiphon.request import alone

LONGEST = 16
"""The longest block that is ever chosen automatically."""


class BlockLength(Protocol):
    """Chooses the next round's gamma and hears how the last round went."""

    def next(self) -> int: ...

    def observe(self, drafted: int, accepted: int) -> None: ...


class FixedLength:
    """Always the same gamma."""

    def __init__(self, gamma: int) -> None:
        self.gamma = gamma

    def next(self) -> int:
        return self.gamma

    def observe(self, drafted: int, accepted: int) -> None:
        """A fixed length learns nothing."""


class FittedLength:
    """The gamma with the highest expected speed under the acceptance seen so far.

    The acceptance rate is estimated from accepted and refused draws with exponential
    forgetting. Where plain decoding wins gamma is 0; every `probe` rounds one token is
    drafted all the same, so that the estimate can recover.

    Attributes:
        price: the tokens that one more draft token must be expected to bring to be worth its
            time, at the speed expected now.
        idle: rounds for which plain decoding has won.

    Args:
        costs: measured pass costs of both models.
        memory: draws after which an observation has lost 63 % of its weight.
        probe: rounds between trials while gamma is 0.
        acceptance: the estimate to begin with, worth five draws.
        company: how many requests share the passes now; a crowd makes rows dear, and plain
            decoding win.
    """

    def __init__(
        self,
        costs: PairCosts,
        memory: float = 64.0,
        probe: int = 16,
        acceptance: float = 0.8,
        company: Callable[[], int] = alone,
    ) -> None:
        self.costs, self.company = costs, company
        self.forget = 1.0 - 1.0 / memory
        self.probe = probe
        self.accepted, self.judged = 5.0 * acceptance, 5.0
        self.idle = 0
        self.price = 0.0

    @property
    def acceptance(self) -> float:
        return self.accepted / self.judged

    def next(self) -> int:
        crowd = self.company()
        best, gain = best_length(self.acceptance, self.costs, crowd)
        speed = gain / self.costs.target.seconds(crowd)
        longer = self.costs.round_seconds(best + 1, crowd)
        self.price = speed * (longer - self.costs.round_seconds(best, crowd))
        if best == 0:
            self.idle += 1
            # A whole crowd waits for whoever tries.
            return 1 if self.idle % (self.probe * crowd) == 0 else 0
        self.idle = 0
        return best

    def observe(self, drafted: int, accepted: int) -> None:
        judged = min(drafted, accepted + 1)
        keep = self.forget**judged
        self.accepted = self.accepted * keep + accepted
        self.judged = self.judged * keep + judged


def expected_tokens(acceptance: float, gamma: int) -> float:
    """Mean tokens a round emits, the bonus or correction included."""
    if acceptance >= 1.0:
        return gamma + 1.0
    return float((1.0 - acceptance ** (gamma + 1)) / (1.0 - acceptance))


def expected_speed(acceptance: float, gamma: int, costs: PairCosts, crowd: int = 1) -> float:
    """Expected tokens per second and request of rounds with this block length."""
    return expected_tokens(acceptance, gamma) / costs.round_seconds(gamma, crowd)


def best_length(acceptance: float, costs: PairCosts, crowd: int = 1) -> tuple[int, float]:
    """The block length that is expected to be fastest, and its speed-up over plain decoding.

    Args:
        crowd: requests that share the passes.
    """
    best = max(range(LONGEST + 1), key=lambda g: expected_speed(acceptance, g, costs, crowd))
    gain = expected_speed(acceptance, best, costs, crowd) * costs.target.seconds(crowd)
    return best, gain
