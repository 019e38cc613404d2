"""What a task is: rows become problems, outputs become grades."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from antiphon.eval.grade import Grade


class BrokenRow(ValueError):  # noqa: N818 - it names a row, not a fault of ours
    """A row that cannot become a problem; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a task.

    Attributes:
        id: unique in the task; runs are paired by it.
        question: the user's turn.
        gold: the reference answer, as the task's grader reads it.
        solution: a worked solution that ends in the answer, for few-shot prompts; may be "".
        row: the source row.
        follow_ups: the user's further turns, each asked after the answer to the one before.
    """

    id: str
    question: str
    gold: str
    solution: str
    row: Mapping[str, Any]
    follow_ups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a task's rows are on the Hugging Face hub.

    Attributes:
        path, config, split: as `datasets.load_dataset` takes them.
    """

    path: str
    config: str | None
    split: str


class Task(abc.ABC):
    """A task. Class attributes describe it; subclasses read rows and grade outputs.

    Attributes:
        name: on the command line.
        hub: where its rows are when no file is given; None: a file is needed.
        instruction: what is asked below every question, unless the user says otherwise.
        max_tokens: longest output, unless the user says otherwise.
        stop: stop strings beside the end token.
        graded: whether outputs have a right and a wrong.
        warm_ups: answers that are written and not counted before the clock runs.
    """

    name: ClassVar[str]
    hub: ClassVar[Hub | None] = None
    instruction: ClassVar[str] = ""
    max_tokens: ClassVar[int] = 512
    stop: ClassVar[tuple[str, ...]] = ()
    graded: ClassVar[bool] = True
    warm_ups: ClassVar[int] = 0

    def uses(self, row: Mapping[str, Any]) -> bool:
        """Whether a row belongs to the task's test split; the others are left out."""
        return True

    @abc.abstractmethod
    def problem(self, row: Mapping[str, Any], index: int) -> Problem:
        """Read row number `index` (from 0); raises BrokenRow."""

    @abc.abstractmethod
    def grade(self, problem: Problem, output: str) -> Grade:
        """Judge an output; never raises."""


def field(row: Mapping[str, Any], name: str) -> Any:
    """A field of a row; raises BrokenRow where it is missing or empty."""
    value = row.get(name)
    if value is None or value == "":
        raise BrokenRow(f"no field {name!r}")
    return value
