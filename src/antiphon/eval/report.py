"""One table of a comparison: quality and speed of every method, each with its interval."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from antiphon.errors import UserError
from antiphon.eval import statistics as st
from antiphon.eval.journal import Answer, Log
from antiphon.eval.statistics import Estimate, Matrix

TARGET, DRAFT, EXACT = "autoregressive", "draft-only", "speculative"
"""The methods every comparison should hold: the first is the reference of all differences."""


@dataclass(frozen=True, slots=True)
class Row:
    """One method. Values that cannot be given are None.

    Attributes:
        method: text form, see `methods.spec`.
        answers: problems times seeds.
        seeds: number of seeds.
        accuracy: share of right answers.
        difference: accuracy minus the target's alone, on the same problems and seeds.
        mcnemar: p-value of McNemar's exact test of it.
        discordance: share of answers that only one of the two got right.
        tokens_per_second: output tokens over all seconds, prompts included.
        seconds_per_problem: mean over answers.
        speed_up: tokens per second over the target's alone.
        time_ratio: the target's seconds per problem over the method's: below `speed_up` where
            a method writes longer answers.
        target_passes, draft_passes: per output token.
        accepted_length: tokens a drafting round emits, bonus or correction included.
        draft_share: share of output tokens that were drafted.
        fired: per 100 output tokens, how often what is new in the method acted.
        output_tokens: mean length.
        peak_memory: bytes; on CPU of the whole process, all models loaded.
        errors: answers that failed for another reason than what they say, see `FAULTS`.
        cut: share of answers that ended at the length limit.
        histogram: share of drafting rounds that accepted 0, 1, 2, ... draft tokens.
    """

    method: str
    answers: int
    seeds: int
    accuracy: Estimate | None
    difference: Estimate | None
    mcnemar: float | None
    discordance: float | None
    tokens_per_second: float
    seconds_per_problem: float
    speed_up: Estimate | None
    time_ratio: Estimate | None
    target_passes: float
    draft_passes: float
    accepted_length: float | None
    draft_share: float
    fired: float | None
    output_tokens: float
    peak_memory: int | None
    errors: int
    cut: float
    histogram: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """All methods of one comparison, with what they were run on."""

    task: str
    source: str
    problems: int
    temperature: float
    max_tokens: int
    batch: str
    pair: str
    machine: str
    dates: str
    commands: tuple[str, ...]
    rows: tuple[Row, ...]
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; `table_from_json` reads it."""
        return {"kind": "evaluation", **asdict(self)}


def table_from_json(record: Mapping[str, Any]) -> Table:
    """A stored table."""

    def estimate(value: Any) -> Estimate | None:
        return None if value is None else Estimate(**value)

    estimates = ("accuracy", "difference", "speed_up", "time_ratio")
    rows = tuple(
        Row(
            **row
            | {name: estimate(row[name]) for name in estimates}
            | {"histogram": tuple(row["histogram"])}
        )
        for row in record["rows"]
    )
    fields = {name: value for name, value in record.items() if name in Table.__slots__}
    lists = {name: tuple(record[name]) for name in ("commands", "remarks")}
    return Table(**fields | lists | {"rows": rows})


def tables(logs: Sequence[Log]) -> list[Table]:
    """One table for each task, pair and sampling among the runs.

    Raises UserError where runs share no problem.
    """
    groups: dict[str, list[Log]] = {}
    for log in logs:
        groups.setdefault(json.dumps(log.identity, sort_keys=True), []).append(log)
    return [_table(group) for group in groups.values()]


def _table(logs: Sequence[Log]) -> Table:
    runs = [run for log in logs for run in log.runs]
    found = _methods(logs)
    machines = sorted({run["machine"] for run in runs})
    remarks: list[str] = []
    common = set.intersection(*({a.problem for a in answers} for _, answers in found.values()))
    for _, answers in found.values():
        seeds = {answer.seed for answer in answers}
        counts: dict[str, int] = {}
        for answer in answers:
            counts[answer.problem] = counts.get(answer.problem, 0) + 1
        common = {problem for problem in common if counts[problem] == len(seeds)}
    everything = {a.problem for _, answers in found.values() for a in answers}
    if not common:
        raise UserError("these runs share no problem with all seeds: run the same task further")
    if len(common) < len(everything):
        remarks.append(f"{len(everything) - len(common)} problems are left out: not all answered")
    columns = {label: _Columns(log, answers, common) for label, (log, answers) in found.items()}
    reference = columns.get(TARGET)
    if reference is None:
        remarks.append(f"no differences and no speed-up: the runs lack --method {TARGET}")
    for label in (DRAFT, EXACT):
        if label not in columns:
            remarks.append(f"the runs lack the baseline {label}")
    if len(machines) > 1:
        remarks.append("runs of several machines: their speeds are not compared")
    rows = tuple(
        column.row(label, reference, compare_speed=len(machines) == 1)
        for label, column in columns.items()
    )
    bad = {row["id"] for run in runs for row in run["bad_rows"]}
    unjudged = sum(a.right is None for _, answers in found.values() for a in answers)
    if 0 < unjudged < sum(len(answers) for _, answers in found.values()):
        remarks.append(f"{unjudged} answers could not be graded: their methods have no accuracy")
    if bad:
        remarks.append(f"{len(bad)} rows of the data are no problems and were left out")
    identity = logs[0].identity
    return Table(
        task=identity["task"],
        source=runs[0]["source"],
        problems=len(common),
        temperature=identity["sampling"]["temperature"],
        max_tokens=identity["sampling"]["max_tokens"],
        batch=", ".join(sorted({str(run["batch"]) for run in runs})),
        pair=runs[0]["pair"],
        machine="; ".join(machines),
        dates=", ".join(sorted({run["date"] for run in runs})),
        commands=tuple(dict.fromkeys(run["command"] for run in runs)),
        rows=rows,
        remarks=tuple(remarks),
    )


