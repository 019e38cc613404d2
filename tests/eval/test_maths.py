"""The maths grader: what counts as the final answer, and what as the same one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.eval.graders import maths
from antiphon.eval.task import Problem
from antiphon.eval.tasks.competitions import OlympiadBench

READ = [
    (r"so \boxed{18}", "18"),
    (r"first \boxed{1}, then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{18", "18"),  # An unfinished box is no box; the number in it is still the last one.
    ("8 + 10 = 18\n#### 18", "18"),
    ("It costs $1,250.50.", "$1,250.50"),
    ("Twice: 3, and then 4.", "4"),
    ("it is -3", "-3"),
    ("10-3", "3"),
    ("x = .5", ".5"),
    ("half of it, 1/2", "1/2"),
    ("nothing here", None),
    (r"\boxed{}", None),
    ("", None),
]


@pytest.mark.parametrize(("output", "answer"), READ)
def test_the_final_answer_is_the_box_the_hashes_or_the_last_number(
    output: str, answer: str | None
) -> None:
    assert maths.final_answer(output) == answer


SAME = [
    ("18", r"\boxed{18.00}"),
    ("0.5", r"\boxed{\frac12}"),
    ("1000", r"\boxed{1,000}"),
    ("18", r"\boxed{\$18}"),
    ("10", r"\boxed{10\text{ apples}}"),
    (r"\frac{\pi}{2}", r"\boxed{\pi/2}"),
    ("x^2+2x+1", r"\boxed{(x+1)^2}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(3,\pi/2)}"),
    (r"\text{Evelyn}", r"\boxed{\text{Evelyn}}"),
    ("5", r"\boxed{x=5}"),
    ("70000", "a profit of $70,000"),
]
OTHER = [
    ("18", r"\boxed{81}"),
    ("0.5", r"\boxed{\frac13}"),
    (r"\frac{\pi}{2}", r"\boxed{\pi}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(\pi/2,3)}"),
    ("18", "18 at first, but 17 in the end"),
    ("18", "no number"),
]


@pytest.mark.parametrize(("gold", "output"), SAME)
def test_answers_that_mean_the_same_are_right(gold: str, output: str) -> None:
    assert maths.grade(gold, output).right


@pytest.mark.parametrize(("gold", "output"), OTHER)
def test_answers_that_differ_are_wrong(gold: str, output: str) -> None:
    assert maths.grade(gold, output).right is False


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_whole_numbers_are_right_where_they_are_equal(gold: int, said: int) -> None:
    output = f"After some steps, \\boxed{{{said:,}}}."
    assert maths.grade(str(gold), output).right == (gold == said)


@given(st.text(max_size=60))
def test_no_text_crashes_the_grader(text: str) -> None:
    assert maths.grade("18", text).right in (True, False)


@pytest.mark.parametrize(
    "text", [r"\boxed{\frac{1}{0}}", r"\boxed{9^{9^{9^{9}}}}", r"\boxed{\int}"]
)
def test_an_answer_that_cannot_be_compared_is_recorded(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maths, "SECONDS", 1)
    grade = maths.grade("18", text)
    assert grade.right is False
    assert grade.answer


def test_olympiad_answers_may_come_in_any_order_where_there_are_several() -> None:
    row = {"id": 1, "question": "Which?", "final_answer": ["$69$,$84$"], "is_multiple_answer": True}
    task = OlympiadBench()
    problem = task.problem(row, 0)
    assert task.grade(problem, r"\boxed{84, 69}").right
    assert not task.grade(problem, r"\boxed{84, 70}").right
    pair = task.problem(row | {"is_multiple_answer": False}, 0)
    assert isinstance(pair, Problem)
    assert not task.grade(pair, r"\boxed{84, 69}").right
