"""GSM8K: grade-school word problems (Cobbe et al. 2021, arXiv 2110.14168)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from antiphon.eval.task import BrokenRow, Hub, Problem, field
from antiphon.eval.tasks.maths import MathsTask

_CALCULATION = re.compile(r"<<[^<>]*>>")


class GSM8K(MathsTask):
    """Rows hold `question` and `answer`: a worked solution, and its result after ``####``."""

    name: ClassVar[str] = "gsm8k"
    hub: ClassVar[Hub | None] = Hub("openai/gsm8k", "main", "test")
    max_tokens: ClassVar[int] = 400

    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        solution, mark, gold = str(field(row, "answer")).partition("####")
        if not mark:
            raise BrokenRow("the field 'answer' has no '####' before its result")
        gold = gold.strip()
        worked = f"{_CALCULATION.sub('', solution).strip()}\n\n\\boxed{{{gold}}}"
        return Problem(f"gsm8k-{index}", str(field(row, "question")), gold, worked, row)
