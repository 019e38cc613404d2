"""Block lengths: the expected speed, and the choice it leads to."""

from __future__ import annotations

import itertools

import pytest

from antiphon.costs import PairCosts, PassCosts
from antiphon.drafting.length import (
    FittedLength,
    best_length,
    expected_speed,
    expected_tokens,
)

FLAT = PassCosts({1: 1.0, 64: 1.0})
CHEAP = PairCosts(FLAT, PassCosts({1: 0.05, 64: 0.05}))
DEAR = PairCosts(FLAT, PassCosts({1: 1.2, 64: 1.2}))


def test_expected_tokens_is_the_sum_over_where_the_block_ends() -> None:
    """Leviathan et al. 2023, equation 1, by enumerating accept/refuse outcomes."""
    for acceptance, gamma in itertools.product((0.0, 0.3, 0.9, 1.0), (0, 1, 4, 9)):
        total = sum((k + 1) * acceptance**k * (1 - acceptance) for k in range(gamma))
        total += (gamma + 1) * acceptance**gamma
        assert expected_tokens(acceptance, gamma) == pytest.approx(total)


def test_a_cheap_good_draft_drafts_long_and_a_dear_one_not_at_all() -> None:
    assert best_length(0.95, CHEAP)[0] > best_length(0.5, CHEAP)[0] > 0
    assert best_length(0.95, DEAR) == (0, pytest.approx(1.0))
    gamma, gain = best_length(0.8, CHEAP)
    assert gain == pytest.approx(expected_speed(0.8, gamma, CHEAP) / expected_speed(0.8, 0, CHEAP))


def test_the_fitted_length_follows_what_it_sees() -> None:
    length = FittedLength(CHEAP)
    before = length.next()
    for _ in range(60):
        length.observe(drafted=8, accepted=0)
    low = length.next()
    for _ in range(200):
        length.observe(drafted=8, accepted=8)
    assert low < before < length.next()


def test_where_drafting_does_not_pay_it_is_still_tried_now_and_then() -> None:
    """Guards the estimate from freezing: with gamma 0 nothing would ever be observed again."""
    length = FittedLength(DEAR, probe=16)
    lengths = [length.next() for _ in range(64)]
    assert lengths.count(1) == 4
    assert lengths.count(0) == 60


def test_pass_costs_interpolate_and_extend() -> None:
    costs = PassCosts({1: 1.0, 4: 2.5, 8: 4.5})
    assert costs.seconds(1) == 1.0
    assert costs.seconds(2) == pytest.approx(1.5)
    assert costs.seconds(8) == pytest.approx(4.5)
    assert costs.seconds(16) == pytest.approx(8.5)
    assert PassCosts({1: 2.0}).seconds(9) == 2.0
    with pytest.raises(ValueError, match="positive"):
        PassCosts({})
