"""`antiphon eval`, `compare` and `calibrate`, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.run import antiphon
from tests.cli.test_bad_input import refused

from antiphon.eval.journal import read

EVAL = ("eval", "--task", "lab", "--dtype", "float32", "--batch", "4")


def outcomes(path: Path) -> dict[Any, Any]:
    return {key: (a.outputs, a.right, a.tokens) for key, a in read(path).answers.items()}


def test_one_call_gives_the_whole_table_with_its_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "run.jsonl"
    outcome = antiphon(*EVAL, "--limit", "6", "--method", "speculative:gamma=2", "--out", str(out))
    assert outcome.returncode == 0, outcome.stderr
    for word in ("autoregressive", "draft-only", "speculative", "speed-up", "accepted length"):
        assert word in outcome.stdout
    methods = {method for method, _, _ in read(out).answers}
    assert methods == {"autoregressive", "draft-only", "speculative", "speculative:gamma=2"}
    again = antiphon(*EVAL, "--limit", "6", "--method", "speculative:gamma=2", "--out", str(out))
    assert again.stdout == outcome.stdout


def test_flags_reach_the_methods_that_know_them(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    flags = ("--method", "speculative", "--method", "autoregressive", "--no-baselines")
    outcome = antiphon(*EVAL, "--limit", "1", *flags, "--gamma", "7", "--out", str(out))
    assert outcome.returncode == 0, outcome.stderr
    assert {method for method, _, _ in read(out).answers} == {
        "speculative:gamma=7",
        "autoregressive",
    }


def test_a_killed_run_goes_on_and_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    """SIGKILL in the middle of writing answers; then the same command again."""
    flags = (*EVAL, "--limit", "24", "--temperature", "0.7", "--seeds", "0,1")
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "antiphon", *flags, "--threads", "1", "--out", str(broken)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        for _ in range(1200):
            if broken.exists() and broken.read_bytes().count(b'"kind": "answer"') >= 5:
                break
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    killed = len(read(broken).answers)
    assert 5 <= killed < 144
    assert antiphon(*flags, "--out", str(broken)).returncode == 0
    assert antiphon(*flags, "--out", str(whole)).returncode == 0
    assert outcomes(broken) == outcomes(whole)
    assert len(read(broken).runs) == 2


def test_compare_writes_every_form_from_the_record(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    assert antiphon(*EVAL, "--limit", "4", "--out", str(out)).returncode == 0
    forms = {
        "--markdown": tmp_path / "table.md",
        "--html": tmp_path / "page.html",
        "--record": tmp_path / "record.json",
    }
    flags = [text for flag, path in forms.items() for text in (flag, str(path))]
    outcome = antiphon("compare", str(out), *flags, "--figures", str(tmp_path / "figures"))
    assert outcome.returncode == 0, outcome.stderr
    assert "| speculative |" in forms["--markdown"].read_text()
    assert forms["--html"].read_text().startswith("<!doctype html>")
    assert json.loads(forms["--record"].read_text())["kind"] == "evaluation"
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".svg", ".png"}
    assert "4 problems" in outcome.stdout


def test_rows_that_are_no_problems_are_said_and_recorded(tmp_path: Path) -> None:
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "no answer"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "run.jsonl"
    flags = ("--data", str(file), "--no-baselines", "--max-tokens", "8")
    outcome = antiphon("eval", "--task", "jsonl", *flags, "--out", str(out))
    assert outcome.returncode == 0, outcome.stderr
    assert "row 2 is left out: no field 'answer'" in outcome.stderr
    assert read(out).runs[0]["bad_rows"] == [{"id": "row 2", "reason": "no field 'answer'"}]


def test_a_profile_is_collected_and_used(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    outcome = antiphon(
        "calibrate", "--limit", "6", "--dtype", "float32", "--batch", "4", "--out", str(path)
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "target_entropy" in outcome.stdout
    used = antiphon("generate", "1 + 1?", "--profile", str(path), "--gamma", "auto")
    assert used.returncode == 0, used.stderr


BAD = [
    (["--task", "lap"], "choose lab"),
    (["--method", "spec"], "choose autoregressive"),
    (["--method", "speculative:gama=3"], "it has gamma"),
    (["--method", "speculative:gamma=x"], "whole number"),
    (["--method", "speculative:gamma"], "field=value"),
    (["--gamma", "3"], "drop it"),
    (["--method", "autoregressive", "--gamma", "3"], "drop it"),
    (["--limit", "0"], "--limit"),
    (["--batch", "0"], "--batch"),
    (["--seeds", "0,x"], "--seeds"),
    (["--seeds", "0,1"], "one seed"),
    (["--shots", "2", "--task", "jsonl", "--data", "DATA"], "--shots-from"),
    (["--shots-from", "DATA"], "--shots"),
    (["--question-field", "q"], "--task jsonl"),
    (["--task", "gsm8k", "--data", "none.jsonl"], "--data"),
    (["--task", "spec_bench"], "--data"),
    (["--draft", "ngram"], "drafter=ngram"),
    (["--temperature", "-1"], "temperature"),
    (["--profile", "none.json"], "--profile"),
]


@pytest.mark.parametrize(("flags", "fix"), BAD)
def test_bad_input_is_one_line_and_leaves_no_file(
    flags: list[str], fix: str, tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "?", "answer": "1"}\n')
    out = tmp_path / "run.jsonl"
    flags = [str(data) if flag == "DATA" else flag for flag in flags]
    refused(antiphon("eval", *flags, "--out", str(out)), fix)
    assert not out.exists()


def test_the_data_is_not_written_over(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    flags = ("--task", "jsonl", "--data", str(data), "--out", str(data))
    refused(antiphon("eval", *flags), "the same file")
    assert data.read_text() == '{"question": "1 + 1?", "answer": "2"}\n'


def test_a_run_with_other_settings_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    flags = (*EVAL, "--no-baselines", "--limit", "1", "--out", str(out))
    assert antiphon(*flags).returncode == 0
    refused(antiphon(*flags, "--max-tokens", "9"), "another --out")


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (["none.jsonl"], "check the path"),
        (["DATA"], "no record of a run"),
        (["DATA", "--gain", "0"], "--gain"),
    ],
)
def test_compare_refuses_what_is_no_run(flags: list[str], fix: str, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "?", "answer": "1"}\n')
    refused(antiphon("compare", *(str(data) if f == "DATA" else f for f in flags)), fix)


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (["--task", "gsm8k"], "--data"),
        (["--draft", "ngram"], "--draft PATH"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_calibrate_refuses_what_cannot_be(flags: list[str], fix: str, tmp_path: Path) -> None:
    refused(antiphon("calibrate", *flags, "--out", str(tmp_path / "profile.json")), fix)
