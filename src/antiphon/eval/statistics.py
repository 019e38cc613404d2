"""Intervals and tests: what a difference is worth.

Outcomes are matrices ``[problems, seeds]``: answers to one problem resemble each other, so
every interval resamples, or counts, problems, not answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from antiphon.errors import UserError

RESAMPLES = 4000
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


def accuracy(right: Matrix) -> Estimate:
    """Share of right answers with a Wilson interval (Wilson 1927).

    Args:
        right: ``[problems, seeds]``, 1 or 0. With several seeds the interval counts as many
            independent answers as would vary as the problems' means do (the design effect).
    """
    p, n = float(right.mean()), float(right.size)
    if right.shape[1] > 1 and len(right) > 1 and 0 < p < 1:
        variance = float(right.mean(1).var(ddof=1)) / len(right)
        n = min(n, max(len(right), p * (1 - p) / variance)) if variance else len(right)
    return Estimate(p, *wilson(p, n))


def wilson(p: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share `p` of `n` answers; `n` may be an effective number."""
    z = NormalDist().inv_cdf(0.975)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def difference(right: Matrix, reference: Matrix) -> Estimate:
    """Difference of two accuracies on the same problems, with a paired bootstrap interval.

    Problems are drawn with replacement, each with the answers of all its seeds: that covers the
    chance in the choice of problems and in the sampling alike. Both matrices ``[problems,
    seeds]`` have the same problems in the same order; their numbers of seeds may differ.
    """
    return mean(right.mean(1) - reference.mean(1))


def mcnemar(right: Matrix, reference: Matrix) -> float:
    """McNemar's exact test (1947): the p-value of "neither is better".

    Counts the pairs of answers, equal problem and seed, of which one is right. Matrices have
    one shape.
    """
    only = int(((right == 1) & (reference == 0)).sum())
    other = int(((right == 0) & (reference == 1)).sum())
    if only + other == 0:
        return 1.0
    return float(_scipy().binomtest(only, only + other, 0.5).pvalue)


def discordance(right: Matrix, reference: Matrix) -> float:
    """Share of pairs of answers of which just one is right."""
    return float((right != reference).mean())


def ratio(tokens: Matrix, seconds: Matrix, tokens0: Matrix, seconds0: Matrix) -> Estimate:
    """Speed over a reference's speed, in tokens per second, with a bootstrap over problems.

    Args:
        tokens, seconds: ``[problems]``, of the method.
        tokens0, seconds0: ``[problems]``, of the reference, on the same problems.
    """
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(tokens), (RESAMPLES, len(tokens)))

    def speed(t: Matrix, s: Matrix) -> Any:
        return t.sum(-1) / np.maximum(s.sum(-1), 1e-12)

    draws = speed(tokens[rows], seconds[rows]) / speed(tokens0[rows], seconds0[rows])
    low, high = np.percentile(draws, [2.5, 97.5])
    value = float(speed(tokens, seconds) / speed(tokens0, seconds0))
    return Estimate(value, float(low), float(high))


def mean(values: Matrix) -> Estimate:
    """Mean over problems with a bootstrap interval."""
    rng = np.random.default_rng(0)
    draws = values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(-1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(float(values.mean()), float(low), float(high))


def problems_needed(gain: float, discordant: float, power: float = 0.8) -> int:
    """Problems on which McNemar's test at 5 % sees a gain with the given power.

    Connor 1987 (Biometrics 43): the normal approximation for paired shares.

    Args:
        gain: difference of the accuracies, such as 0.03.
        discordant: share of problems on which just one of the two is right; at least `gain`.
        power: chance to see the gain.

    Raises:
        UserError: for shares that cannot be.
    """
    if not 0 < abs(gain) <= discordant <= 1:
        raise UserError(
            f"a gain of {gain:g} with {discordant:g} of the problems discordant cannot be: "
            "give 0 < gain <= discordant <= 1"
        )
    if not 0 < power < 1:
        raise UserError(f"power is {power:g}: give a share between 0 and 1, such as 0.8")
    alpha, beta = (NormalDist().inv_cdf(share) for share in (0.975, power))
    root = alpha * sqrt(discordant) + beta * sqrt(max(discordant - gain * gain, 0.0))
    return int(np.ceil((root / gain) ** 2))


@cache
def _scipy() -> Any:
    try:
        from scipy import stats
    except ImportError:
        raise UserError(
            "statistics need scipy: install it with pip install 'antiphon[eval]'"
        ) from None
    return stats
