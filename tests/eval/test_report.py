"""The table says what the answers say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.eval.test_journal import ANSWER

from antiphon.errors import UserError
from antiphon.eval import layout
from antiphon.eval.figures import figures, save, svg
from antiphon.eval.journal import Answer, Journal, read
from antiphon.eval.page import page
from antiphon.eval.report import Table, table_from_json, tables

RUN: dict[str, Any] = {
    "identity": {"task": "lab", "sampling": {"temperature": 0.7, "max_tokens": 60}},
    "source": "made up",
    "bad_rows": [{"id": "row 3", "reason": "no field"}],
    "batch": 4,
    "pair": "big + small",
    "machine": "this one",
    "command": "antiphon eval <...>",
    "date": "2026-01-01",
}


def made(method: str, problem: int, seed: int, right: bool, seconds: float) -> Answer:
    drafts = method == "speculative"
    return replace(
        ANSWER,
        method=method,
        problem=f"p{problem}",
        seed=seed,
        right=right,
        reason="right" if right else "wrong",
        seconds=seconds,
        tokens=10,
        target_passes=4 if drafts else 10,
        draft_passes=12 if drafts else 0,
        rounds=4 if drafts else 0,
        drafted=12 if drafts else 0,
        accepted=6 if drafts else 0,
        accepted_lengths=(1, 1, 1, 1) if drafts else (),
        notes={},
    )


def answers() -> list[Answer]:
    """Twelve problems, two seeds: the target is right on 8 of them, the draft on 4."""
    found = []
    for problem in range(12):
        for seed in (0, 1):
            found += [
                made("autoregressive", problem, seed, problem < 8, 1.0),
                made("draft-only", problem, seed, problem < 4, 0.25),
                made("speculative", problem, seed, problem < 8, 0.5),
            ]
    return found


def run_of(path: Path, content: list[Answer], **changes: Any) -> Path:
    with Journal(path, RUN | changes) as journal:
        for answer in content:
            journal.answer(answer)
        journal.lap({"method": "speculative", "peak_memory": 2**30, "seconds": 1.0})
    return path


def table(path: Path, content: list[Answer], **changes: Any) -> Table:
    (found,) = tables([read(run_of(path, content, **changes))])
    return found


def test_rows_hold_what_the_answers_hold(tmp_path: Path) -> None:
    found = table(tmp_path / "run.jsonl", answers())
    target, draft, exact = found.rows
    assert [row.method for row in found.rows] == ["autoregressive", "draft-only", "speculative"]
    assert found.problems == 12
    assert target.accuracy
    assert target.accuracy.value == pytest.approx(8 / 12)
    assert target.difference is None
    assert target.speed_up is None
    assert draft.difference
    assert draft.difference.value == pytest.approx(-4 / 12)
    assert draft.difference.low < draft.difference.value < draft.difference.high < 0
    assert exact.difference
    assert exact.difference.value == 0
    assert exact.speed_up
    assert exact.speed_up.value == pytest.approx(2.0)
    assert exact.time_ratio
    assert exact.time_ratio.value == pytest.approx(2.0)
    assert exact.tokens_per_second == pytest.approx(20.0)
    assert exact.seconds_per_problem == pytest.approx(0.5)
    assert exact.accepted_length == pytest.approx(1 + 6 / 4)
    assert exact.target_passes == pytest.approx(0.4)
    assert exact.histogram == (0.25, 0.25, 0.25, 0.25)
    assert exact.peak_memory == 2**30
    assert found.remarks == ("1 rows of the data are no problems and were left out",)


def test_every_difference_and_ratio_is_written_with_its_interval(tmp_path: Path) -> None:
    text = layout.markdown(table(tmp_path / "run.jsonl", answers()))
    exact = next(line for line in text.splitlines() if line.startswith("| speculative"))
    assert "+0.0 (+0.0 to +0.0)" in exact
    assert "2.00 (2.00 to 2.00)" in exact
    assert "temperature 0.7" in text
    assert "`antiphon eval <...>`" in text


def test_problems_that_a_method_has_not_answered_are_left_out_for_all(tmp_path: Path) -> None:
    partly = [a for a in answers() if (a.method, a.problem, a.seed) != ("draft-only", "p0", 1)]
    found = table(tmp_path / "run.jsonl", partly)
    assert found.problems == 11
    assert all(row.answers == 22 for row in found.rows)
    assert "1 problems are left out: not all answered" in found.remarks


def test_missing_baselines_are_said(tmp_path: Path) -> None:
    alone = [a for a in answers() if a.method == "speculative"]
    found = table(tmp_path / "run.jsonl", alone)
    assert found.rows[0].difference is None
    assert found.rows[0].speed_up is None
    assert any("--method autoregressive" in remark for remark in found.remarks)
    assert any("draft-only" in remark for remark in found.remarks)


def test_runs_of_one_identity_share_a_table_and_others_have_their_own(tmp_path: Path) -> None:
    half = [a for a in answers() if a.method != "speculative"]
    rest = [a for a in answers() if a.method == "speculative"]
    other = {"task": "lab", "sampling": {"temperature": 0.0, "max_tokens": 60}}
    logs = [
        read(run_of(tmp_path / "a.jsonl", half)),
        read(run_of(tmp_path / "b.jsonl", rest)),
        read(run_of(tmp_path / "c.jsonl", answers(), identity=other)),
    ]
    first, second = tables(logs)
    assert len(first.rows) == len(second.rows) == 3
    assert first.rows[2].speed_up
    assert second.temperature == 0.0


def test_the_same_method_of_two_files_is_told_apart(tmp_path: Path) -> None:
    logs = [read(run_of(tmp_path / f"{name}.jsonl", answers())) for name in ("a", "b")]
    (found,) = tables(logs)
    assert [row.method for row in found.rows if "speculative" in row.method] == [
        "speculative",
        "speculative (b)",
    ]


def test_speeds_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    half = [a for a in answers() if a.method != "speculative"]
    rest = [a for a in answers() if a.method == "speculative"]
    logs = [
        read(run_of(tmp_path / "a.jsonl", half)),
        read(run_of(tmp_path / "b.jsonl", rest, machine="another")),
    ]
    (found,) = tables(logs)
    assert all(row.speed_up is None for row in found.rows)
    assert found.rows[2].difference


def test_runs_without_a_common_problem_are_refused(tmp_path: Path) -> None:
    apart = [a for a in answers() if (a.method == "autoregressive") == (a.problem == "p0")]
    with pytest.raises(UserError, match="share no problem"):
        table(tmp_path / "run.jsonl", apart)


def test_a_table_survives_json(tmp_path: Path) -> None:
    found = table(tmp_path / "run.jsonl", answers())
    assert table_from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_speed_only_task_has_no_accuracy(tmp_path: Path) -> None:
    ungraded = [replace(a, right=None, reason="not graded") for a in answers()]
    found = table(tmp_path / "run.jsonl", ungraded)
    assert all(row.accuracy is None and row.difference is None for row in found.rows)
    assert "right" not in layout.markdown(found)
    assert list(figures(found)) == ["accepted"]


def test_figures_are_drawn_and_the_same_every_time(tmp_path: Path) -> None:
    found = table(tmp_path / "run.jsonl", answers())
    drawn = figures(found)
    assert list(drawn) == ["frontier", "accepted"]
    for figure in drawn.values():
        assert ElementTree.fromstring(svg(figure)).tag.endswith("svg")
    assert svg(figures(found)["frontier"]) == svg(figures(found)["frontier"])
    files = save(found, tmp_path / "figures", "lab")
    assert len(files) == 4
    assert all(file.stat().st_size > 1000 for file in files)


def test_the_page_is_self_contained_and_escapes(tmp_path: Path) -> None:
    text = page([table(tmp_path / "run.jsonl", answers())])
    assert "antiphon eval &lt;...&gt;" in text
    assert text.count("<svg") == 2
    assert "<script" not in text
    assert "<link" not in text
    assert 'src="http' not in text
