"""`antiphon train-reward`: a reward model of steps, from a run's graded answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from antiphon.checkpoint import bind
from antiphon.cli import options as opt
from antiphon.errors import UserError
from antiphon.eval import outcome
from antiphon.methods.boundary import BOUNDARIES


def train_reward(
    answers: Annotated[
        list[Path],
        typer.Option(help="JSONL that antiphon eval wrote on TRAIN problems; repeat for more."),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the reward model: rsd:reward=FOLDER.")],
    boundary: Annotated[
        str, typer.Option(help="Where reasoning steps end: blank-line or line.")
    ] = "blank-line",
    target: opt.Target = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    target_quant: opt.TargetQuant = "none",
    threads: opt.Threads = None,
    engine: opt.Engine = "auto",
) -> None:
    """Teach a value head on the target which steps end in right answers."""
    if boundary not in BOUNDARIES:
        raise UserError(f"--boundary is {boundary!r}: choose {', '.join(BOUNDARIES)}")
    named = outcome.graded(answers)
    pair = opt.load(target, None, device, dtype, target_quant, threads=threads, engine=engine)
    bind(out / "reading.json", {"target": pair.description, "boundary": boundary})
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("reading", total=len(named))
        path = out / "steps.jsonl"
        held = outcome.collect(pair, named, boundary, path, lambda _: progress.advance(bar))
    taught = outcome.teach(held)
    taught.head.save(out, taught.report)
    console.print(
        f"AUROC {taught.report.auroc:.2f} on {taught.report.held_out_steps} held-out steps, "
        f"{taught.report.held_out_good:.0%} of them of right answers; rewards there: "
        + ", ".join(
            f"{level:.0%} below {taught.quantile(level):.2f}" for level in (0.25, 0.5, 0.75)
        ),
        highlight=False,
    )
    typer.echo(json.dumps({"reward": str(out)} | asdict(taught.report)))
