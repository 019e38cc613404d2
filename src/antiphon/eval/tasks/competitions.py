"""Competition mathematics, as the Qwen2.5-Math evaluation set states it.

AIME 2024, AMC 2023, the Gaokao 2023 in English, and OlympiadBench's open-ended text problems
in English (He et al. 2024, arXiv 2402.14008).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from antiphon.eval.grade import Grade
from antiphon.eval.graders import maths
from antiphon.eval.task import BrokenRow, Hub, Problem, field
from antiphon.eval.tasks.maths import MathsTask


class AIME24(MathsTask):
    """Rows hold `problem` and `answer`, a whole number from 0 to 999."""

    name: ClassVar[str] = "aime24"
    hub: ClassVar[Hub | None] = Hub("HuggingFaceH4/aime_2024", None, "train")
    max_tokens: ClassVar[int] = 2048

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        gold = str(field(row, "answer"))
        # "025" and 25 are one answer.
        gold = str(int(gold)) if gold.isdigit() else gold
        solution = f"{row.get('solution') or ''}\n\n\\boxed{{{gold}}}".strip()
        return Problem(f"aime24-{row.get('id', index)}", _question(row), gold, solution, row)


class AMC23(MathsTask):
    """Rows hold `problem` and `answer`, a number."""

    name: ClassVar[str] = "amc23"
    hub: ClassVar[Hub | None] = Hub("math-ai/amc23", None, "test")
    max_tokens: ClassVar[int] = 2048

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        gold = str(field(row, "answer")).removesuffix(".0")
        solution = f"\\boxed{{{gold}}}"
        return Problem(f"amc23-{row.get('id', index)}", _question(row), gold, solution, row)


class Gaokao2023En(MathsTask):
    """Rows hold `question` and `answer`, in LaTeX."""

    name: ClassVar[str] = "gaokao2023en"

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        gold = str(field(row, "answer")).strip()
        gold = gold[1:-1] if gold.count("$") == 2 and gold[0] == gold[-1] == "$" else gold
        solution = f"\\boxed{{{gold}}}"
        return Problem(f"gaokao2023en-{index}", str(field(row, "question")), gold, solution, row)


class OlympiadBench(MathsTask):
    """Rows hold `question` and `final_answer`, a list; several answers stand in one entry."""

    name: ClassVar[str] = "olympiadbench"
    hub: ClassVar[Hub | None] = Hub("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train")
    max_tokens: ClassVar[int] = 2048

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        answers = field(row, "final_answer")
        if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
            raise BrokenRow("the field 'final_answer' is not a list of texts")
        gold = ", ".join(answers).replace("$", "")
        solutions = row.get("solution") or [""]
        worked = f"{solutions[0]}\n\n\\boxed{{{gold}}}".strip()
        return Problem(
            f"olympiadbench-{row.get('id', index)}", str(field(row, "question")), gold, worked, row
        )

    def grade(self, problem: Problem, output: str) -> Grade:
        """Several answers may come in any order."""
        grade = super().grade(problem, output)
        if grade.right or not problem.row.get("is_multiple_answer") or grade.answer is None:
            return grade
        as_set = maths.grade(f"\\{{{problem.gold}\\}}", f"\\boxed{{\\{{{grade.answer}\\}}}}")
        return replace(as_set, answer=grade.answer) if as_set.right else grade


def _question(row: Mapping[str, Any]) -> str:
    return str(row.get("problem") or field(row, "question"))
