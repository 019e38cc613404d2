"""The generator: pure, disjoint by construction, and every sum in it right."""

from __future__ import annotations

import re

import pytest

from antiphon.errors import UserError
from antiphon.lab import problems
from antiphon.lab.bundle import COUNTS, draw
from antiphon.lab.problems import (
    LARGEST,
    SPLITS,
    Problem,
    drill,
    final_answer,
    problem,
    split_of,
)
from antiphon.lab.templates_all import SEEN, UNSEEN

SUM = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
OPS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def check_sums(drawn: Problem) -> None:
    *steps, last = drawn.steps
    results = []
    for step in steps:
        found = SUM.findall(step)
        assert len(found) == 1, step
        a, op, b, c = found[0]
        assert OPS[op](int(a), int(b)) == int(c), step
        assert 0 < max(int(a), int(b), int(c)) <= LARGEST, step
        results.append(int(c))
    assert last == f"The answer is {results[-1]}."
    assert drawn.answer == results[-1]
    assert final_answer(drawn.solution) == drawn.answer


@pytest.mark.parametrize("split", SPLITS)
def test_every_sum_is_right(split: str) -> None:
    for index in range(100 if split in ("test", "calibration") else 600):
        drawn = problem(split, index)
        assert 3 <= len(drawn.steps) <= 5
        check_sums(drawn)


def test_drills_are_right() -> None:
    for index in range(300):
        check_sums(drill(index))
        assert max(map(int, re.findall(r"\d+", drill(index, 100).question))) <= 100


def test_numbers_of_a_solution_come_from_the_question_or_from_earlier_steps() -> None:
    constants = {"2", "3", "4", "5"}  # half, a third, legs of an animal, twice
    for index in range(600):
        drawn = problem("train", index)
        known = set(re.findall(r"\d+", drawn.question)) | constants
        for step in drawn.steps[:-1]:
            a, _, b, c = SUM.findall(step)[0]
            assert {a, b} <= known, drawn
            known.add(c)


def test_a_problem_is_a_function_of_its_split_and_index() -> None:
    assert [problem("test", i) for i in range(20)] == [problem("test", i) for i in range(20)]


def test_splits_are_disjoint_by_construction() -> None:
    for split in ("train", "calibration", "test"):
        for index in range(60):
            assert split_of(problem(split, index).question) == split
    assert not {t.__name__ for t in SEEN} & {t.__name__ for t in UNSEEN}
    unseen = {t.__name__ for t in UNSEEN}
    assert {problem("unseen", i).template for i in range(200)} == unseen


@pytest.mark.parametrize("split", COUNTS)
def test_bundled_data_is_what_the_generator_draws(split: str) -> None:
    bundled = problems(split)
    assert len(bundled) == COUNTS[split] == len({p.question for p in bundled})
    assert bundled[:40] == draw(split, 40)
    for p in bundled:
        check_sums(p)
        assert split == "unseen" or split_of(p.question) == split


def test_mistakes_say_what_to_do() -> None:
    with pytest.raises(UserError, match="choose one of train"):
        problem("validation", 0)
    with pytest.raises(UserError, match="choose test"):
        problems("train")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 32.", 32),
        ("2 * 3 = 6.\n\nThe answer is $6 in all.", 6),
        ("The answer is 5. No: the answer. The answer is 7.", 7),
        ("It is 12.", None),
        ("The answer is", None),
        ("", None),
    ],
)
def test_final_answer(text: str, answer: int | None) -> None:
    assert final_answer(text) == answer
