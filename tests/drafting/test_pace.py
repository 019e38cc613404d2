"""Pace: what a token must promise, what is learnt of doubts, and what it gains."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from antiphon.costs import PairCosts, PassCosts
from antiphon.drafting.length import LONGEST, FittedLength
from antiphon.drafting.pace import Pace

COSTS = PairCosts(PassCosts({1: 10.0, 2: 10.5, 64: 41.5}), PassCosts({1: 2.0, 64: 2.0}))


def paced(acceptance: float = 0.9) -> Pace:
    return Pace(FittedLength(COSTS, acceptance=acceptance))


def heard(pace: Pace, sure: list[float], accepted: int) -> None:
    """A block of which some tokens stand."""
    pace.next()
    pace.sure += sure
    pace.observe(len(sure), accepted)


def test_the_price_is_what_the_time_would_bring_otherwise() -> None:
    pace = paced()
    length = pace.length
    assert pace.next() == LONGEST
    fixed = FittedLength(COSTS, acceptance=0.9).next()
    speed = (1 - 0.9 ** (fixed + 1)) / 0.1 / COSTS.round_seconds(fixed)
    assert length.price == pytest.approx(speed * 2.5)
    edge = length.price / 0.9
    assert pace.pays(edge + 1e-9)
    assert not pace.pays(edge - 1e-9)


def test_where_plain_decoding_wins_nothing_is_drafted() -> None:
    dear = PairCosts(COSTS.target, PassCosts({1: 12.0, 64: 12.0}))
    pace = Pace(FittedLength(dear, probe=16))
    assert [pace.next() for _ in range(32)].count(0) == 30
    crowd = Pace(FittedLength(dear, probe=16, company=lambda: 4))
    assert [crowd.next() for _ in range(128)].count(1) == 2


def test_a_draft_that_is_too_sure_is_believed_less() -> None:
    pace = paced()
    assert pace.chance(0.9) == pytest.approx(0.9)
    lots = random.Random(0)
    for _ in range(200):
        heard(pace, [0.9] * 8, next((k for k in range(8) if lots.random() > 0.6), 8))
    assert pace.chance(0.9) == pytest.approx(0.6, abs=0.15)
    for _ in range(50):
        heard(pace, [0.3] * 8, 8)
    assert pace.chance(0.3) > 0.95


def speed_of(goes_on: Callable[[float, int], bool], lots: random.Random) -> float:
    """Tokens per time of a draft that knows its chances: sure of most tokens, torn at some.

    `goes_on` is asked with the chance that all drafted so far stands, and their number.
    """
    tokens, seconds = 0, 0.0
    for _ in range(4000):
        chances = [0.45 if lots.random() < 0.25 else 0.98 for _ in range(LONGEST)]
        stands, drafted = 1.0, 0
        while drafted < LONGEST and (drafted == 0 or goes_on(stands, drafted)):
            stands *= chances[drafted]
            drafted += 1
        kept = next((k for k in range(drafted) if lots.random() > chances[k]), drafted)
        tokens += kept + 1
        seconds += COSTS.round_seconds(drafted)
    return tokens / seconds


def test_stopping_by_the_price_beats_every_fixed_length() -> None:
    """In the passes' own time, on 4,000 rounds: the gain is ten standard errors wide."""
    pace = paced(acceptance=0.85)
    pace.next()
    by_price = speed_of(lambda stands, _: pace.pays(stands), random.Random(1))
    fixed = [speed_of(lambda _, k, g=g: k < g, random.Random(1)) for g in range(1, LONGEST + 1)]
    assert by_price > 1.04 * max(fixed)


class Heedless(Pace):
    """Drafts on in company, too."""

    def next(self) -> int:
        gamma = super().next()
        return LONGEST if gamma else 0


def crowd_speed(kind: type[Pace], crowd: int, lots: random.Random) -> float:
    """Tokens per time of requests whose draft passes are shared, and verified together."""
    dear = PairCosts(PassCosts({1: 10.0, 4: 12.0, 64: 60.0}), PassCosts({1: 2.7, 64: 25.0}))
    paces = [kind(FittedLength(dear, company=lambda: crowd)) for _ in range(crowd)]
    tokens, seconds = 0, 0.0
    for _ in range(1500):
        drafted = []
        for pace in paces:
            gamma, stands = pace.next(), 1.0
            while len(pace.sure) < gamma and pace.pays(stands):
                pace.sure.append(0.45 if lots.random() < 0.25 else 0.98)
                stands *= pace.chance(pace.sure[-1])
            drafted.append(len(pace.sure))
            chances = enumerate(pace.sure)
            kept = next((k for k, sure in chances if lots.random() > sure), drafted[-1])
            pace.observe(drafted[-1], kept)
            tokens += kept + 1
        for depth in range(max(drafted)):
            seconds += (
                dear.draft.seconds(sum(each > depth for each in drafted)) if dear.draft else 0
            )
        seconds += dear.target.seconds(sum(drafted) + crowd)
    return tokens / seconds


def test_in_company_nobody_waits_for_the_surest() -> None:
    company = FittedLength(COSTS, company=lambda: 4)
    assert Pace(FittedLength(COSTS, company=lambda: 4)).next() == company.next() < LONGEST
    capped, heedless = (crowd_speed(kind, 4, random.Random(2)) for kind in (Pace, Heedless))
    assert capped > 1.03 * heedless
