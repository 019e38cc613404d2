"""Sizes of a population: nearly as fast as the fastest, and no larger than asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.costs import PairCosts, PassCosts
from antiphon.drafting.sizes import (
    FEWEST_PARTICLES,
    LONGEST_BLOCK,
    MOST_PARTICLES,
    NEARLY,
    best_sizes,
    population_speed,
)


@given(
    row=st.floats(0.0, 2.0),
    draft=st.floats(0.01, 2.0),
    particles=st.none() | st.integers(1, 12),
    gamma=st.none() | st.integers(1, 12),
)
def test_sizes_are_nearly_the_fastest_and_what_is_given_stays(
    row: float, draft: float, particles: int | None, gamma: int | None
) -> None:
    costs = PairCosts(
        PassCosts({1: 1.0, 2: 1.0 + row}), PassCosts({1: draft, 2: draft * (1.0 + row)})
    )
    n, g = best_sizes(costs, particles, gamma)
    assert n == particles or (particles is None and FEWEST_PARTICLES <= n <= MOST_PARTICLES)
    assert g == gamma or (gamma is None and 1 <= g <= LONGEST_BLOCK)
    if particles is None and n > FEWEST_PARTICLES:
        speed = population_speed(costs, n, g)
        assert speed >= NEARLY * population_speed(costs, 1, g) * (1 - 1e-9)
    if gamma is None and particles is not None:
        fastest = max(population_speed(costs, n, block) for block in range(1, LONGEST_BLOCK + 1))
        assert population_speed(costs, n, g) >= NEARLY * fastest * (1 - 1e-9)
