"""Particles: weights, effective sample size, and resampling without bias.

Weights are natural logarithms in float64, not normalised. Every resampler gives particle i on
average ``n w_i`` of n offspring; they differ in variance. See Douc, Cappé and Moulines 2005,
"Comparison of Resampling Schemes for Particle Filtering".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from antiphon.drawing import Randomness

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


def normalised(log_weights: Floats) -> Floats:
    """Weights ``[N]`` that sum to 1; equal ones where all are ``-inf``."""
    top = log_weights.max()
    if top == -np.inf:
        return np.full(len(log_weights), 1 / len(log_weights))
    weights = np.exp(log_weights - top)
    return np.asarray(weights / weights.sum())


def log_mean(log_weights: Floats) -> float:
    """Logarithm of the mean weight, ``-inf`` where all are: one factor of the estimate of Z."""
    top = log_weights.max()
    if top == -np.inf:
        return float("-inf")
    return float(top + np.log(np.exp(log_weights - top).mean()))


def effective_size(log_weights: Floats) -> float:
    """ESS: ``(sum w)^2 / sum w^2``, from 1 to N; 0 where all weights are ``-inf``."""
    if log_weights.max() == -np.inf:
        return 0.0
    weights = normalised(log_weights)
    return float(1 / (weights**2).sum())


def systematic(weights: Floats, randomness: Randomness, n: int) -> Counts:
    """One uniform, and n points at equal distances on the cumulative weights."""
    return _points(weights, (np.arange(n) + randomness.uniform()) / n)


def stratified(weights: Floats, randomness: Randomness, n: int) -> Counts:
    """One point drawn in each of n equal stretches of the cumulative weights."""
    return _points(weights, (np.arange(n) + np.array(randomness.uniforms(n))) / n)


def multinomial(weights: Floats, randomness: Randomness, n: int) -> Counts:
    """N independent draws, as in the SMC-SD paper."""
    return _points(weights, np.array(randomness.uniforms(n)))


def residual(weights: Floats, randomness: Randomness, n: int) -> Counts:
    """``floor(n w_i)`` offspring for certain, the rest by independent draws."""
    # What is whole up to rounding is whole: 0.1 * 10 must not leave a draw to chance.
    counts: Counts = np.floor(n * weights + 1e-9).astype(np.int64)
    left = n - int(counts.sum())
    if left:
        rest = np.clip(n * weights - counts, 0, None)
        counts += _points(rest / rest.sum(), np.array(randomness.uniforms(left)))
    return counts


def killing(weights: Floats, randomness: Randomness, n: int) -> Counts:
    """Each particle survives with chance ``w_i / max w``; a killed one's place is drawn anew.

    Del Moral 2004, section 2.5.3. Few particles move where weights are nearly equal. n is the
    number of weights: survivors keep their places.
    """
    alive = np.array(randomness.uniforms(n)) * weights.max() < weights
    counts: Counts = alive.astype(np.int64)
    dead = n - int(counts.sum())
    if dead:
        counts += _points(weights, np.array(randomness.uniforms(dead)))
    return counts


Resampler: TypeAlias = Callable[[Floats, Randomness, int], Counts]

SCHEMES: Mapping[str, Resampler] = {
    "systematic": systematic,
    "stratified": stratified,
    "residual": residual,
    "multinomial": multinomial,
    "killing": killing,
}
"""Name -> resampler: normalised weights ``[N]``, lots and n to offspring counts ``[N]``, sum n."""


def ancestors(counts: Counts) -> list[int]:
    """Whose copy sits in each place, ``[n]``; while n is N a survivor keeps its own place."""
    if counts.sum() != len(counts):
        return [i for i, count in enumerate(counts) for _ in range(int(count))]
    spare = [i for i, count in enumerate(counts) for _ in range(int(count) - 1)]
    return [i if count else spare.pop(0) for i, count in enumerate(counts)]


def _points(weights: Floats, points: Floats) -> Counts:
    """How many of the points in [0, 1) fall to each weight's stretch."""
    bounds = np.cumsum(weights)
    bounds /= bounds[-1]
    # A weight of 0 has no stretch, and rounding must not give the last point to one.
    owner = np.searchsorted(bounds, points, side="right")
    owner = np.minimum(owner, int(np.flatnonzero(weights > 0)[-1]))
    counts: Counts = np.bincount(owner, minlength=len(weights)).astype(np.int64)
    return counts
