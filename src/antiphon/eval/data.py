"""Rows of a task: from a file, from the bundle, or from the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.errors import UserError
from antiphon.eval.task import BrokenRow, Problem, Task


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no problem of the task: recorded, and left out of every figure.

    Attributes:
        id: its place, such as "row 7".
        reason: what it lacks.
    """

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DataSet:
    """A task's problems.

    Attributes:
        problems: in file order.
        bad: the rows that could not be read.
        source: file name, or hub path.
        digest: SHA-256 of all rows of the source, whatever the limit, first 16 hex digits:
            runs on other data do not compare.
    """

    problems: tuple[Problem, ...]
    bad: tuple[BadRow, ...]
    source: str
    digest: str


def load(task: Task, path: Path | None, limit: int | None) -> DataSet:
    """Read a task's problems, the first `limit` of them.

    Args:
        path: a JSONL file; None: the bundled problems (lab), or the hub.

    Raises:
        UserError: no file, no network, or not one good row.
    """
    if path is not None:
        source, lines = path.name, _file_lines(path)
    elif task.name == "lab":
        from antiphon.lab import data_path

        source, lines = "bundled test problems", _file_lines(data_path("test"))
    else:
        source, lines = _hub_lines(task)
    problems: list[Problem] = []
    bad: list[BadRow] = []
    ids: set[str] = set()
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    for index, line in enumerate(lines):
        if limit is not None and len(problems) + len(bad) >= limit:
            break
        try:
            row = _row(line)
            if not task.uses(row):
                continue
            problem = task.problem(row, index)
            if problem.id in ids:
                raise BrokenRow(f"the id {problem.id!r} comes twice")
        except BrokenRow as error:
            bad.append(BadRow(f"row {index + 1}", str(error)))
            continue
        ids.add(problem.id)
        problems.append(problem)
    if not problems:
        why = f": {bad[0].id}: {bad[0].reason}" if bad else ""
        raise UserError(f"{source}: holds no problem of the task {task.name!r}{why}: check --data")
    return DataSet(tuple(problems), tuple(bad), source, digest)


def _row(line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise BrokenRow(f"no JSON ({error})") from None
    if not isinstance(row, dict):
        raise BrokenRow("no JSON object")
    return row


def _file_lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8") as file:
            return [line.strip() for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}): check --data") from None


def _hub_lines(task: Task) -> tuple[str, list[str]]:
    hub = task.hub
    if hub is None:
        raise UserError(f"--task {task.name} needs --data FILE, a JSONL")
    try:
        from datasets import load_dataset
    except ImportError:
        raise UserError(
            f"--task {task.name} needs --data FILE, "
            "or the hub: install it with pip install 'antiphon[eval]'"
        ) from None
    try:
        rows = load_dataset(hub.path, hub.config, split=hub.split)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{hub.path}: not to be had from the hub ({first[:160]}): give --data FILE"
        ) from None
    return hub.path, [json.dumps(row, default=str) for row in rows]
