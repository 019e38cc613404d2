"""Tasks, one file each; `TASKS` finds them by name."""

from antiphon.eval.task import Task
from antiphon.eval.tasks.competitions import AIME24, AMC23, Gaokao2023En, OlympiadBench
from antiphon.eval.tasks.gsm8k import GSM8K
from antiphon.eval.tasks.humaneval import HumanEval
from antiphon.eval.tasks.jsonl import JSONLines
from antiphon.eval.tasks.lab import Lab
from antiphon.eval.tasks.math500 import MATH500
from antiphon.eval.tasks.mbpp import MBPP
from antiphon.eval.tasks.spec_bench import SpecBench
from antiphon.eval.tasks.svamp import SVAMP

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        *(Lab, GSM8K, SVAMP, MATH500, AIME24, AMC23, Gaokao2023En, OlympiadBench),
        *(HumanEval, MBPP, SpecBench, JSONLines),
    )
}
"""Command-line name -> task."""

__all__ = ["TASKS", "JSONLines"]
