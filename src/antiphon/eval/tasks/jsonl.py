"""Any JSONL file: one field holds the question, another the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from antiphon.eval.task import Problem, field
from antiphon.eval.tasks.maths import MathsTask


class JSONLines(MathsTask):
    """A user's own problems, graded as mathematics; equal text is equal, too.

    Args:
        question_field, answer_field: names of the fields.
    """

    name: ClassVar[str] = "jsonl"

    def __init__(self, question_field: str = "question", answer_field: str = "answer") -> None:
        self.question_field, self.answer_field = question_field, answer_field

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        gold = str(field(row, self.answer_field))
        _, _, result = gold.rpartition("####")
        return Problem(
            id=str(row.get("id") or f"row-{index}"),
            question=str(field(row, self.question_field)),
            gold=result.strip(),
            solution=gold,
            row=row,
        )
