"""What a race is run on."""

from __future__ import annotations

import json
from pathlib import Path

from antiphon.errors import UserError


def load_prompts(task: str, data: Path | None, limit: int) -> list[str]:
    """The first `limit` questions of the bundled test problems, or of a JSONL file.

    Raises UserError for an unknown task, a missing file or a line without a question.
    """
    if task == "lab" and data is None:
        from antiphon.lab import problems

        return [problem.question for problem in problems("test")[:limit]]
    if data is None:
        raise UserError(f"--task {task} needs --data FILE, a JSONL with a 'question' in each line")
    if not data.is_file():
        raise UserError(f"{data}: no such file: check --data")
    questions: list[str] = []
    with data.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if len(questions) == limit:
                break
            try:
                questions.append(str(json.loads(line)["question"]))
            except (ValueError, KeyError, TypeError):
                raise UserError(
                    f"{data}, line {number}: no JSON object with a 'question'"
                ) from None
    if not questions:
        raise UserError(f"{data}: holds no questions")
    return questions
