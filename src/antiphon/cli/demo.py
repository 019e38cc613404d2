"""`antiphon demo`, the main job on the bundled pair, and `antiphon methods`."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from antiphon.api import encode, make_engine
from antiphon.cli.show import legend, painted, summary
from antiphon.errors import UserError
from antiphon.lab import problems
from antiphon.methods import METHODS, Autoregressive, Method, Speculative
from antiphon.models.pair import load_pair
from antiphon.params import SamplingParams
from antiphon.result import Result
from antiphon.rules.catalogue import KINDS


def demo(
    problem: Annotated[int, typer.Option(help="Which held-out problem, 0 to 999.")] = 0,
    gamma: Annotated[int, typer.Option(help="Draft tokens per round.")] = 4,
    repeats: Annotated[int, typer.Option(help="Timed runs of each method.")] = 7,
) -> None:
    """Answer a held-out word problem with the bundled pair, plain and speculatively."""
    held_out = problems("test")
    if not 0 <= problem < len(held_out):
        raise UserError(f"--problem is {problem}: choose 0 to {len(held_out) - 1}")
    if repeats < 1:
        raise UserError(f"--repeats is {repeats}: give a whole number >= 1")
    console = Console(highlight=False)
    pair = load_pair()
    engine = make_engine(pair)
    task = held_out[problem]
    ids = encode(pair, task.question)
    params = SamplingParams(max_tokens=200)
    methods: dict[str, Method] = {
        "autoregressive": Autoregressive(),
        "speculative": Speculative(gamma=gamma),
    }
    runs: dict[str, list[Result]] = {name: [] for name in methods}
    for attempt in range(repeats + 1):  # The first round warms up.
        for name, method in methods.items():
            ((result,),) = engine.generate([ids], [params], method)
            if attempt:
                runs[name].append(result)

    console.print(f"[bold]Question[/bold]  {task.question}\n")
    for name, results in runs.items():
        console.print(f"[bold]{name}[/bold]")
        console.print(painted(pair.tokenizer, ids, results[0], console), soft_wrap=True)
        console.print(f"({summary(results[0])})\n", style="dim")
    console.print(legend(console))
    plain, fast = runs["autoregressive"], runs["speculative"]
    ratios = sorted(
        f.statistics.tokens_per_second / p.statistics.tokens_per_second
        for p, f in zip(plain, fast, strict=True)
    )
    same = plain[0].token_ids == fast[0].token_ids
    console.print(f"\nright answer: {task.answer}")
    console.print(f"same tokens: {'yes' if same else 'no'}")
    console.print(
        f"speed-up: {statistics.median(ratios):.2f}x "
        f"(median of {repeats} runs side by side, {ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def methods() -> None:
    """List the decoding methods, and the token rules, with their knobs, guarantee and source."""
    table = Table("method", "guarantee", "knobs", "source")
    for name, config in METHODS.items():
        table.add_row(name, config.GUARANTEE, _knobs(config), config.SOURCE)
    Console().print(table)
    for kind, known in KINDS.items():
        table = Table(f"--{kind}", "guarantee", "arguments", "source")
        for name, config in known.items():
            table.add_row(name, config.GUARANTEE, _knobs(config), config.SOURCE)
        Console().print(table)


def _knobs(config: type[Any]) -> str:
    """The fields of a method or rule with their defaults.

    A name alone: it has to be given, is empty, or is too long for a table.
    """
    fields = dataclasses.fields(config)
    unsaid = (dataclasses.MISSING, None, "")
    said = {f.name: "" if f.default in unsaid else f"={f.default}" for f in fields}
    return ", ".join(n if "\n" in value else n + value for n, value in said.items()) or "none"
