"""`antiphon calibrate`: a pair's thresholds, collected once and kept in a small file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from antiphon.cli import options as opt
from antiphon.cli.eval import build_task, examples
from antiphon.errors import UserError
from antiphon.eval import data as rows
from antiphon.eval.calibrate import calibrate as collect
from antiphon.eval.prompting import Prompting, unshown
from antiphon.eval.runner import Plan
from antiphon.methods import Speculative
from antiphon.methods.boundary import BOUNDARIES
from antiphon.profile import Profile


def calibrate(
    out: Annotated[Path, typer.Option(help="Where the profile goes; --profile reads it.")],
    task: Annotated[str, typer.Option(help="What the problems are; lab or any task.")] = "lab",
    data: Annotated[
        Path | None, typer.Option(help="JSONL of the task's TRAIN split. Not for lab.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Number of problems.")] = 200,
    batch: Annotated[int, typer.Option(help="Requests at once.")] = 16,
    temperatures: Annotated[
        str, typer.Option(help="Temperatures to look at, commas between.")
    ] = "0,0.6,1",
    costs: Annotated[bool, typer.Option(help="Also measure this machine's pass costs.")] = True,
    boundary: Annotated[
        str, typer.Option(help="Where reasoning steps end: blank-line or line.")
    ] = "blank-line",
    shots: Annotated[int, typer.Option(help="Worked examples in the prompt.")] = 0,
    shots_from: Annotated[Path | None, typer.Option(help="JSONL they come from.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed, for temperatures above 0.")] = 0,
    target: opt.Target = None,
    draft: opt.Draft = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    target_quant: opt.TargetQuant = "none",
    draft_quant: opt.DraftQuant = "none",
    head: opt.DraftVocab = None,
    threads: opt.Threads = None,
    engine: opt.Engine = "auto",
) -> None:
    """Measure a pair on train problems, for the methods that need thresholds."""
    if limit < 1:
        raise UserError(f"--limit is {limit}: give a whole number >= 1")
    if draft == "ngram" or (target is not None and draft is None):
        raise UserError("a profile is about a pair of models: give --draft PATH")
    chosen = build_task(task, None, None)
    if data is None:
        if task != "lab":
            raise UserError("--data is missing: give a JSONL of the task's train split")
        from antiphon.lab import data_path

        data = data_path("calibration")
    prompting = Prompting(shots=examples(chosen, shots, shots_from))
    found = rows.load(chosen, data, limit)
    plan = Plan(
        task=chosen,
        data=replace(found, problems=unshown(found.problems, prompting.shots)),
        prompting=prompting,
        methods={"speculative": Speculative()},
        seeds=(seed,),
        params=opt.sampling(max_tokens=chosen.max_tokens),
        batch=batch,
    )
    levels = parse_temperatures(temperatures)
    if boundary not in BOUNDARIES:
        raise UserError(f"--boundary is {boundary!r}: choose {', '.join(BOUNDARIES)}")
    pair = opt.load(
        target, draft, device, dtype, target_quant, draft_quant, threads, None, engine, head
    )
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("calibrating", total=len(levels) * len(plan.data.problems))
        profile = collect(plan, pair, levels, lambda: progress.advance(bar), costs, boundary)
    profile.save(out)
    show(profile, Console())
    typer.echo(f"wrote {out}", err=True)


def parse_temperatures(text: str) -> tuple[float, ...]:
    """``0,0.7`` as numbers, each once."""
    try:
        values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UserError(f"--temperatures is {text!r}: give numbers, commas between") from None
    for value in values:
        opt.sampling(temperature=value)
    return values


def show(profile: Profile, console: Console) -> None:
    """What was measured, in a table for each temperature."""
    levels = (0.05, 0.5, 0.9, 0.95, 0.99)
    for temperature, seen in profile.seen.items():
        table = Table("", *(f"{level:.0%}" for level in levels), "values")
        for name, quantiles in seen.quantities.items():
            cells = [f"{quantiles.at(level):.3f}" for level in levels]
            table.add_row(name, *cells, str(quantiles.count))
        console.print(table)
        console.print(
            f"temperature {temperature}: acceptance {seen.acceptance:.3f}, "
            f"same most probable token {seen.agreement:.3f}; {profile.source}",
            highlight=False,
        )
