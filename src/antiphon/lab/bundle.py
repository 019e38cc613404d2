"""Writes the held-out problems that ship with the package; the same bytes every time."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from antiphon.lab.problems import Problem, problem

COUNTS = {"test": 1000, "calibration": 500, "unseen": 200}


def draw(split: str, count: int) -> list[Problem]:
    """The first `count` problems of a split whose questions all differ."""
    found: dict[str, Problem] = {}
    index = 0
    while len(found) < count:
        drawn = problem(split, index)
        found.setdefault(drawn.question, drawn)
        index += 1
    return list(found.values())


def write_data(folder: Path) -> None:
    """Writes `test.jsonl`, `calibration.jsonl` and `unseen.jsonl` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in COUNTS.items():
        lines = [json.dumps(asdict(p), ensure_ascii=False) for p in draw(split, count)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
