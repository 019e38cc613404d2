"""HumanEval: finish a Python function; hidden tests judge it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from antiphon.eval.grade import Grade
from antiphon.eval.graders.code import extract, grade_program, join
from antiphon.eval.task import Hub, Problem, Task, field

_QUESTION = (
    "Complete the following Python function. Answer with the whole function, with the imports it"
    " needs, in one ```python block.\n\n```python\n{prompt}\n```"
)


class HumanEval(Task):
    """The 164 problems of HumanEval."""

    name: ClassVar[str] = "humaneval"
    hub: ClassVar[Hub | None] = Hub("openai/openai_humaneval", None, "test")
    max_tokens: ClassVar[int] = 512

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        prompt, gold = str(field(row, "prompt")), str(field(row, "canonical_solution"))
        for name in ("test", "entry_point"):
            field(row, name)
        return Problem(
            id=str(row.get("task_id", index)),
            question=_QUESTION.format(prompt=prompt.strip("\n")),
            gold=gold,
            solution=f"```python\n{(prompt + gold).strip()}\n```",
            row=row,
        )

    def grade(self, problem: Problem, output: str) -> Grade:
        prompt, name = str(problem.row["prompt"]), str(problem.row["entry_point"])
        code = extract(output, [name], prompt)
        if code is None:
            return grade_program(None)
        # The imports and helpers above the function, which an answer may leave out.
        above = re.split(rf"^def +{re.escape(name)}\b", prompt, maxsplit=1, flags=re.M)[0]
        program = join(above, code, str(problem.row["test"]), f"check({name})")
        return grade_program(program, answer=code)
