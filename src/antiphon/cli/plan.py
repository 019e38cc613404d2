"""`antiphon plan`: which method and setting would be fastest, here or on other hardware."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from antiphon.api import pair_costs
from antiphon.bench.plan import HARDWARE, Counts, Forecast, forecasts, replay, shown
from antiphon.cli import options as opt
from antiphon.costs import PairCosts, machine
from antiphon.errors import UserError
from antiphon.eval.journal import Answer, read
from antiphon.models import source
from antiphon.models.pair import ModelPair

THIS = "this"
BYTES = 2
"""Of a weight on an accelerator: bfloat16."""


def plan(
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
    acceptance: Annotated[
        float | None,
        typer.Option(help="Chance that a draft token is accepted. Default: the profile's."),
    ] = None,
    temperature: opt.Temperature = 0.0,
    batch: Annotated[int, typer.Option(help="Requests at once.")] = 1,
    hardware: Annotated[
        str, typer.Option(help=f"{THIS}, {', '.join(HARDWARE)}; commas between.")
    ] = THIS,
    parameters: Annotated[
        str | None,
        typer.Option(help="Sizes to plan for in place of models: 70e9,1e9. Not for 'this'."),
    ] = None,
    replay_run: Annotated[
        Path | None,
        typer.Option("--replay", help="A run of antiphon eval: how long it would take there."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every setting.")] = False,
) -> None:
    """Predict the speed of every method from pass costs and acceptance."""
    names = [name.strip() for name in hardware.split(",") if name.strip()]
    unknown = next((name for name in names if name not in (THIS, *HARDWARE)), None)
    if unknown or not names:
        raise UserError(f"--hardware is {hardware!r}: choose {THIS}, {', '.join(HARDWARE)}")
    if draft == "ngram":
        raise UserError("what n-grams get right depends on the text: plan for a draft model")
    if parameters is not None and (THIS in names or target or draft):
        raise UserError("--parameters stands in place of models: name a --hardware, no models")
    pair = None
    replayed = replay_run is not None
    if THIS in names or (acceptance is None and parameters is None and not replayed):
        pair = opt.load(
            target, draft, device, dtype, target_quant, draft_quant, threads, profile, engine, head
        )
    chance = acceptance
    # A run's passes are known: replaying it asks for no acceptance.
    if chance is None and not (replayed and (pair is None or pair.profile is None)):
        chance = known_acceptance(pair, temperature)
    counts = recorded(replay_run) if replay_run is not None else {}
    console = Console()
    result: dict[str, Any] = {"acceptance": chance, "batch": batch, "machine": machine()}
    # Counting parameters builds the models' skeletons: once, and for an accelerator alone.
    counted = sizes(target, draft, parameters) if set(names) != {THIS} else []
    for name in names:
        costs = costs_on(name, pair, counted)
        if chance is not None:
            found = forecasts(costs, chance, batch)
            show(console, name, found if every else shown(found), costs, batch)
            result[name] = {f.method: f.tokens_per_second for f in found}
        if counts:
            result[f"{name} replay"] = show_replay(console, name, counts, costs, batch)
    print(json.dumps(result))


def known_acceptance(pair: ModelPair | None, temperature: float) -> float:
    """The profile's acceptance; raises UserError where there is no profile."""
    if pair is None or pair.profile is None:
        raise UserError("the acceptance is not known: give --acceptance, or a --profile")
    return pair.profile.nearest(temperature).acceptance


def sizes(target: str | None, draft: str | None, parameters: str | None) -> list[float]:
    """Parameters that a pass multiplies, of the target and of the draft, if there is one."""
    if parameters is not None:
        try:
            numbers = [float(part) for part in parameters.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 2 or min(numbers) <= 0:
            raise UserError(f"--parameters is {parameters!r}: give TARGET,DRAFT such as 70e9,1e9")
        return numbers
    if target is None:
        from antiphon.lab import pair_path

        target, draft = str(pair_path("target")), draft or str(pair_path("draft"))
    paths = [target, *([target if draft == "self" else draft] if draft else [])]
    return [float(source.find(path).parameters()["linear"]) for path in paths]


def costs_on(name: str, pair: ModelPair | None, parameters: list[float]) -> PairCosts:
    """Measured costs of this machine, or an accelerator's by its peaks."""
    if name == THIS:
        assert pair is not None
        return pair_costs(pair, say=lambda line: typer.echo(line, err=True))
    peaks = HARDWARE[name]
    target, *draft = (peaks.costs(BYTES * size, size) for size in parameters)
    return PairCosts(target, draft[0] if draft else None)


def recorded(path: Path) -> dict[str, Counts]:
    """What each method of a run did."""
    by_method: dict[str, list[Answer]] = {}
    for answer in read(path).answers.values():
        by_method.setdefault(answer.method, []).append(answer)
    return {
        method: Counts(
            target_passes=sum(a.target_passes for a in answers),
            draft_passes=sum(a.draft_passes for a in answers),
            target_rows=1 + _share(answers),
            prompt_tokens=sum(a.prompt_tokens for a in answers),
            tokens=sum(a.tokens for a in answers),
            seconds=sum(a.seconds for a in answers),
        )
        for method, answers in by_method.items()
    }


def _share(answers: list[Answer]) -> float:
    """Drafted tokens per target pass."""
    passes = sum(answer.target_passes for answer in answers)
    return sum(answer.drafted for answer in answers) / passes if passes else 0.0


def show(console: Console, name: str, found: list[Forecast], costs: PairCosts, batch: int) -> None:
    """The forecasts of one machine."""
    table = Table(name, "tok/s", "speed-up", "rows a target pass")
    for forecast in found:
        table.add_row(
            forecast.method,
            f"{forecast.tokens_per_second:,.1f}",
            f"{forecast.speed_up:.2f}",
            str(forecast.rows or "-"),
        )
    console.print(table)
    line = f"c = {costs.ratio:.3f}"
    if name in HARDWARE:
        line += f"; passes beyond {HARDWARE[name].ridge:.0f} rows are bound by arithmetic"
    console.print(line, highlight=False)
    if found[0].method in ("autoregressive", "draft-only"):
        best = max(f.speed_up for f in found if f.method not in ("autoregressive", "draft-only"))
        if best <= 1:
            console.print(f"plain decoding wins at batch {batch}", highlight=False)


def show_replay(
    console: Console, name: str, counts: dict[str, Counts], costs: PairCosts, batch: int
) -> dict[str, float]:
    """Predicted seconds of a recorded run, beside the measured ones."""
    table = Table("replayed", f"seconds on {name}", "recorded", "predicted / recorded")
    found: dict[str, float] = {}
    for method, done in counts.items():
        found[method] = replay(done, costs, batch)
        table.add_row(
            method,
            f"{found[method]:,.2f}",
            f"{done.seconds:,.2f}",
            f"{found[method] / done.seconds:.2f}",
        )
    console.print(table)
    return found
