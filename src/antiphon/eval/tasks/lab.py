"""The bundled problems: arithmetic stories that the lab pair was trained to solve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from antiphon.eval.grade import Grade
from antiphon.eval.task import Problem, Task, field
from antiphon.lab.problems import final_answer


class Lab(Task):
    """Rows hold `id`, `question`, `solution` and `answer`, a whole number."""

    name: ClassVar[str] = "lab"
    max_tokens: ClassVar[int] = 144

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        return Problem(
            id=str(row.get("id") or f"lab-{index}"),
            question=str(field(row, "question")),
            gold=str(field(row, "answer")),
            solution=str(row.get("solution") or ""),
            row=row,
        )

    def grade(self, problem: Problem, output: str) -> Grade:
        answer = final_answer(output)
        if answer is None:
            return Grade(False, None, "no answer")
        right = str(answer) == problem.gold
        return Grade(right, str(answer), "right" if right else "wrong")
