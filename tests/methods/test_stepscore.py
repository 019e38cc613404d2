"""StepScore: its ends are the draft's and the target's own text; the best candidate is chosen."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.bundled import PROBLEMS, pair, run
from tests.toys import TableModel, toy_engine

from antiphon.api import encode
from antiphon.errors import UserError
from antiphon.eval.reread import Reread
from antiphon.methods import Autoregressive, DraftOnly, StepScore
from antiphon.params import SamplingParams


@pytest.mark.parametrize(
    ("threshold", "other"), [(-math.inf, DraftOnly()), (0.1, Autoregressive())]
)
def test_the_ends_are_draft_and_target(threshold: float, other: Any) -> None:
    for mine, theirs in zip(run(StepScore(threshold=threshold)), run(other), strict=True):
        assert mine.token_ids == theirs.token_ids
        assert set(mine.provenance) == set(theirs.provenance)


@pytest.mark.parametrize(
    ("threshold", "other"), [(-math.inf, DraftOnly()), (0.1, Autoregressive())]
)
def test_on_toys_the_ends_are_draft_and_target(threshold: float, other: Any) -> None:
    target, draft = TableModel(5, seed=1), TableModel(5, seed=2)
    prompts = [(i % 5, (i * 3) % 5) for i in range(12)]
    params = [SamplingParams(max_tokens=5 + i) for i in range(12)]
    mine = toy_engine(target, draft).generate(
        prompts, params, StepScore(threshold=threshold, longest=4)
    )
    alone = toy_engine(target, draft).generate(prompts, params, other)
    assert [a.token_ids for (a,) in mine] == [b.token_ids for (b,) in alone]


def test_a_middle_threshold_mixes_both_and_does_not_depend_on_the_batch() -> None:
    wish = {"temperature": 0.8}
    together, alone = (run(StepScore(threshold=-2.0), batch, **wish) for batch in (8, 1))
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    assert {who for result in together for who in result.provenance} == {"draft", "target"}


def test_a_steps_score_is_the_targets_least_log_probability() -> None:
    """And what is told of every token, whoever wrote it, is the target's."""
    for problem, result in zip(PROBLEMS, run(StepScore(threshold=-2.0, candidates=1)), strict=True):
        prompt = encode(pair(), problem.question)
        rows = Reread(pair().target, prompt, result.token_ids).logprobs
        expected = rows.gather(-1, torch.tensor(result.token_ids)[:, None])[:, 0].tolist()
        assert result.logprobs == pytest.approx(expected, abs=2e-3)
        for record in result.rounds:
            if "draft" in record.provenance:
                assert record.notes["score"] == pytest.approx(min(record.logprobs), abs=2e-3)
                assert record.notes["score"] >= -2.0


def test_more_candidates_give_steps_the_target_likes_better() -> None:
    """On average over 8 problems; with 8 candidates for 1, no close call."""
    one, many = (run(StepScore(candidates=k, threshold=-math.inf), temperature=1.0) for k in (1, 8))

    def mean(results: list[Any]) -> float:
        return sum(sum(r.logprobs) / len(r.logprobs) for r in results) / len(results)

    assert mean(many) > mean(one)


def test_what_cannot_be_is_refused() -> None:
    for fields, fix in (
        ({"candidates": 0}, "candidates"),
        ({"quantile": 2}, "quantile"),
        ({"threshold": math.nan}, "nats"),
        ({"aggregate": "odd"}, "min"),
    ):
        with pytest.raises(UserError, match=fix):
            StepScore(**fields)  # type: ignore[arg-type]
    bare = toy_engine(TableModel(3, seed=1), TableModel(3, seed=2))
    with pytest.raises(UserError, match="--profile"):
        bare.submit((1,), SamplingParams(), StepScore())
