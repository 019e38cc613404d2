"""`antiphon lab train` and `antiphon lab eval`: the bundled pair and its recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from antiphon.errors import UserError

app = typer.Typer(no_args_is_help=True)


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder of checkpoints and exports.")],
    which: Annotated[str, typer.Option(help="draft, target, both or value-head.")] = "both",
    minutes: Annotated[
        float | None, typer.Option(help="Training time; the schedule fits it. Default: recipe's.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Token budget. Default: recipe's.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the last checkpoint in --out.")] = True,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
) -> None:
    """Train the pair from scratch; a killed run goes on where it was."""
    from antiphon.lab.recipe import train as run

    if (minutes is not None and minutes <= 0) or (tokens is not None and tokens <= 0):
        raise UserError("--minutes and --tokens are positive: give a budget, or leave them out")
    if threads < 1:
        raise UserError(f"--threads is {threads}: give a whole number >= 1")
    seconds = None if minutes is None else 60 * minutes
    run(out, which, resume=resume, tokens=tokens, seconds=seconds, threads=threads)


@app.command("eval")
def evaluate(
    which: Annotated[str, typer.Option(help="target, draft, or a model folder.")] = "target",
    split: Annotated[str, typer.Option(help="test, calibration or unseen.")] = "test",
    limit: Annotated[int | None, typer.Option(help="Only the first problems.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
) -> None:
    """Grade one model of the pair on held-out problems; the last line is JSON."""
    from antiphon.lab import pair_path
    from antiphon.lab.evaluate import evaluate as run

    folder = pair_path(which) if which in ("target", "draft") else Path(which)
    if not (folder / "config.json").is_file():
        raise UserError(f"{which}: no model there: give target, draft or a model folder")
    if limit is not None and limit < 1:
        raise UserError(f"--limit is {limit}: give a whole number >= 1")
    score = run(folder, split, limit=limit, temperature=temperature, seed=seed)
    hits, n = sum(score.right), len(score.right)
    low, high = score.interval
    typer.echo(f"{hits}/{n} right: {hits / n:.1%} (95 % interval {low:.1%} to {high:.1%})")
    for template, (right, total) in score.by_template.items():
        typer.echo(f"  {template:<12} {right}/{total}")
    typer.echo(json.dumps({"right": hits, "n": n, "interval": [low, high]}))
