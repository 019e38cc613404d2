"""Runs methods over a task's problems, slice by slice, and records every answer.

The methods take turns over slices of the problems, so that a drifting machine slows all of
them alike. Requests of one method are batched; each pass's time is split among its requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from antiphon.api import make_engine, needs_costs
from antiphon.drawing import derived_seed
from antiphon.engine import Engine
from antiphon.errors import UserError
from antiphon.eval.data import DataSet
from antiphon.eval.grade import Grade
from antiphon.eval.journal import Answer, Journal
from antiphon.eval.memory import peak_bytes, reset_peak
from antiphon.eval.prompting import Prompting
from antiphon.eval.task import Problem, Task
from antiphon.methods import Method
from antiphon.models.pair import ModelPair
from antiphon.params import SamplingParams
from antiphon.result import Result

SLICE_BATCHES = 4
"""A slice is this many batches: at its end requests run out, which costs every method alike."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do.

    Attributes:
        task, data, prompting: the problems and how they are put.
        methods: text form -> method, in the order of the report.
        seeds: one answer each to every problem; greedy runs have one seed.
        params: sampling parameters; their seed is replaced, problem by problem.
        batch: requests at once.
    """

    task: Task
    data: DataSet
    prompting: Prompting
    methods: Mapping[str, Method]
    seeds: tuple[int, ...]
    params: SamplingParams
    batch: int

    def __post_init__(self) -> None:
        if not self.methods:
            raise UserError("nothing to evaluate: name a --method")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise UserError("--seeds needs one or more numbers, each once")
        if self.params.greedy and len(self.seeds) > 1:
            raise UserError(
                "greedy answers are the same for every seed: give one seed, or a --temperature"
            )
        if self.batch < 1:
            raise UserError(f"--batch is {self.batch}: give a whole number >= 1")

    @property
    def answers(self) -> int:
        """How many answers the whole run has."""
        return len(self.methods) * len(self.seeds) * len(self.data.problems)

    def slices(self) -> Iterator[tuple[str, int, tuple[Problem, ...]]]:
        """Method, seed and problems of each stretch; every slice begins with another method."""
        size = SLICE_BATCHES * self.batch
        labels = list(self.methods)
        for turn, start in enumerate(range(0, len(self.data.problems), size)):
            first = turn % len(labels)
            for seed in self.seeds:
                for label in labels[first:] + labels[:first]:
                    yield label, seed, self.data.problems[start : start + size]


def run(
    plan: Plan, pair: ModelPair, journal: Journal, told: Callable[[Answer], None] = lambda _: None
) -> None:
    """Answer what the journal does not hold yet.

    Args:
        told: hears of every answer as it is recorded.

    Raises:
        UserError: before any work, where a method cannot run on these models.
    """
    costs = any(needs_costs(method) for method in plan.methods.values())
    engine = make_engine(pair, batch=plan.batch, costs=costs)
    for method in plan.methods.values():
        method.check(engine.models, plan.params)
    warm = False
    for label, seed, problems in plan.slices():
        left = [p for p in problems if (label, seed, p.id) not in journal.answers]
        if not left:
            continue
        if not warm:
            _warm_up(plan, pair, engine)
            warm = True
        reset_peak(pair.target.device)
        clock = 0.0
        for answer in answers(plan, pair, engine, label, seed, left):
            clock += answer.seconds
            journal.answer(answer)
            told(answer)
        peak = peak_bytes(pair.target.device)
        lap = {"method": label, "seed": seed, "answers": len(left), "seconds": clock}
        journal.lap(lap | {"peak_memory": peak})


@dataclass(slots=True)
class _Attempt:
    """A problem being answered, turn by turn."""

    problem: Problem
    prompts: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0


def answers(
    plan: Plan,
    pair: ModelPair,
    engine: Engine,
    label: str,
    seed: int,
    problems: Sequence[Problem],
) -> Iterator[Answer]:
    """Graded answers of one method, as they are finished; only passes are on the clock."""
    live: dict[str, _Attempt] = {}

    def ask(attempt: _Attempt) -> Answer | None:
        problem, said = attempt.problem, [result.text for result in attempt.results]
        text = plan.prompting.render(pair.tokenizer, plan.task, problem, said)
        attempt.prompts.append(text)
        ids = plan.prompting.encode(pair.tokenizer, text)
        # Each problem draws from a stream of its own, the same one under every method.
        params = _fitted(plan, pair, ids, derived_seed(seed, problem.id, len(said)))
        try:
            (name,) = engine.submit(ids, params, plan.methods[label])
        except UserError as error:
            grade = Grade(False if plan.task.graded else None, None, f"not run: {error}")
            return _record(label, seed, attempt, grade)
        live[name] = attempt
        return None

    for problem in problems:
        refused = ask(_Attempt(problem))
        if refused:
            yield refused
    while live:
        began = time.perf_counter()
        deltas = engine.step()
        seconds = time.perf_counter() - began
        finished = {d.request: d.result for d in deltas if d.result is not None}
        worked = {*engine.in_flight, *finished}
        for name in worked:
            live[name].seconds += seconds / len(worked)
        for name, result in finished.items():
            attempt = live.pop(name)
            attempt.results.append(result)
            if result.error is None and len(attempt.results) <= len(attempt.problem.follow_ups):
                refused = ask(attempt)
                if refused:
                    yield refused
                continue
            yield _record(label, seed, attempt, _graded(plan.task, attempt))


def _fitted(plan: Plan, pair: ModelPair, ids: Sequence[int], seed: int) -> SamplingParams:
    """The run's parameters; the output is as long as the models' context lets it be."""
    context = pair.target.context_length
    if pair.draft is not None:
        context = min(context, pair.draft.context_length)
    room = min(plan.params.max_tokens, context - len(ids))
    return replace(plan.params, seed=seed, max_tokens=max(room, 1))


def _graded(task: Task, attempt: _Attempt) -> Grade:
    error = attempt.results[-1].error
    if error is not None:
        return Grade(False if task.graded else None, None, f"run failed: {error}")
    try:
        return task.grade(attempt.problem, attempt.results[-1].text)
    except UserError:
        raise
    except Exception as failure:  # A grader's fault is a fact of the record, not the run's end.
        return Grade(False, None, f"grader failed: {type(failure).__name__}: {failure}"[:300])


def _record(label: str, seed: int, attempt: _Attempt, grade: Grade) -> Answer:
    statistics = [result.statistics for result in attempt.results]
    rounds = [r for result in attempt.results for r in result.rounds]
    lengths: list[int] = []
    notes: dict[str, float] = {}
    for r in rounds:
        if r.proposed:
            kept = r.provenance.count("draft")
            lengths += [0] * (kept + 1 - len(lengths))
            lengths[kept] += 1
        for name, value in r.notes.items():
            if isinstance(value, int | float):
                notes[name] = notes.get(name, 0) + value
    return Answer(
        method=label,
        seed=seed,
        problem=attempt.problem.id,
        prompts=tuple(attempt.prompts),
        outputs=tuple(result.text for result in attempt.results),
        gold=attempt.problem.gold,
        answer=grade.answer,
        right=grade.right,
        reason=grade.reason,
        seconds=attempt.seconds,
        tokens=sum(s.completion_tokens for s in statistics),
        prompt_tokens=sum(s.prompt_tokens for s in statistics),
        target_passes=sum(s.target_passes for s in statistics),
        draft_passes=sum(s.draft_passes for s in statistics),
        rounds=sum(s.num_spec_steps for s in statistics),
        drafted=sum(s.num_draft_tokens for s in statistics),
        accepted=sum(s.num_accepted_draft_tokens for s in statistics),
        accepted_lengths=tuple(lengths),
        finish_reason=attempt.results[-1].finish_reason if attempt.results else "error",
        notes=notes,
    )


def _warm_up(plan: Plan, pair: ModelPair, engine: Engine) -> None:
    """Answers nobody counts: the first passes of a process are slow."""
    problems = plan.data.problems[: max(1, plan.task.warm_ups)]
    short = replace(plan, params=replace(plan.params, max_tokens=8))
    for label in plan.methods:
        for problem in problems:
            params = plan if plan.task.warm_ups else short
            for _ in answers(params, pair, engine, label, 0, [problem]):
                pass
