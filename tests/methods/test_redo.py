"""Steps that the target writes speculatively are the steps it would have written anyway."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from tests.bundled import run
from tests.toys import TableModel, exact_outputs, toy_engine

from antiphon.costs import PairCosts, PassCosts
from antiphon.errors import UserError
from antiphon.methods import RSD, Autoregressive, SpecGuard, SpecReason, StepScore
from antiphon.params import SamplingParams

# Every step is refused: the whole text is the target's.
REFUSING: list[Any] = [
    RSD(delta=1.1, gamma=3),
    RSD(delta=1.1, gamma="auto"),
    SpecReason(threshold=9.1, gamma=3),
    SpecReason(threshold=0, first=99, gamma=4),
    StepScore(threshold=0.1, gamma=3),
    SpecGuard(candidates=1, tau=1.1, gamma=3),
]


@pytest.mark.parametrize("method", REFUSING)
def test_greedy_texts_are_the_targets(method: Any) -> None:
    for mine, theirs in zip(run(method), run(Autoregressive()), strict=True):
        assert mine.token_ids == theirs.token_ids
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=2e-3)
        assert "draft" in mine.provenance  # The draft helped.
        assert mine.statistics.target_passes < len(mine.token_ids)


@pytest.mark.parametrize(("longest", "gamma"), [(2, 2), (3, 2), (256, 2), (3, "auto")])
def test_sampled_texts_are_distributed_as_the_targets(longest: int, gamma: Any) -> None:
    """Steps end within blocks, at their ends and nowhere."""
    target, draft, prompt = TableModel(3, seed=11), TableModel(3, seed=12), (1, 0, 2)
    params = SamplingParams(temperature=1.0, max_tokens=4, seed=5, n=2000)
    method = StepScore(candidates=1, threshold=math.inf, longest=longest, gamma=gamma)
    costs = PairCosts(PassCosts({1: 1.0, 64: 4.0}), PassCosts({1: 0.1, 64: 0.2}))
    engine = toy_engine(target, draft, 64, (2,), costs)
    (results,) = engine.generate([prompt], [params], method)
    truth = exact_outputs(target, prompt, params, eos=(2,))
    counts = Counter(result.token_ids for result in results)
    assert set(counts) <= set(truth)
    # E[TV] <= sqrt(81 / 2000) / 2 = 0.101, and P(excess > 0.06) < 1e-6 (McDiarmid).
    assert sum(abs(counts[t] / 2000 - p) for t, p in truth.items()) / 2 < 0.101 + 0.06


@pytest.mark.parametrize(
    "method", [RSD(delta=0.6, gamma=3), StepScore(threshold=-2.0, candidates=3, gamma=4)]
)
def test_accepted_and_rewritten_steps_mix_and_do_not_depend_on_the_batch(method: Any) -> None:
    wish = {"temperature": 0.8}
    together, alone = (run(method, batch, **wish) for batch in (8, 1))
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    fired = [record.notes["fired"] for result in together for record in result.rounds]
    assert 0 < sum(fired) < len(fired)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="gamma"):
        RSD(gamma=-1)
    with pytest.raises(UserError, match="target_candidates=1"):
        SpecGuard(gamma=2, target_candidates=3)
