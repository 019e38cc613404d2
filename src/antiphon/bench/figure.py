"""The figure of a race: every contestant's speed with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.bench.race import Report
from antiphon.eval.figures import COLOURS, empty, legend, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 0.36


def speeds(report: Report, title: str) -> Figure:
    """A pair of bars a contestant: whole answers, and decoding alone where it is known."""
    figure, axes = empty()
    figure.set_size_inches(6.4, 1.4 + 0.55 * len(report.rows))
    places = range(len(report.rows))
    for shift, colour, hatch, label, bars in (
        (
            -HEIGHT / 2,
            COLOURS[1],
            "",
            "whole answers",
            [(row.tokens_per_second, row.speed_low, row.speed_high) for row in report.rows],
        ),
        (
            HEIGHT / 2,
            COLOURS[5],
            "//",
            "after the first tokens",
            [
                (row.decode_tokens_per_second, row.decode_speed_low, row.decode_speed_high)
                for row in report.rows
            ],
        ),
    ):
        axes.barh(
            [place + shift for place in places],
            [value for value, _, _ in bars],
            HEIGHT,
            xerr=[
                # A resample's percentiles may lie on one side of the value itself.
                [max(value - low, 0.0) for value, low, _ in bars],
                [max(high - value, 0.0) for value, _, high in bars],
            ],
            color=colour,
            edgecolor="white",
            hatch=hatch,
            capsize=2,
            error_kw={"linewidth": 0.9},
            label=label,
        )
    axes.set_yticks(list(places), [row.name for row in report.rows])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.set_xlabel("tokens/s, 95 % intervals")
    axes.set_title(
        f"{title}\n{report.prompts} prompts, at most {report.max_tokens} tokens, "
        f"batch {report.batch}",
        fontsize=9,
    )
    legend(figure, axes)
    return figure


def save(report: Report, title: str, path: Path) -> None:
    """Write the figure as SVG."""
    text = svg(speeds(report, title))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
