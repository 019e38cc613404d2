"""How large a population, and how long its blocks: what the measured pass costs make nearly free.

A round of N particles and gamma draft tokens takes gamma draft passes over N rows and a target
pass over N (gamma + 1), and yields gamma + 1 tokens. Where rows cost nothing this is the speed
model of arXiv 2604.15672, section 3.1: S = (gamma + 1) / (c gamma + 1).

Particles buy quality and short blocks keep it, so neither is chosen for speed alone: among the
sizes that are nearly as fast as the fastest, the shortest block and the most particles.
"""

from __future__ import annotations

from antiphon.costs import PairCosts

NEARLY = 0.9
"""The share of the fastest setting's speed that is fast enough."""
FEWEST_PARTICLES, MOST_PARTICLES = 4, 32
"""One particle is the bare draft's text, whatever it costs."""
LONGEST_BLOCK = 16


def population_speed(costs: PairCosts, particles: int, gamma: int) -> float:
    """Expected tokens per second of one request's rounds with nothing rejected."""
    drafting = gamma * costs.draft.seconds(particles) if costs.draft else 0.0
    return (gamma + 1) / (drafting + costs.target.seconds(particles * (gamma + 1)))


def best_sizes(costs: PairCosts, particles: int | None, gamma: int | None) -> tuple[int, int]:
    """N and gamma; what is given stays.

    gamma is the shortest block within `NEARLY` of the fastest one with as many particles (8
    where N is free too), then N the largest population within `NEARLY` of the speed of one, and
    at least `FEWEST_PARTICLES`.
    """
    if gamma is None:
        crowd = particles or 8
        speeds = {g: population_speed(costs, crowd, g) for g in range(1, LONGEST_BLOCK + 1)}
        gamma = min(g for g, speed in speeds.items() if speed >= NEARLY * max(speeds.values()))
    if particles is None:
        enough = NEARLY * population_speed(costs, 1, gamma)
        particles = max(
            n
            for n in range(FEWEST_PARTICLES, MOST_PARTICLES + 1)
            if n == FEWEST_PARTICLES or population_speed(costs, n, gamma) >= enough
        )
    return particles, gamma
