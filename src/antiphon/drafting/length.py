"""How many tokens to draft: a fixed block length, or the one that pays best.

With acceptance rate a, block length g and pass costs measured on this machine, a round emits
``(1 - a^(g+1)) / (1 - a)`` tokens on average and takes one target pass over g + 1 tokens and
g draft passes (Leviathan et al. 2023, section 3.3, with measured instead of assumed costs).
"""

from __future__ import annotations

from typing import Protocol

from antiphon.costs import PairCosts

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

    Args:
        costs: measured pass costs of both models.
        memory: draws after which an observation has lost 63 % of its weight.
        probe: rounds between trials while gamma is 0.
        acceptance: the estimate to begin with, worth five draws.
    """

    def __init__(
        self,
        costs: PairCosts,
        memory: float = 64.0,
        probe: int = 16,
        acceptance: float = 0.8,
    ) -> None:
        self.costs = costs
        self.forget = 1.0 - 1.0 / memory
        self.probe = probe
        self.accepted, self.judged = 5.0 * acceptance, 5.0
        self.idle = 0

    @property
    def acceptance(self) -> float:
        return self.accepted / self.judged

    def next(self) -> int:
        best, _ = best_length(self.acceptance, self.costs)
        self.idle = self.idle + 1 if best == 0 else 0
        return 1 if best == 0 and self.idle % self.probe == 0 else best

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


def expected_speed(acceptance: float, gamma: int, costs: PairCosts) -> float:
    """Expected tokens per second of rounds with this block length."""
    return expected_tokens(acceptance, gamma) / costs.round_seconds(gamma)


def best_length(acceptance: float, costs: PairCosts) -> tuple[int, float]:
    """The block length that is expected to be fastest, and its speed-up over plain decoding."""
    best = max(range(LONGEST + 1), key=lambda g: expected_speed(acceptance, g, costs))
    return best, expected_speed(acceptance, best, costs) * costs.target.seconds(1)