def _methods(logs: Sequence[Log]) -> dict[str, tuple[Log, list[Answer]]]:
    """Answers by method; a method that several files hold is told apart by file name."""
    found: dict[str, tuple[Log, list[Answer]]] = {}
    for log in logs:
        by_method: dict[str, list[Answer]] = {}
        for answer in log.answers.values():
            by_method.setdefault(answer.method, []).append(answer)
        for method, answers in by_method.items():
            label = method if method not in found else f"{method} ({log.path.stem})"
            found[label] = (log, answers)
    order = [TARGET, DRAFT, EXACT]
    ranked = sorted(found, key=lambda m: order.index(m) if m in order else len(order))
    if not ranked:
        raise UserError("the runs hold no answers yet")
    return {label: found[label] for label in ranked}


class _Columns:
    """One method's answers as matrices ``[problems, seeds]``, problems in one order for all."""

    def __init__(self, log: Log, answers: Sequence[Answer], common: set[str]) -> None:
        self.problems = sorted(common)
        self.seeds = sorted({answer.seed for answer in answers})
        self.by_key = {(a.problem, a.seed): a for a in answers if a.problem in common}
        method = answers[0].method
        peaks = [lap["peak_memory"] for lap in log.laps if lap["method"] == method]
        self.peak = max((peak for peak in peaks if peak), default=None)

    def matrix(self, name: str) -> Matrix:
        return np.array(
            [
                [float(getattr(self.by_key[problem, seed], name) or 0) for seed in self.seeds]
                for problem in self.problems
            ]
        )

    @property
    def graded(self) -> bool:
        return all(answer.right is not None for answer in self.by_key.values())

    def row(self, label: str, reference: _Columns | None, compare_speed: bool) -> Row:
        tokens, seconds, right = (self.matrix(name) for name in ("tokens", "seconds", "right"))
        written = max(float(tokens.sum()), 1.0)
        rounds, accepted = self.matrix("rounds").sum(), self.matrix("accepted").sum()
        answers = list(self.by_key.values())
        difference, p_value, discordant, speed_up, time_ratio = None, None, None, None, None
        if reference is not None and reference is not self:
            same_seeds = reference.seeds == self.seeds
            if self.graded and reference.graded:
                other = reference.matrix("right")
                difference = st.difference(right, other)
                if same_seeds:
                    p_value = st.mcnemar(right, other)
                    discordant = st.discordance(right, other)
            if compare_speed:
                tokens0, seconds0 = reference.matrix("tokens"), reference.matrix("seconds")
                speed_up = st.ratio(
                    *(m.sum(1) for m in (tokens, seconds)), *(m.sum(1) for m in (tokens0, seconds0))
                )
                ones = np.ones(len(self.problems))
                time_ratio = st.ratio(ones, seconds.mean(1), ones, seconds0.mean(1))
        fired = [answer.notes["fired"] for answer in answers if "fired" in answer.notes]
        return Row(
            method=label,
            answers=len(answers),
            seeds=len(self.seeds),
            accuracy=st.accuracy(right) if self.graded else None,
            difference=difference,
            mcnemar=p_value,
            discordance=discordant,
            tokens_per_second=written / max(float(seconds.sum()), 1e-12),
            seconds_per_problem=float(seconds.mean()),
            speed_up=speed_up,
            time_ratio=time_ratio,
            target_passes=float(self.matrix("target_passes").sum()) / written,
            draft_passes=float(self.matrix("draft_passes").sum()) / written,
            accepted_length=1 + float(accepted / rounds) if rounds else None,
            draft_share=float(accepted) / written,
            fired=100 * sum(fired) / written if fired else None,
            output_tokens=float(tokens.mean()),
            peak_memory=self.peak,
            errors=sum(answer.reason.startswith(FAULTS) for answer in answers),
            cut=sum(a.finish_reason == "length" for a in answers) / len(answers),
            histogram=_histogram(answers),
        )


FAULTS = ("run failed", "not run", "not graded:", "not compared", "grader failed")
"""How the reasons of answers begin that failed for another reason than what they say."""


def _histogram(answers: Sequence[Answer]) -> tuple[float, ...]:
    size = max((len(answer.accepted_lengths) for answer in answers), default=0)
    counts = np.zeros(size)
    for answer in answers:
        counts[: len(answer.accepted_lengths)] += answer.accepted_lengths
    return tuple(float(share) for share in counts / max(counts.sum(), 1.0))
