"""Runs on the bundled pair: resumed, batched, seeded and broken ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from antiphon.errors import UserError
from antiphon.eval import data
from antiphon.eval.data import DataSet
from antiphon.eval.grade import Grade
from antiphon.eval.graders.code import grade_program
from antiphon.eval.journal import Answer, Journal, read
from antiphon.eval.prompting import Prompting
from antiphon.eval.runner import Plan, run
from antiphon.eval.sandbox import Limits
from antiphon.eval.task import Problem, Task
from antiphon.eval.tasks import TASKS
from antiphon.eval.tasks.lab import Lab
from antiphon.methods import Autoregressive, DraftOnly, Method, Speculative
from antiphon.models.pair import LoadOptions, ModelPair, load_pair
from antiphon.params import SamplingParams

METHODS: dict[str, Method] = {
    "autoregressive": Autoregressive(),
    "draft-only": DraftOnly(),
    "speculative": Speculative(),
}
TIMES = {"seconds": 0.0}


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return load_pair(options=LoadOptions(dtype="float32"))


def plan(limit: int = 3, task: Task | None = None, **fields: Any) -> Plan:
    task = task or TASKS["lab"]()
    settings: dict[str, Any] = {
        "task": task,
        "data": data.load(Lab(), None, limit),
        "prompting": Prompting(),
        "methods": METHODS,
        "seeds": (0,),
        "params": SamplingParams(max_tokens=60),
        "batch": 2,
    }
    return Plan(**settings | fields)


def header(plan: Plan) -> dict[str, Any]:
    return {"identity": {"task": plan.task.name, "temperature": plan.params.temperature}}


def answers(plan: Plan, pair: ModelPair, path: Path) -> dict[Any, Answer]:
    with Journal(path, header(plan)) as journal:
        run(plan, pair, journal)
    return {key: replace(a, **TIMES) for key, a in read(path).answers.items()}


def test_every_method_answers_every_problem_and_greedy_ones_agree(
    pair: ModelPair, tmp_path: Path
) -> None:
    found = answers(plan(), pair, tmp_path / "run.jsonl")
    assert len(found) == 9
    for (method, seed, problem), answer in found.items():
        if method == "speculative":
            assert answer.outputs == found["autoregressive", seed, problem].outputs
            assert answer.accepted <= answer.drafted
            assert sum(answer.accepted_lengths) == answer.rounds
        if method == "draft-only":
            assert answer.target_passes == 0
            assert answer.draft_passes == answer.tokens
        assert answer.prompts[0].startswith("<|user|>")
    laps = read(tmp_path / "run.jsonl").laps
    assert sum(lap["answers"] for lap in laps) == 9


def test_an_interrupted_run_ends_as_an_unbroken_one(pair: ModelPair, tmp_path: Path) -> None:
    sampled = plan(limit=4, params=SamplingParams(max_tokens=40, temperature=0.7), seeds=(0, 1))
    whole = answers(sampled, pair, tmp_path / "whole.jsonl")
    path = tmp_path / "broken.jsonl"

    class StopError(Exception):
        pass

    for stop_after in (1, 5, 6):
        heard = 0

        def told(_: Answer, stop_after: int = stop_after) -> None:
            nonlocal heard
            heard += 1
            if heard == stop_after:
                raise StopError

        with pytest.raises(StopError), Journal(path, header(sampled)) as journal:
            run(sampled, pair, journal, told)
    assert answers(sampled, pair, path) == whole


def test_answers_do_not_depend_on_the_batch(pair: ModelPair, tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.7)
    alone = answers(plan(limit=5, params=params, batch=1), pair, tmp_path / "1.jsonl")
    many = answers(plan(limit=5, params=params, batch=5), pair, tmp_path / "5.jsonl")
    assert {k: a.outputs for k, a in alone.items()} == {k: a.outputs for k, a in many.items()}


def test_seeds_and_problems_have_streams_of_their_own(pair: ModelPair, tmp_path: Path) -> None:
    twins = data.load(Lab(), None, 1).problems[0]
    both = DataSet((twins, replace(twins, id="twin")), (), "two", "-")
    hot = SamplingParams(max_tokens=30, temperature=2.0)
    methods = {"autoregressive": Autoregressive()}
    found = answers(
        plan(data=both, params=hot, seeds=(0, 1), methods=methods), pair, tmp_path / "run.jsonl"
    )
    assert len({answer.outputs for answer in found.values()}) == 4


def test_shares_of_time_add_up_to_the_time_of_all_passes(pair: ModelPair, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path, header(plan())) as journal:
        run(plan(), pair, journal)
    log = read(path)
    for method in METHODS:
        shares = sum(a.seconds for a in log.answers.values() if a.method == method)
        laps = sum(lap["seconds"] for lap in log.laps if lap["method"] == method)
        assert shares == pytest.approx(laps)


class Failing(Lab):
    """A grader with a fault, and a dialogue."""

    name: ClassVar[str] = "failing"

    def grade(self, problem: Problem, output: str) -> Grade:
        raise ZeroDivisionError("of the grader")


def test_a_failing_grader_is_recorded_and_the_run_goes_on(pair: ModelPair, tmp_path: Path) -> None:
    found = answers(plan(task=Failing()), pair, tmp_path / "run.jsonl")
    assert len(found) == 9
    assert all(a.right is False and "ZeroDivisionError" in a.reason for a in found.values())


HOSTILE = {
    "loops": "while True:\n    pass",
    "forks": "import os, time\nfor _ in range(300):\n    if not os.fork():\n        time.sleep(60)",
    "fills": "with open('x', 'wb') as f:\n    while True:\n        f.write(bytes(2**20))",
    "calls": "import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=1)",
    "eats": "x = []\nwhile True:\n    x.append(bytearray(2**24))",
    "quits": "import os\nos._exit(0)",
    "chatters": "while True:\n    print('x' * 10000)",
}


class Hostile(Lab):
    """A code task whose every answer attacks."""

    name: ClassVar[str] = "hostile"

    def grade(self, problem: Problem, output: str) -> Grade:
        return grade_program(HOSTILE[problem.gold], Limits(wall_seconds=3, cpu_seconds=1))


def test_hostile_code_is_recorded_and_the_run_goes_on(pair: ModelPair, tmp_path: Path) -> None:
    problems = data.load(Lab(), None, len(HOSTILE)).problems
    armed = tuple(replace(p, gold=name) for p, name in zip(problems, HOSTILE, strict=True))
    attacked = plan(
        task=Hostile(),
        data=DataSet(armed, (), "hostile", "-"),
        methods={"draft-only": DraftOnly()},
        params=SamplingParams(max_tokens=4),
    )
    found = answers(attacked, pair, tmp_path / "run.jsonl")
    assert len(found) == len(HOSTILE)
    for answer in found.values():
        assert not answer.right, answer.gold
        assert answer.reason


def test_a_dialogue_reads_its_own_first_answer(pair: ModelPair, tmp_path: Path) -> None:
    problem = replace(data.load(Lab(), None, 1).problems[0], follow_ups=("And 1 more?",))
    talk = plan(data=DataSet((problem,), (), "talk", "-"))
    for answer in answers(talk, pair, tmp_path / "run.jsonl").values():
        assert len(answer.prompts) == len(answer.outputs) == 2
        assert answer.outputs[0] in answer.prompts[1]
        assert "And 1 more?" in answer.prompts[1]


def test_a_prompt_beyond_the_context_is_recorded(pair: ModelPair, tmp_path: Path) -> None:
    first, second = data.load(Lab(), None, 2).problems
    long = replace(first, question="1 " * 2000)
    found = answers(
        plan(data=DataSet((long, second), (), "long", "-")), pair, tmp_path / "run.jsonl"
    )
    assert len(found) == 6
    refused = found["autoregressive", 0, long.id]
    assert refused.right is False
    assert "context" in refused.reason


def test_a_plan_that_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="nothing to evaluate"):
        plan(methods={})
    with pytest.raises(UserError, match="same for every seed"):
        plan(seeds=(0, 1))
    with pytest.raises(UserError, match="each once"):
        plan(seeds=(0, 0), params=SamplingParams(temperature=1.0))
    with pytest.raises(UserError, match="--batch"):
        plan(batch=0)


def slices(limit: int, batch: int, methods: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    chosen: Mapping[str, Method] = {name: METHODS[name] for name in methods}
    for label, seed, problems in plan(limit=limit, batch=batch, methods=chosen).slices():
        yield label, seed, len(problems)


def test_methods_take_turns_and_each_slice_begins_with_another() -> None:
    order = list(slices(9, 1, ["autoregressive", "speculative"]))
    assert [label for label, _, _ in order] == [
        *("autoregressive", "speculative"),
        *("speculative", "autoregressive"),
        *("autoregressive", "speculative"),
    ]
    assert sum(size for label, _, size in order if label == "speculative") == 9
