from __future__ import annotations

import pytest

from antiphon.eval.graders.code import extract, grade_program, join
from antiphon.eval.sandbox import Limits
from antiphon.eval.task import BrokenRow
from antiphon.eval.tasks.humaneval import HumanEval
from antiphon.eval.tasks.mbpp import MBPP

LIMITS = Limits(wall_seconds=5, cpu_seconds=1)
RIGHT = "def twice(x):\n    return 2 * x\n"
WRONG = "def twice(x):\n    return 3 * x\n"
PROMPT = 'import math\n\n\ndef twice(x):\n    """Doubles x."""\n'

ROW = {
    "task_id": "Toy/0",
    "prompt": 'def one():\n    return 1\n\n\ndef twice(x):\n    """Doubles x."""\n',
    "entry_point": "twice",
    "canonical_solution": "    return 2 * x * one()\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n",
}
MBPP_ROW = {
    "task_id": 11,
    "text": "Write a function to double the value of a box.",
    "code": "class Box:\r\n\tdef __init__(self, v):\r\n\t\tself.v = v\r\n"
    "def twice(b):\r\n\treturn 2 * b.v",
    "test_setup_code": "box = Box(3)\r\n",
    "test_list": ["assert twice(box) == 6", "assert twice(Box(0)) == 0"],
}


def fence(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}```"


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (fence(RIGHT), RIGHT),
        (f"Here it is:\n\n{fence(RIGHT)}\nIt doubles x.", RIGHT),
        (fence(RIGHT, ""), RIGHT),
        (fence(RIGHT, "Python3"), RIGHT),
        (fence(RIGHT).replace("\n", "\r\n"), RIGHT),
        ("```python\n" + RIGHT, RIGHT),  # cut off before the closing fence
        (fence(WRONG) + "\nNo, better:\n" + fence(RIGHT), RIGHT),
        (fence(RIGHT) + "\nUse it so:\n" + fence("print(twice(2))\n"), RIGHT),
        (fence(RIGHT) + "\nCut off:\n```python\ndef twice(x):\n    return (", RIGHT),
        (fence(RIGHT) + "\nIt prints:\n" + fence("4\n", "text"), RIGHT),
        (fence("pip install x\n", "bash") + "\n" + fence(RIGHT), RIGHT),
        ("1. So:\n\n   ```python\n   def twice(x):\n       return 2 * x\n   ```", RIGHT),
        (fence("twice = lambda x: 2 * x\n"), "twice = lambda x: 2 * x\n"),
        (RIGHT, RIGHT),
        (" " + RIGHT, RIGHT),
        (f"Sure, here's the function:\n\n{RIGHT}\nIt's simple, isn't it?", RIGHT),
        ("import math\n\n" + RIGHT + "\nThat's all.", "import math\n\n" + RIGHT),
        ("    return 2 * x\n", PROMPT + "    return 2 * x\n"),
        ("    return 2 * x\n\n\nprint(twice(3))\n", PROMPT + "    return 2 * x\n"),
        ("return 2 * x", PROMPT + "    return 2 * x\n"),
        ("y = x\n    return 2 * y", PROMPT + "    y = x\n    return 2 * y\n"),
        (fence("    return 2 * x\n"), PROMPT + "    return 2 * x\n"),
        (fence("y = x\nreturn 2 * y\n"), PROMPT + "    y = x\n    return 2 * y\n"),
        ("I do not know how to do that.", None),
        ("yes", None),
        ("", None),
        ("``````", None),
    ],
)
def test_code_is_found_in_an_output(output: str, code: str | None) -> None:
    found = extract(output, ["twice"], PROMPT)
    assert (found and found.rstrip()) == (code and code.rstrip())


@pytest.mark.parametrize("output", ["```python\n\0```", "def f(" * 3000, "\udcff", "`" * 5000])
def test_no_output_breaks_the_extraction(output: str) -> None:
    extract(output, ["f"], PROMPT)


def test_imports_from_the_future_come_first() -> None:
    program = join("import math", "from __future__ import annotations\nx = 1")
    assert program.startswith("from __future__ import annotations\n")
    assert program.count("__future__") == 1


@pytest.mark.parametrize(
    ("code", "right", "reason"),
    [
        (RIGHT, True, "right"),
        (WRONG, False, "wrong: AssertionError"),
        ("def twice(x):\n    return y\n", False, "error: NameError: name 'y' is not defined"),
        ("def twice(x:\n", False, "error: SyntaxError"),
        ("exit(0)\n", False, "exit before the end"),
        ("import sys\nsys.exit()\n", False, "exit before the end"),
        ("import os\nos._exit(0)\n", False, "exit before the end"),
        ("def twice(x):\n    raise SystemExit(0)\n", False, "exit before the end"),
        ("def twice(x):\n    while True: pass\n", False, "timeout: CPU time"),
        (RIGHT + "if __name__ == '__main__':\n    print(input())\n", True, "right"),
        ("import numpy as np\ndef twice(x):\n    return int(np.add(x, x))\n", True, "right"),
        ("", False, "no code"),
    ],
)
def test_a_program_is_right_when_its_tests_pass(code: str, right: bool, reason: str) -> None:
    program = code and join(code, "assert twice(2) == 4")
    grade = grade_program(program, LIMITS)
    assert grade.right is right
    assert grade.reason.startswith(reason)


def test_humaneval_grades_what_a_model_writes() -> None:
    task = HumanEval()
    problem = task.problem(ROW, 0)
    assert problem.id == "Toy/0"
    assert "Doubles x." in problem.question
    assert "check" not in problem.question
    assert task.grade(problem, problem.solution).right
    assert task.grade(problem, problem.gold).right
    # The helper above the function need not be repeated.
    assert task.grade(problem, fence("def twice(x):\n    return x + x * one()\n")).right
    wrong = task.grade(problem, fence(WRONG))
    assert (wrong.right, wrong.reason) == (False, "wrong: AssertionError")
    assert wrong.answer is not None
    assert wrong.answer.strip() == WRONG.strip()
    assert task.grade(problem, "I cannot.").reason == "no code"
    with pytest.raises(BrokenRow):
        task.problem({**ROW, "test": ""}, 0)


def test_mbpp_shows_its_tests_and_honours_their_set_up() -> None:
    task = MBPP()
    problem = task.problem(MBPP_ROW, 0)
    assert problem.id == "11"
    for line in ("box = Box(3)", *MBPP_ROW["test_list"]):
        assert line in problem.question
    assert task.grade(problem, problem.solution).right
    assert not task.grade(problem, problem.solution.replace("2 *", "3 *")).right
    with pytest.raises(BrokenRow):
        task.problem({**MBPP_ROW, "test_list": "assert True"}, 0)


def test_mbpp_uses_the_rows_of_its_test_split() -> None:
    task = MBPP()
    used = [number for number in range(1, 975) if task.uses({"task_id": number})]
    assert (used[0], used[-1], len(used)) == (11, 510, 500)
