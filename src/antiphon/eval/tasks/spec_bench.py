"""Spec-Bench: 480 prompts of six kinds, for speed alone (Xia et al. 2024, arXiv 2401.07851)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from antiphon.eval.grade import Grade
from antiphon.eval.task import BrokenRow, Problem, Task, field


class SpecBench(Task):
    """Rows hold `question_id`, `category` and `turns`; the first 80 have two turns.

    Its protocol: three warm-up answers, greedy, at most 1,024 tokens a turn, one at a time.
    """

    name: ClassVar[str] = "spec_bench"
    max_tokens: ClassVar[int] = 1024
    graded: ClassVar[bool] = False
    warm_ups: ClassVar[int] = 3

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        turns = field(row, "turns")
        if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
            raise BrokenRow("the field 'turns' is not a list of texts")
        return Problem(
            id=f"spec_bench-{field(row, 'question_id')}",
            question=turns[0],
            gold="",
            solution="",
            row=row,
            follow_ups=tuple(turns[1:]),
        )

    def grade(self, problem: Problem, output: str) -> Grade:
        return Grade(None, None, "not graded")
