"""SpecGuard: its two ends are the draft's and the target's own text; parts against formulas."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.toys import TableModel, toy_engine

from antiphon.api import encode, make_engine
from antiphon.errors import UserError
from antiphon.lab import problems
from antiphon.methods import RSD, Autoregressive, DraftOnly, SpecGuard, SpecReason, StepScore
from antiphon.methods.boundary import BOUNDARIES, ends_step
from antiphon.methods.selection import medoid, numbers, vote
from antiphon.methods.specguard import scaled
from antiphon.methods.steps import aggregate
from antiphon.models.pair import LoadOptions, ModelPair, load_pair
from antiphon.params import SamplingParams

LOGPROB: dict[str, Any] = {"beta": 1.0, "low_logprob": -10.0, "high_logprob": 0.0}
TOY: dict[str, Any] = LOGPROB | {"longest": 4, "selector": "text"}


@cache
def pair() -> ModelPair:
    return load_pair(options=LoadOptions(dtype="float32"))


@pytest.mark.parametrize(("tau", "other"), [(0.0, DraftOnly()), (1.1, Autoregressive())])
def test_on_toys_the_ends_are_draft_and_target(tau: float, other: Any) -> None:
    target, draft = TableModel(5, seed=1), TableModel(5, seed=2)
    prompts = [(i % 5, (i * 3) % 5) for i in range(12)]
    params = [SamplingParams(max_tokens=5 + i) for i in range(12)]
    method = SpecGuard(candidates=1, tau=tau, **TOY)
    guarded = toy_engine(target, draft).generate(prompts, params, method)
    alone = toy_engine(target, draft).generate(prompts, params, other)
    for (a,), (b,) in zip(guarded, alone, strict=True):
        assert a.error is None
        assert a.token_ids == b.token_ids
        assert set(a.provenance) == set(b.provenance)


@pytest.mark.parametrize(("tau", "other"), [(0.0, DraftOnly()), (1.1, Autoregressive())])
def test_on_the_lab_pair_the_ends_are_draft_and_target(tau: float, other: Any) -> None:
    prompts = [encode(pair(), problem.question) for problem in problems("test")[:6]]
    params = [SamplingParams(max_tokens=80)] * 6
    engine = make_engine(pair())
    guarded = engine.generate(prompts, params, SpecGuard(candidates=1, tau=tau))
    alone = engine.generate(prompts, params, other)
    for (a,), (b,) in zip(guarded, alone, strict=True):
        assert a.error is None
        assert a.text == b.text
        assert a.token_ids == b.token_ids


def test_a_middle_tau_mixes_both_and_every_step_ends_where_a_step_ends() -> None:
    prompts = [encode(pair(), problem.question) for problem in problems("test")[:8]]
    params = [SamplingParams(max_tokens=100, temperature=0.7, seed=i) for i in range(8)]
    method = SpecGuard(candidates=3, tau=0.8)
    results = [r for (r,) in make_engine(pair()).generate(prompts, params, method)]
    who = {name for result in results for name in result.provenance}
    assert who == {"draft", "target"}
    for result in results:
        assert result.error is None
        assert len(result.logprobs) == len(result.token_ids)
        for step in result.rounds[:-1]:
            assert pair().tokenizer.decode(step.committed).endswith("\n\n")
            assert len(set(step.provenance)) == 1


@pytest.mark.parametrize("selector", ["medoid", "text", "numbers"])
def test_results_do_not_depend_on_the_batch(selector: str) -> None:
    prompts = [encode(pair(), problem.question) for problem in problems("test")[:5]]
    params = [SamplingParams(max_tokens=60, temperature=0.8, seed=i) for i in range(5)]
    method = SpecGuard(candidates=4, tau=0.6, selector=selector)
    alone = make_engine(pair(), batch=1).generate(prompts, params, method)
    many = make_engine(pair(), batch=5).generate(prompts, params, method)
    assert [r.token_ids for (r,) in alone] == [r.token_ids for (r,) in many]


def test_the_trees_hold_the_text_and_nothing_else_between_steps() -> None:
    """After a refused step the caches are those of a fresh reading: the next logits are equal."""
    prompt = encode(pair(), problems("test")[1].question)
    params = SamplingParams(max_tokens=60)
    plain = make_engine(pair()).generate([prompt], [params], Autoregressive())[0][0]
    guarded = make_engine(pair()).generate([prompt], [params], SpecGuard(candidates=1, tau=1.1))[0][
        0
    ]
    assert guarded.logprobs == pytest.approx(plain.logprobs, abs=1e-4)


@given(
    st.lists(
        st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(
            lambda v: np.linalg.norm(v) > 0.1
        ),
        min_size=3,
        max_size=8,
    )
)
def test_the_medoid_has_the_smallest_diagonal_of_the_row_softmax(rows: list[list[float]]) -> None:
    vectors = torch.tensor(rows, dtype=torch.float64)
    unit = vectors / vectors.norm(dim=-1, keepdim=True)
    diagonal = (unit @ unit.T).softmax(-1).diagonal()
    assert diagonal[medoid(vectors)] == pytest.approx(float(diagonal.min()), abs=1e-6)


def test_ties_go_to_the_first() -> None:
    assert medoid(torch.eye(2)) == 0
    assert vote(["a", "b", "b", "a"]) == 0
    assert vote(["c", "b", "b", "a"]) == 1
    assert numbers("So 3 * 4 = 12, not 1,200.5.") == ("3", "4", "12", "1,200.5")


def test_a_step_ends_at_its_boundary_after_some_text() -> None:
    assert ends_step("So 2.\n\n", "blank-line")
    assert ends_step("So 2.\n\nThen", "blank-line")
    assert not ends_step("\n\n", "blank-line")
    assert not ends_step("So 2.\n", "blank-line")
    assert not ends_step("", "blank-line")
    assert ends_step("So 2.\n", "line")
    assert ends_step("So 2.\n\n", "line")
    assert not ends_step("\n", "line")


@pytest.mark.parametrize("method", [SpecGuard, RSD, SpecReason, StepScore])
def test_every_method_of_steps_knows_the_same_boundaries(method: Any) -> None:
    with pytest.raises(UserError, match="boundary is 'lines': choose blank-line, line"):
        method(boundary="lines")
    with pytest.raises(UserError, match="longest is 0"):
        method(longest=0)
    with pytest.raises(UserError, match="gamma is -1"):
        method(gamma=-1)


@pytest.mark.parametrize("method", [SpecGuard(boundary="line"), StepScore(boundary="line")])
def test_a_profile_of_other_steps_is_refused(method: Any) -> None:
    with pytest.raises(UserError, match="end at a blank-line, the method's at a line"):
        make_engine(pair()).generate([(1, 2)], [SamplingParams()], method)


@pytest.mark.parametrize("gamma", [0, 3])
@pytest.mark.parametrize("tau", [0.0, 1.1])
def test_steps_end_at_the_methods_boundary(
    gamma: int, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a boundary that drafted or refused steps, or their speculation, ignore."""
    monkeypatch.setitem(BOUNDARIES, "line", "=")  # The lab's lines are apart by blank ones.
    prompt = encode(pair(), problems("test")[0].question)
    method = SpecGuard(candidates=1, boundary="line", gamma=gamma, tau=tau, **LOGPROB)
    ((result,),) = make_engine(pair()).generate([prompt], [SamplingParams()], method)
    assert result.text.count("=") > 1
    assert sum(r.notes["steps"] for r in result.rounds) == result.text.count("=") + 1


