"""`antiphon eval`: methods on a task, every answer recorded, killed runs resumed."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from antiphon.cli import options as opt
from antiphon.cli.progress import Tally
from antiphon.costs import machine
from antiphon.errors import UserError
from antiphon.eval import data as rows
from antiphon.eval.journal import Journal, read
from antiphon.eval.prompting import Prompting
from antiphon.eval.runner import Plan, run
from antiphon.eval.task import Task
from antiphon.eval.tasks import TASKS, JSONLines
from antiphon.methods import Autoregressive, DraftOnly, Method, Speculative, spec
from antiphon.models.pair import ModelPair

_TASK = "Task"


def evaluate(
    out: Annotated[Path, typer.Option(help="JSONL of the run; an interrupted run goes on in it.")],
    task: Annotated[str, typer.Option(help=", ".join(TASKS), rich_help_panel=_TASK)] = "lab",
    data: Annotated[
        Path | None,
        typer.Option(
            help="JSONL of the task's rows. Default: bundle or hub.", rich_help_panel=_TASK
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first problems.", rich_help_panel=_TASK)
    ] = None,
    question_field: Annotated[
        str | None, typer.Option(help="For --task jsonl.", rich_help_panel=_TASK)
    ] = None,
    answer_field: Annotated[
        str | None, typer.Option(help="For --task jsonl.", rich_help_panel=_TASK)
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="System prompt.", rich_help_panel=_TASK)
    ] = None,
    instruction: Annotated[
        str | None,
        typer.Option(help="Below each question, in place of the task's.", rich_help_panel=_TASK),
    ] = None,
    shots: Annotated[
        int, typer.Option(help="Worked examples in the prompt.", rich_help_panel=_TASK)
    ] = 0,
    shots_from: Annotated[
        Path | None, typer.Option(help="JSONL they come from.", rich_help_panel=_TASK)
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME or NAME:field=value,...; may be repeated. Default: the baselines.",
            rich_help_panel="Method",
        ),
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            help="Run autoregressive, draft-only and exact speculative beside.",
            rich_help_panel="Method",
        ),
    ] = True,
    gamma: opt.Gamma = None,
    chains: opt.Chains = None,
    confidence: opt.Confidence = None,
    rule: opt.Rule = None,
    rule_arg: opt.RuleArg = None,
    rescue: opt.Rescue = None,
    veto: opt.Veto = None,
    veto_entropy: opt.VetoEntropy = None,
    seeds: Annotated[
        str | None, typer.Option(help="Random seeds, commas between.", rich_help_panel="Sampling")
    ] = None,
    temperature: opt.Temperature = 0.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Longest output. Default: the task's.", rich_help_panel="Sampling"),
    ] = None,
    stop: opt.Stop = None,
    chat: opt.Chat = True,
    batch: Annotated[int, typer.Option(help="Requests at once.")] = 16,
    target: opt.Target = None,
    draft: opt.Draft = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    target_quant: opt.TargetQuant = "none",
    draft_quant: opt.DraftQuant = "none",
    head: opt.DraftVocab = None,
    threads: opt.Threads = None,
    engine: opt.Engine = "auto",
    profile: opt.Profile = None,
) -> None:
    """Evaluate methods on a task: accuracy and speed in one table, with intervals."""
    given = opt.knobs(gamma, chains, confidence, rule, rule_arg, rescue, veto, veto_entropy)
    has_draft = target is None or draft is not None
    methods = chosen(method or [], baselines, has_draft, draft, given)
    chosen_task = build_task(task, question_field, answer_field)
    for name, value in (("--limit", limit), ("--max-tokens", max_tokens)):
        if value is not None and value < 1:
            raise UserError(f"{name} is {value}: give a whole number >= 1")
    if data is not None and out.exists() and data.exists() and out.samefile(data):
        raise UserError(f"--out and --data are the same file, {out}: give another --out")
    plan = Plan(
        task=chosen_task,
        data=rows.load(chosen_task, data, limit),
        prompting=Prompting(system, instruction, examples(chosen_task, shots, shots_from), chat),
        methods=methods,
        seeds=parse_seeds(seeds),
        params=opt.sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            max_tokens=max_tokens or chosen_task.max_tokens,
            stop=(*chosen_task.stop, *(stop or [])),
        ),
        batch=batch,
    )
    for row in plan.data.bad:
        typer.echo(f"note: {plan.data.source}, {row.id} is left out: {row.reason}", err=True)
    pair = opt.load(
        target, draft, device, dtype, target_quant, draft_quant, threads, profile, engine, head
    )
    with Journal(out, header(plan, pair)) as journal, Tally(plan, journal) as tally:
        run(plan, pair, journal, tally.add)
    from antiphon.cli.compare import show

    show([read(out)], Console())


def header(plan: Plan, pair: ModelPair) -> dict[str, Any]:
    """The ``run`` line: the identity that a resumed run must share, and the circumstances."""
    sampling = dataclasses.asdict(plan.params)
    for name in ("seed", "n", "logprobs", "grammar"):  # No task has a grammar.
        del sampling[name]
    prompting = plan.prompting
    return {
        "identity": {
            "task": plan.task.name,
            "data": plan.data.digest,
            "pair": f"{pair.fingerprint} {pair.description}",
            "sampling": sampling | {"logit_bias": dict(plan.params.logit_bias)},
            "system": prompting.system,
            "instruction": prompting.instruction,
            "shots": [shot.id for shot in prompting.shots],
            "chat": prompting.chat,
        },
        "source": plan.data.source,
        "problems": len(plan.data.problems),
        "bad_rows": [dataclasses.asdict(row) for row in plan.data.bad],
        "methods": list(plan.methods),
        "seeds": list(plan.seeds),
        "batch": plan.batch,
        "pair": pair.description,
        "machine": machine(),
        "versions": {name: version(name) for name in ("antiphon", "torch", "transformers")},
        "command": shlex.join(["antiphon", *sys.argv[1:]]),
        "date": date.today().isoformat(),
    }


def chosen(
    texts: list[str],
    baselines: bool,
    has_draft: bool,
    draft: str | None,
    given: Mapping[str, str],
) -> dict[str, Method]:
    """The methods of the run by their text form, baselines first.

    A knob such as --gamma goes to every named method that has the field.
    """
    if draft == "ngram":
        raise UserError("--draft ngram: name the method instead: speculative:drafter=ngram")
    methods: list[Method] = []
    if baselines or not texts:
        methods = [Autoregressive()]
        if has_draft:
            methods += [DraftOnly(), Speculative()]
    named = [spec.parse(text) for text in texts]
    for name in given:
        if not any(hasattr(method, name) for method in named):
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} does nothing for the methods named: drop it")
    named = [
        spec.with_fields(method, {k: v for k, v in given.items() if hasattr(method, k)})
        for method in named
    ]
    return {spec.describe(method): method for method in (*methods, *named)}


def build_task(name: str, question_field: str | None, answer_field: str | None) -> Task:
    """The task by its name; the fields are for ``jsonl`` alone."""
    if name not in TASKS:
        raise UserError(f"--task is {name!r}: choose {', '.join(TASKS)}")
    if name == JSONLines.name:
        return JSONLines(question_field or "question", answer_field or "answer")
    if question_field or answer_field:
        raise UserError("--question-field and --answer-field go with --task jsonl")
    return TASKS[name]()


def examples(task: Task, shots: int, source: Path | None) -> tuple[Any, ...]:
    """The worked examples of the prompt."""
    if shots < 0:
        raise UserError(f"--shots is {shots}: give a whole number >= 0")
    if not shots:
        if source is not None:
            raise UserError("--shots-from does nothing without --shots: give their number")
        return ()
    if source is None and task.name == "lab":
        from antiphon.lab import data_path

        source = data_path("calibration")
    if source is None:
        raise UserError("--shots needs --shots-from FILE, a JSONL of the task's train split")
    found = [p for p in rows.load(task, source, None).problems if p.solution][:shots]
    if len(found) < shots:
        raise UserError(f"{source}: has {len(found)} worked examples, --shots asks for {shots}")
    return tuple(found)


def parse_seeds(text: str | None) -> tuple[int, ...]:
    """``0,1,2`` as numbers."""
    try:
        return tuple(int(part) for part in text.split(",")) if text is not None else (0,)
    except ValueError:
        raise UserError(f"--seeds is {text!r}: give whole numbers, commas between") from None
