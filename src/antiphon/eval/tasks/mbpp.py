"""MBPP: write a Python function from one sentence and three tests."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Any, ClassVar

from antiphon.eval.grade import Grade
from antiphon.eval.graders.code import extract, grade_program, join
from antiphon.eval.task import BrokenRow, Hub, Problem, Task, field

_QUESTION = (
    "{text} Your code must pass these tests:\n\n```python\n{tests}\n```\n\n"
    "Answer in one ```python block."
)
_TEST_SPLIT = range(11, 511)


class MBPP(Task):
    """The 500 problems of MBPP's test split, `task_id` 11 to 510."""

    name: ClassVar[str] = "mbpp"
    hub: ClassVar[Hub | None] = Hub("google-research-datasets/mbpp", "full", "test")
    max_tokens: ClassVar[int] = 512

    def uses(self, row: Mapping[str, Any]) -> bool:
        """Whether a row belongs to the test split; a row without a number does."""
        number = row.get("task_id")
        try:
            return number is None or int(number) in _TEST_SPLIT
        except (TypeError, ValueError):
            return True

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        text, gold = str(field(row, "text")), str(field(row, "code")).replace("\r\n", "\n")
        tests = field(row, "test_list")
        if not isinstance(tests, list):
            raise BrokenRow("field 'test_list' is not a list")
        shown = "\n".join(part for part in (_setup(row), *map(str.strip, map(str, tests))) if part)
        return Problem(
            id=str(row.get("task_id", index)),
            question=_QUESTION.format(text=text.strip(), tests=shown),
            gold=gold,
            solution=f"```python\n{gold.strip()}\n```",
            row=row,
        )

    def grade(self, problem: Problem, output: str) -> Grade:
        tests = "\n".join(map(str, problem.row["test_list"]))
        code = extract(output, _called(tests))
        if code is None:
            return grade_program(None)
        # The set-up builds on the answer's classes, so it comes after them.
        return grade_program(join(code, _setup(problem.row), tests), answer=code)


def _setup(row: Mapping[str, Any]) -> str:
    """The lines that the tests need before them; mostly ""."""
    return str(row.get("test_setup_code") or "").replace("\r\n", "\n").strip()


def _called(tests: str) -> list[str]:
    """Names of the functions that tests call, Python's own left out."""
    try:
        tree = ast.parse(tests)
    except SyntaxError:
        return []
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = {call.id for call in calls if isinstance(call, ast.Name)}
    return sorted(name for name in names if not hasattr(builtins, name))
