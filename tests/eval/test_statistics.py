"""Intervals against exact counts, and their coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from antiphon.errors import UserError
from antiphon.eval import statistics as stats


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_one_seed_gives_the_wilson_interval_of_scipy(counts: tuple[int, int]) -> None:
    hits, n = counts
    right = np.array([[1.0]] * hits + [[0.0]] * (n - hits))
    found = stats.accuracy(right)
    wanted = binomtest(hits, n).proportion_ci(method="wilson")
    assert found.value == pytest.approx(hits / n)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_equal_seeds_count_as_one_answer_and_independent_ones_as_many() -> None:
    rng = np.random.default_rng(1)
    once = (rng.random((400, 1)) < 0.6).astype(float)
    same = stats.accuracy(np.repeat(once, 3, axis=1))
    alone = stats.accuracy(once)
    assert (same.low, same.high) == pytest.approx((alone.low, alone.high), abs=2e-3)
    fresh = stats.accuracy((rng.random((400, 3)) < 0.6).astype(float))
    assert fresh.high - fresh.low < 0.7 * (alone.high - alone.low)


def test_the_difference_of_a_method_to_itself_is_zero_without_width() -> None:
    right = (np.random.default_rng(2).random((50, 3)) < 0.5).astype(float)
    found = stats.difference(right, right)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_the_paired_interval_covers_the_true_difference() -> None:
    """Of 200 intervals of 95 % at least 170 cover; fewer has a chance below 1e-6."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        hard = rng.random((80, 1))
        a = (rng.random((80, 2)) > hard * 0.9).astype(float)
        b = (rng.random((80, 2)) > hard).astype(float)
        truth = 0.05  # E[1 - 0.9 h] - E[1 - h] with h uniform.
        covered += truth in stats.difference(a, b)
    assert covered >= 170


def test_mcnemar_is_the_sign_test_of_the_pairs_that_differ() -> None:
    a = np.array([[1.0]] * 8 + [[0.0]] * 2 + [[1.0]] * 30)
    b = np.array([[0.0]] * 8 + [[1.0]] * 2 + [[1.0]] * 30)
    assert stats.mcnemar(a, b) == pytest.approx(binomtest(8, 10).pvalue)
    assert stats.mcnemar(a, a) == 1.0
    assert stats.discordance(a, b) == pytest.approx(10 / 40)


def test_a_ratio_of_constant_speeds_is_exact() -> None:
    tokens = np.array([10.0, 20.0, 30.0])
    found = stats.ratio(tokens, tokens / 6, tokens, tokens / 2)
    assert (found.value, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))


def test_the_power_helper_keeps_its_word() -> None:
    """Simulated power at the promised n is within 0.73 and 0.87; outside: chance below 1e-4."""
    n = stats.problems_needed(gain=0.10, discordant=0.30, power=0.8)
    rng = np.random.default_rng(4)
    seen = 0
    for _ in range(1000):
        only, other, _ = rng.multinomial(n, [0.20, 0.10, 0.70])
        seen += binomtest(only, only + other).pvalue < 0.05
    # The exact test is a little conservative: the normal approximation's 80 % become 77 to 80 %.
    assert 730 <= seen <= 870


@pytest.mark.parametrize(("gain", "discordant"), [(0.0, 0.2), (0.3, 0.2), (0.1, 1.2)])
def test_gains_that_cannot_be_are_refused(gain: float, discordant: float) -> None:
    with pytest.raises(UserError, match="cannot be"):
        stats.problems_needed(gain, discordant)
