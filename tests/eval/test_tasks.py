"""Tasks read their rows, say what a broken one lacks, and grade."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import UserError
from antiphon.eval import data
from antiphon.eval.prompting import Prompting, unshown
from antiphon.eval.task import BrokenRow, Problem
from antiphon.eval.tasks import TASKS, JSONLines

GOOD: dict[str, tuple[dict[str, Any], str, str]] = {
    # task: a row, its gold answer, an output that is right
    "lab": ({"id": "a", "question": "1 + 1?", "answer": 2}, "2", "The answer is 2."),
    "gsm8k": ({"question": "1 + 1?", "answer": "1+1=<<1+1=2>>2\n#### 2"}, "2", "\\boxed{2}"),
    "svamp": ({"Body": "One egg.", "Question": "Eggs?", "Answer": 1.0}, "1", "1 egg"),
    "math500": ({"problem": "Half?", "answer": "\\frac{1}{2}"}, "\\frac{1}{2}", "\\boxed{0.5}"),
    "aime24": ({"problem": "?", "answer": "025"}, "25", "\\boxed{25}"),
    "amc23": ({"question": "?", "answer": 27.0}, "27", "\\boxed{27}"),
    "gaokao2023en": ({"question": "?", "answer": "$2$"}, "2", "\\boxed{2}"),
    "olympiadbench": ({"question": "?", "final_answer": ["$3$"]}, "3", "\\boxed{3}"),
    "jsonl": ({"question": "?", "answer": "4"}, "4", "It is 4."),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_row_becomes_a_problem_whose_right_answer_is_right(name: str) -> None:
    row, gold, output = GOOD[name]
    task = TASKS[name]()
    problem = task.problem(row, 0)
    assert problem.gold == gold
    assert task.grade(problem, output).right
    assert task.grade(problem, "The answer is 977.").right is False
    assert task.grade(problem, "").right is False


@pytest.mark.parametrize("name", GOOD)
def test_a_row_without_a_field_says_which(name: str) -> None:
    row, _, _ = GOOD[name]
    task = TASKS[name]()
    for field in row:
        if field in ("id", "Body"):
            continue
        with pytest.raises(BrokenRow, match=r"no field|not a list"):
            task.problem({key: value for key, value in row.items() if key != field}, 0)


def test_every_bundled_solution_is_graded_right_and_its_neighbours_is_not() -> None:
    task = TASKS["lab"]()
    problems = data.load(task, None, None).problems
    assert len(problems) == 1000
    assert all(task.grade(problem, problem.solution).right for problem in problems)
    shifted = pairwise(problems)
    assert all(task.grade(a, b.solution).right == (a.gold == b.gold) for a, b in shifted)


def test_gsm8k_solutions_read_as_outputs_are_right_with_and_without_the_mark() -> None:
    task = TASKS["gsm8k"]()
    row = {"question": "?", "answer": "She pays 5*3=<<5*3=15>>15 dollars.\n#### 1,215"}
    problem = task.problem(row, 0)
    assert task.grade(problem, str(row["answer"])).right
    assert task.grade(problem, problem.solution).right
    assert "<<" not in problem.solution


def test_bad_rows_are_named_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    lines = [
        json.dumps({"question": "1 + 1?", "answer": "#### 2"}),
        json.dumps({"question": "no answer"}),
        "{torn",
        "[1]",
        json.dumps({"question": "no mark", "answer": "2"}),
        json.dumps({"question": "2 + 2?", "answer": "#### 4"}),
    ]
    file.write_text("\n".join(lines) + "\n")
    found = data.load(TASKS["gsm8k"](), file, None)
    assert [problem.gold for problem in found.problems] == ["2", "4"]
    assert [row.id for row in found.bad] == ["row 2", "row 3", "row 4", "row 5"]
    assert "'answer'" in found.bad[0].reason
    assert "no JSON" in found.bad[1].reason


def test_the_digest_is_of_all_rows_whatever_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [json.dumps({"question": f"{i}?", "answer": str(i)}) for i in range(5)]
    file.write_text("\n".join(rows))
    task = JSONLines()
    some, every = data.load(task, file, 2), data.load(task, file, None)
    assert (len(some.problems), len(every.problems)) == (2, 5)
    assert some.digest == every.digest
    file.write_text("\n".join(rows[:-1]))
    assert data.load(task, file, None).digest != every.digest


@pytest.mark.parametrize("content", ["", "{}\n", "no json\n"])
def test_a_file_without_one_problem_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    with pytest.raises(UserError, match="holds no problem"):
        data.load(JSONLines(), file, None)


def test_a_task_without_file_and_hub_asks_for_a_file() -> None:
    with pytest.raises(UserError, match="--data"):
        data.load(TASKS["spec_bench"](), None, None)


def test_the_hub_is_asked_for_what_the_task_names(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load_dataset(path: str, config: str | None, split: str) -> list[dict[str, str]]:
        asked.append((path, config, split))
        return [{"question": "1 + 1?", "answer": "#### 2"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = data.load(TASKS["gsm8k"](), None, None)
    assert asked == [("openai/gsm8k", "main", "test")]
    assert found.problems[0].gold == "2"


def test_an_unreachable_hub_is_one_line_that_names_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datasets

    def load_dataset(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route\nmore lines")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError, match=r"no route.*--data FILE"):
        data.load(TASKS["gsm8k"](), None, None)


def test_a_dialogue_asks_its_second_turn_after_the_first_answer() -> None:
    task = TASKS["spec_bench"]()
    row = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}
    problem = task.problem(row, 0)
    said = [m["content"] for m in Prompting().messages(task, problem, ["A text."])]
    assert said == ["Write.", "A text.", "Again."]
    assert task.grade(problem, "anything").right is None


def test_worked_examples_are_no_problems() -> None:
    one, two = Problem("a", "How many?", "2", "", {}), Problem("b", "How much?", "3", "", {})
    assert unshown([one, two], [Problem("z", "How many?", "2", "", {})]) == (two,)


def test_system_prompt_shots_and_instruction_stand_where_they_belong() -> None:
    task = TASKS["gsm8k"]()
    row = {"question": "1 + 1?", "answer": "1+1=2\n#### 2"}
    shot, problem = task.problem(row, 0), task.problem(row | {"question": "2 + 2?"}, 1)
    prompting = Prompting(system="Be brief.", instruction="Go.", shots=(shot,))
    messages = prompting.messages(task, problem)
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert messages[0]["content"] == "Be brief."
    assert messages[1]["content"] == "1 + 1?\nGo."
    assert messages[2]["content"].endswith("\\boxed{2}")
    assert messages[3]["content"] == "2 + 2?\nGo."
    assert task.instruction in Prompting().messages(task, problem)[0]["content"]
