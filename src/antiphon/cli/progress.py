"""The progress line of an evaluation: share done, time left, running accuracy, speed."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from antiphon.eval.journal import Answer, Journal
from antiphon.eval.runner import Plan

EVERY = 50
"""Answers between two lines of a log that is no terminal."""


class Tally:
    """Counts answers, those of an earlier session among them, and shows where the run is."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self._console = Console(stderr=True)
        wanted = {problem.id for problem in plan.data.problems}
        done = [
            answer
            for answer in journal.answers.values()
            if answer.method in plan.methods
            and answer.seed in plan.seeds
            and answer.problem in wanted
        ]
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._total = plan.answers
        self._count = len(done)
        self._bar = self._progress.add_task(
            plan.task.name, total=plan.answers, completed=len(done), news=""
        )
        self._sums: dict[str, list[float]] = {}
        for answer in done:
            self._sum(answer)

    def add(self, answer: Answer) -> None:
        """Count one answer."""
        self._sum(answer)
        self._count += 1
        right, graded, tokens, seconds = self._sums[answer.method]
        accuracy = f"{right / graded:.1%} right, " if graded else ""
        news = f"{answer.method}: {accuracy}{tokens / max(seconds, 1e-9):.1f} tok/s"
        self._progress.update(self._bar, advance=1, news=news)
        if not self._console.is_terminal and (self._count % EVERY == 0):
            self._console.print(f"{self._count}/{self._total} {news}", highlight=False)

    def _sum(self, answer: Answer) -> None:
        sums = self._sums.setdefault(answer.method, [0, 0, 0, 0.0])
        sums[0] += answer.right is True
        sums[1] += answer.right is not None
        sums[2] += answer.tokens
        sums[3] += answer.seconds

    def __enter__(self) -> Tally:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if isinstance(error, KeyboardInterrupt):
            self._console.print("stopped; the same command goes on from here", highlight=False)
