"""MATH-500: 500 problems of MATH (Lightman et al. 2023, arXiv 2305.20050)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from antiphon.eval.task import Hub, Problem, field
from antiphon.eval.tasks.maths import MathsTask


class MATH500(MathsTask):
    """Rows hold `problem`, `solution` and `answer`, in LaTeX."""

    name: ClassVar[str] = "math500"
    hub: ClassVar[Hub | None] = Hub("HuggingFaceH4/MATH-500", None, "test")

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        return Problem(
            id=str(row.get("unique_id") or f"math500-{index}"),
            question=str(field(row, "problem")),
            gold=str(field(row, "answer")),
            solution=str(row.get("solution") or ""),
            row=row,
        )