def test_scores_are_scaled_and_cut() -> None:
    values = torch.tensor([-3.0, -1.0, -2.0])
    assert aggregate("min", values) == -3.0
    assert aggregate("mean", values) == -2.0
    assert -3.0 <= aggregate("p10", values) <= -2.5
    assert scaled(-2.0, -4.0, 0.0) == 0.5
    assert scaled(-9.0, -4.0, 0.0) == 0.0
    assert scaled(1.0, -4.0, 0.0) == 1.0


@pytest.mark.parametrize(
    ("fields", "fix"),
    [
        ({"candidates": 0}, "candidates"),
        ({"beta": 2}, "beta"),
        ({"selector": "odd"}, "medoid"),
        ({"aggregate": "odd"}, "p10"),
        ({"layers": 0}, "layers"),
        ({"threshold": 1}, "threshold"),
        ({"longest": 0}, "longest"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        SpecGuard(**fields)


def test_without_ranges_or_attention_it_says_what_to_do() -> None:
    engine = toy_engine(TableModel(5, seed=1), TableModel(5, seed=2))
    with pytest.raises(UserError, match="antiphon calibrate"):
        engine.submit((1,), SamplingParams(), SpecGuard())
    known = {"low_logprob": -5.0, "high_logprob": 0.0, "low_grounding": 0.0, "high_grounding": 1.0}
    with pytest.raises(UserError, match="beta=1"):
        engine.submit((1,), SamplingParams(), SpecGuard(**known))
