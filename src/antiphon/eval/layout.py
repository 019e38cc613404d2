"""How a table of results is written: columns, and Markdown."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.eval.report import Row, Table
from antiphon.eval.statistics import Estimate

COLUMNS: dict[str, Callable[[Row], str]] = {
    "right, % (95 %)": lambda row: _percent(row.accuracy),
    "against target, points (95 %)": lambda row: _points(row.difference),
    "McNemar p": lambda row: _chance(row.mcnemar),
    "tok/s": lambda row: _number(row.tokens_per_second, ".1f"),
    "s/problem": lambda row: _number(row.seconds_per_problem, ".3g"),
    "speed-up, tok/s (95 %)": lambda row: _ratio(row.speed_up),
    "speed-up, s/problem (95 %)": lambda row: _ratio(row.time_ratio),
    "target passes/token": lambda row: _number(row.target_passes, ".2f"),
    "draft passes/token": lambda row: _number(row.draft_passes, ".2f"),
    "accepted length": lambda row: _number(row.accepted_length, ".2f"),
    "drafted tokens kept, %": lambda row: _number(100 * row.draft_share, ".0f"),
    "fired/100 tokens": lambda row: _number(row.fired, ".1f"),
    "output tokens": lambda row: _number(row.output_tokens, ".0f"),
    "cut at the limit, %": lambda row: _number(100 * row.cut, ".1f"),
    "failures": lambda row: str(row.errors),
    "peak memory, GiB": lambda row: (
        _number(row.peak_memory / 2**30, ".2f") if row.peak_memory else "-"
    ),
}
"""Heading -> cell, in the order of every form of the table."""


def used(table: Table) -> dict[str, Callable[[Row], str]]:
    """The columns in which at least one method has something to say."""
    return {
        heading: cell
        for heading, cell in COLUMNS.items()
        if any(cell(row) not in ("-", "0" if heading == "failures" else "-") for row in table.rows)
    }


def markdown(table: Table) -> str:
    """The table, its conditions, remarks and commands, in Markdown."""
    columns = used(table)
    lines = ["| method | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 1) + "|"]
    for row in table.rows:
        cells = [cell(row) for cell in columns.values()]
        lines.append("| " + " | ".join([row.method, *cells]) + " |")
    lines += ["", conditions(table), ""]
    lines += [f"- {remark}" for remark in table.remarks] + [""] * bool(table.remarks)
    lines += [f"`{command}`" for command in table.commands]
    return "\n".join(lines) + "\n"


def conditions(table: Table) -> str:
    """One sentence: the data, the pair, the machine."""
    seeds = max(row.seeds for row in table.rows)
    text = f"{table.task} ({table.source}), {table.problems} problems"
    text += f" x {seeds} seeds" if seeds > 1 else ""
    text += f", temperature {table.temperature:g}, at most {table.max_tokens} tokens"
    return f"{text}, batch {table.batch}; {table.pair}; {table.machine}; {table.dates}."


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _chance(value: float | None) -> str:
    return "<0.001" if value is not None and value < 0.001 else _number(value, ".3f")


def _percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    value, low, high = (100 * x for x in (estimate.value, estimate.low, estimate.high))
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def _points(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    value, low, high = (100 * x for x in (estimate.value, estimate.low, estimate.high))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def _ratio(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
