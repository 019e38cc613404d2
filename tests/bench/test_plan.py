"""The planner against formulas worked by hand."""

from __future__ import annotations

import pytest

from antiphon.bench.plan import HARDWARE, Counts, forecasts, replay, shown
from antiphon.costs import PairCosts, PassCosts
from antiphon.errors import UserError

FLAT = PairCosts(PassCosts({1: 1.0, 1024: 1.0}), PassCosts({1: 0.1, 1024: 0.1}))
STEEP = PairCosts(PassCosts({1: 1.0, 1001: 1001.0}), PassCosts({1: 0.5, 1001: 500.5}))


def speeds(costs: PairCosts, acceptance: float, batch: int = 1) -> dict[str, float]:
    return {f.method: f.speed_up for f in forecasts(costs, acceptance, batch)}


def test_flat_costs_give_the_textbook_speed_ups() -> None:
    found = speeds(FLAT, 0.8)
    assert found["autoregressive"] == 1.0
    assert found["draft-only"] == pytest.approx(10.0)
    tokens = (1 - 0.8**5) / (1 - 0.8)
    assert found["speculative:gamma=4"] == pytest.approx(tokens / (4 * 0.1 + 1))
    # (gamma + 1) / (c gamma + 1), whatever the number of particles.
    for n in (4, 8, 16):
        assert found[f"smc:particles={n},gamma=8"] == pytest.approx(9 / (0.1 * 8 + 1))


def test_where_rows_cost_plain_decoding_wins() -> None:
    found = forecasts(STEEP, 0.8, 1)
    assert next(f.method for f in found if f.method != "draft-only") == "autoregressive"


def test_the_best_setting_of_each_method_is_shown() -> None:
    lines = shown(forecasts(FLAT, 0.6, 2))
    assert sorted(f.method.partition(":")[0] for f in lines) == [
        *("autoregressive", "draft-only", "smc", "speculative")
    ]
    best = max(speeds(FLAT, 0.6, 2).items(), key=lambda item: item[1] * ("spec" in item[0]))
    assert best[0] in {f.method for f in lines}


def test_without_a_draft_there_is_plain_decoding_alone() -> None:
    alone = PairCosts(FLAT.target, None)
    assert [f.method for f in forecasts(alone, 0.5, 1)] == ["autoregressive"]


def test_an_accelerator_is_bound_by_reading_up_to_its_ridge() -> None:
    h100 = HARDWARE["h100"]
    costs = h100.costs(weights=16e9, parameters=8e9)
    assert costs.seconds(1) == pytest.approx(16e9 / 3.35e12)
    assert costs.seconds(256) == pytest.approx(costs.seconds(1))
    assert h100.ridge == pytest.approx(295.2, abs=0.1)
    assert costs.seconds(4096) == pytest.approx(2 * 8e9 * 4096 / 989e12)


def test_a_replay_adds_up_passes_and_prompts() -> None:
    counts = Counts(
        target_passes=40, draft_passes=80, target_rows=3.0, prompt_tokens=0, tokens=100, seconds=1
    )
    assert replay(counts, FLAT, batch=4) == pytest.approx(40 / 4 * 1.0 + 80 / 4 * 0.1)
    assert replay(counts, STEEP, batch=1) == pytest.approx(40 * 3.0 + 80 * 0.5)
    read = Counts(
        target_passes=1, draft_passes=0, target_rows=1.0, prompt_tokens=100, tokens=1, seconds=1
    )
    assert replay(read, STEEP, batch=1) == pytest.approx(1.0 + 100)


@pytest.mark.parametrize(("acceptance", "batch"), [(-0.1, 1), (1.1, 1), (0.5, 0)])
def test_what_cannot_be_is_refused(acceptance: float, batch: int) -> None:
    with pytest.raises(UserError, match=r"--acceptance|--batch"):
        forecasts(FLAT, acceptance, batch)
