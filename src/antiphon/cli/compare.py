"""`antiphon compare`: recorded runs side by side, as table, page and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as Grid

from antiphon.errors import UserError
from antiphon.eval import layout
from antiphon.eval.journal import Log, read
from antiphon.eval.report import TARGET, Table, tables
from antiphon.eval.statistics import problems_needed

GAINS = (0.01, 0.03, 0.05)
HEADING, CELL = 33, 15
"""Characters of a table's first column and of the others, at least."""


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Files that antiphon eval wrote.")],
    markdown: Annotated[Path | None, typer.Option(help="Write the tables here.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained page with figures here.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write the figures into this folder, as SVG and PNG.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Keep the table's numbers here, as JSON.")
    ] = None,
    gain: Annotated[
        float | None,
        typer.Option(help="Points of accuracy: how many problems would show such a gain?"),
    ] = None,
) -> None:
    """Compare recorded runs: accuracy and speed of every method, with intervals."""
    if gain is not None and not 0 < gain < 100:
        raise UserError(f"--gain is {gain:g}: give points of accuracy, such as 3.6")
    logs = [read(path) for path in runs]
    found = show(logs, Console(), (gain / 100,) if gain is not None else GAINS)
    if record is not None:
        if len(found) > 1:
            raise UserError("--record keeps one table, these runs make several: give fewer runs")
        _write(record, json.dumps(found[0].to_json(), indent=1) + "\n")
    if markdown is not None:
        _write(markdown, "\n".join(layout.markdown(table) for table in found))
    if figures is not None:
        from antiphon.eval.figures import save

        for number, table in enumerate(found, 1):
            for path in save(table, figures, f"{table.task}-{number}"):
                typer.echo(f"wrote {path}", err=True)
    if html is not None:
        from antiphon.eval.page import page

        _write(html, page(found))


def show(logs: Sequence[Log], console: Console, gains: Sequence[float] = GAINS) -> list[Table]:
    """Print the tables of some runs, and return them."""
    found = tables(logs)
    for table in found:
        columns = layout.used(table)
        # Methods side by side: a terminal has room for a few of them, not for every column.
        few = max((console.width - HEADING) // CELL, 1)
        for start in range(0, len(table.rows), few):
            some = table.rows[start : start + few]
            grid = Grid()
            grid.add_column("", no_wrap=True)
            for row in some:
                grid.add_column(row.method, overflow="fold")
            for heading, cell in columns.items():
                grid.add_row(heading, *(cell(row) for row in some))
            console.print(grid)
        for line in (layout.conditions(table), *table.remarks, *_power(table, gains)):
            console.print(line, highlight=False, soft_wrap=True)
    return found


def _power(table: Table, gains: Sequence[float]) -> list[str]:
    """How many problems a gain would need, at the disagreement seen here."""
    lines = []
    for row in table.rows:
        if not row.discordance or row.method == TARGET:
            continue
        needs = [
            f"{problems_needed(gain, row.discordance)} for {100 * gain:g} points"
            for gain in gains
            if gain <= row.discordance
        ]
        if needs:
            lines.append(
                f"problems to show a gain of {row.method} (80 % power, "
                f"{row.discordance:.1%} discordant): {', '.join(needs)}"
            )
    return lines


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {path}", err=True)
