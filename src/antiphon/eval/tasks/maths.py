"""What the mathematics tasks share: the instruction and the grader."""

from __future__ import annotations

from typing import ClassVar

from antiphon.eval.grade import Grade
from antiphon.eval.graders import maths
from antiphon.eval.task import Problem, Task


class MathsTask(Task):
    """A task whose answer is a number or an expression."""

    instruction: ClassVar[str] = (
        "Please reason step by step, and put your final answer within \\boxed{}."
    )
    max_tokens: ClassVar[int] = 1024

    def grade(self, problem: Problem, output: str) -> Grade:
        return maths.grade(problem.gold, output)
