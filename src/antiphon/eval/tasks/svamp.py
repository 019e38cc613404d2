"""SVAMP: one-step word problems in varied wording (Patel et al. 2021, arXiv 2103.07191)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from antiphon.eval.task import Hub, Problem, field
from antiphon.eval.tasks.maths import MathsTask


class SVAMP(MathsTask):
    """Rows hold `Body`, `Question` and `Answer`."""

    name: ClassVar[str] = "svamp"
    hub: ClassVar[Hub | None] = Hub("ChilleD/SVAMP", None, "test")
    max_tokens: ClassVar[int] = 400

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        body = str(field(row, "Body")).strip()
        gap = " " if body.endswith((".", "?", "!")) else ". "
        gold = str(field(row, "Answer")).removesuffix(".0")
        solution = f"{row.get('Equation', '')} = \\boxed{{{gold}}}".removeprefix(" = ")
        question = f"{body}{gap}{field(row, 'Question')}"
        return Problem(str(row.get("ID") or f"svamp-{index}"), question, gold, solution, row)
