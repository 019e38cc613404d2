"""Resamplers: unbiased, ordered by variance, and safe at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.drawing import Randomness
from antiphon.methods.particles import (
    SCHEMES,
    ancestors,
    effective_size,
    log_mean,
    normalised,
)

WEIGHTS = np.array([0.05, 0.31, 0.02, 0.4, 0.22])


@pytest.mark.parametrize("n", [2, 5, 11])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_offspring_are_n_w_on_average(scheme: str, n: int) -> None:
    """Mean of 4,000 resamplings within 5 standard errors: false alarm below 3e-5 in all."""
    if scheme == "killing":
        n = len(WEIGHTS)  # It keeps the number.
    runs = 4000
    counts = np.array([SCHEMES[scheme](WEIGHTS, Randomness(seed), n) for seed in range(runs)])
    assert (counts.sum(1) == n).all()
    error = counts.std(0, ddof=1) / np.sqrt(runs) + 1e-9
    assert (np.abs(counts.mean(0) - n * WEIGHTS) < 5 * error).all()
    assert all(len(ancestors(row)) == n for row in counts[:20])


def test_variances_are_ordered_as_theory_says() -> None:
    spread = {
        scheme: np.array(
            [SCHEMES[scheme](WEIGHTS, Randomness(seed), len(WEIGHTS)) for seed in range(4000)]
        )
        .var(0)
        .sum()
        for scheme in SCHEMES
    }
    assert spread["systematic"] <= spread["stratified"] * 1.05
    assert spread["stratified"] < spread["multinomial"]
    assert spread["residual"] < spread["multinomial"]
    assert spread["killing"] < spread["multinomial"]


@pytest.mark.parametrize("scheme", SCHEMES)
@given(
    st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=9),
    st.integers(0, 10**6),
)
def test_no_weight_no_offspring_and_as_many_as_before(
    scheme: str, raw: list[float], seed: int
) -> None:
    if sum(raw) <= 0:
        raw = [1.0 for _ in raw]
    weights = np.array(raw) / sum(raw)
    counts = SCHEMES[scheme](weights, Randomness(seed), len(weights))
    assert counts.sum() == len(raw)
    assert (counts[weights == 0] == 0).all()
    if scheme in ("systematic", "residual"):
        assert (counts >= np.floor(len(raw) * weights - 1e-6)).all()


def test_one_particle_is_its_own_ancestor() -> None:
    for scheme in SCHEMES.values():
        assert scheme(np.array([1.0]), Randomness(0), 1).tolist() == [1]


def test_survivors_keep_their_places() -> None:
    assert ancestors(np.array([0, 2, 0, 3, 0])) == [1, 1, 3, 3, 3]
    assert ancestors(np.array([1, 1, 1])) == [0, 1, 2]
    assert ancestors(np.array([0, 0, 3])) == [2, 2, 2]


def test_weights_survive_underflow_and_minus_infinity() -> None:
    tiny = np.array([-2000.0, -2000.0 + np.log(3.0)])
    assert normalised(tiny).tolist() == pytest.approx([0.25, 0.75])
    assert log_mean(tiny) == pytest.approx(-2000.0 + np.log(2.0))
    dead = np.array([-np.inf, 0.0, -np.inf])
    assert normalised(dead).tolist() == [0, 1, 0]
    assert effective_size(dead) == pytest.approx(1.0)
    gone = np.array([-np.inf, -np.inf])
    assert normalised(gone).tolist() == [0.5, 0.5]
    assert log_mean(gone) == -np.inf


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20))
def test_effective_size_lies_between_one_and_n(logs: list[float]) -> None:
    size = effective_size(np.array(logs))
    assert 1 - 1e-9 <= size <= len(logs) + 1e-9
