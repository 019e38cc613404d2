"""SpecReason: its ends are the draft's and the target's own text; the grade is the target's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.bundled import PROBLEMS, pair, run
from tests.toys import TableModel, toy_engine
from transformers import AutoModelForCausalLM

from antiphon.api import encode
from antiphon.errors import UserError
from antiphon.lab import pair_path
from antiphon.methods import Autoregressive, DraftOnly, SpecReason
from antiphon.params import SamplingParams


@pytest.mark.parametrize(("threshold", "other"), [(0, DraftOnly()), (9.1, Autoregressive())])
def test_the_ends_are_draft_and_target(threshold: float, other: Any) -> None:
    for mine, theirs in zip(run(SpecReason(threshold=threshold)), run(other), strict=True):
        assert mine.token_ids == theirs.token_ids
        assert set(mine.provenance) == set(theirs.provenance)


def test_the_grade_is_what_the_target_says_after_the_question() -> None:
    """Against the plain forward over prompt, first step and question."""
    method = SpecReason(threshold=0, grade="average")
    results = run(method)
    tokenizer = pair().tokenizer
    digits = [tokenizer.encode(str(d), add_special_tokens=False)[-1] for d in range(10)]
    module = AutoModelForCausalLM.from_pretrained(pair_path("target"), dtype=torch.float32)
    for problem, result in list(zip(PROBLEMS, results, strict=True))[:3]:
        step = result.rounds[0]
        question = tokenizer.encode(method.question, add_special_tokens=False)
        ids = [*encode(pair(), problem.question), *step.committed, *question]
        with torch.no_grad():
            logits = module(torch.tensor([ids])).logits[0, -1]
        assert step.notes["score"] == pytest.approx(method.mark(logits, digits), abs=1e-3)


def test_a_middle_threshold_mixes_both_and_does_not_depend_on_the_batch() -> None:
    grades = [r.notes["score"] for x in run(SpecReason(0, "average")) for r in x.rounds]
    middle = SpecReason(sorted(grades)[len(grades) // 2], "average")
    wish = {"temperature": 0.8}
    together, alone = (run(middle, batch, **wish) for batch in (8, 1))
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    assert {who for result in together for who in result.provenance} == {"draft", "target"}


def test_the_first_steps_can_be_the_targets() -> None:
    for result in run(SpecReason(threshold=0, first=1)):
        assert set(result.provenance[: len(result.rounds[0].committed)]) == {"target"}
        assert set(result.provenance[len(result.rounds[0].committed) :]) <= {"draft"}


def test_marks() -> None:
    logits = torch.zeros(12)
    digits = list(range(2, 12))
    logits[9], logits[0] = 3.0, 1.0
    assert SpecReason().mark(logits, digits) == 7
    assert 4.5 < SpecReason(grade="average").mark(logits, digits) < 7
    logits[0] = 9.0  # Not a digit.
    assert SpecReason().mark(logits, digits) == 0


@pytest.mark.parametrize(
    ("fields", "fix"),
    [
        ({"threshold": float("nan")}, "0 to 9"),
        ({"grade": "odd"}, "greedy, average"),
        ({"first": -1}, "first"),
        ({"question": ""}, "question"),
        ({"longest": 0}, "longest"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        SpecReason(**fields)


def test_without_draft_or_tokenizer_it_is_refused() -> None:
    with pytest.raises(UserError, match="--draft"):
        toy_engine(TableModel(3, seed=1)).submit((1,), SamplingParams(), SpecReason())
    engine = toy_engine(TableModel(3, seed=1), TableModel(3, seed=2))
    with pytest.raises(UserError, match="tokenizer"):
        engine.submit((1,), SamplingParams(), SpecReason())
