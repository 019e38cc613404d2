"""Nothing is lost and nothing is mixed: the file of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import UserError
from antiphon.eval.journal import Answer, Journal, read

RUN: dict[str, Any] = {"identity": {"task": "lab", "sampling": {"temperature": 0.0}}, "date": "-"}
ANSWER = Answer(
    method="autoregressive",
    seed=0,
    problem="p",
    prompts=("Ask – ünïcode\n",),
    outputs=("Say",),
    gold="1",
    answer=None,
    right=False,
    reason="no answer",
    seconds=0.5,
    tokens=3,
    prompt_tokens=2,
    target_passes=3,
    draft_passes=0,
    rounds=0,
    drafted=0,
    accepted=0,
    accepted_lengths=(),
    finish_reason="stop",
    notes={"fired": 2},
)


def write(path: Path, *problems: str, run: Mapping[str, Any] = RUN) -> None:
    with Journal(path, run) as journal:
        for problem in problems:
            journal.answer(replace(ANSWER, problem=problem))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    write(path, "a", "b")
    log = read(path)
    assert list(log.answers) == [("autoregressive", 0, "a"), ("autoregressive", 0, "b")]
    assert log.answers["autoregressive", 0, "a"] == replace(ANSWER, problem="a")


def test_a_second_session_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, "a")
    write(path, "b")
    log = read(path)
    assert len(log.runs) == 2
    assert [problem for _, _, problem in log.answers] == ["a", "b"]


@pytest.mark.parametrize("torn", ['{"kind": "answ', '{"kind"', "{", '{"kind": "lap"}'])
def test_a_torn_last_line_is_repaired(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "run.jsonl"
    write(path, "a")
    whole = path.read_text()
    path.write_text(whole + torn)
    write(path, "b")
    assert torn + "\n" not in path.read_text().removeprefix(whole)
    assert [problem for _, _, problem in read(path).answers] == ["a", "b"]


def test_a_file_cut_anywhere_can_be_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, "a", "b")
    content = path.read_bytes()
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        write(path, "a", "b")
        assert set(read(path).answers) == {("autoregressive", 0, "a"), ("autoregressive", 0, "b")}


def test_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, "a")
    before = path.read_bytes()
    other = {**RUN, "identity": {"task": "gsm8k", "sampling": {"temperature": 0.0}}}
    with pytest.raises(UserError, match=r"task 'lab', not 'gsm8k'.*another --out"):
        write(path, "b", run=other)
    assert path.read_bytes() == before


def test_two_processes_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path, RUN), pytest.raises(UserError, match="another process"):
        Journal(path, RUN)


@pytest.mark.parametrize(
    "content", ["no json\n", "[]\n", '{"kind": "odd"}\n', '{"kind": "answer"}\n', ""]
)
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(content + json.dumps({"kind": "lap"}) + "\n" if content else "")
    with pytest.raises(UserError, match=r"no record of a run|holds no run"):
        read(path)


@pytest.mark.parametrize("content", ["a user's notes", '{"question": "?"}', "x\ny", '{"kind'])
def test_no_file_of_another_kind_is_touched(tmp_path: Path, content: str) -> None:
    path = tmp_path / "precious.txt"
    path.write_text(content)
    if content == '{"kind':
        write(path, "a")  # A run that was killed while it wrote its very first line.
        assert len(read(path).answers) == 1
        return
    with pytest.raises(UserError, match="another --out"):
        write(path, "a")
    assert path.read_text() == content


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "none.jsonl")
