"""The figures of a comparison: quality against speed, and how much of a block is accepted.

Colours are Okabe and Ito's, told apart by colour-blind readers; markers and hatches tell the
methods apart in black and white, too.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.errors import UserError
from antiphon.eval.report import TARGET, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vPX*"
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")


def figures(table: Table) -> dict[str, Figure]:
    """Name -> figure; a figure that has nothing to show is left out."""
    found = {"frontier": frontier(table), "accepted": accepted(table)}
    return {name: figure for name, figure in found.items() if figure is not None}


def frontier(table: Table) -> Figure | None:
    """Accuracy over speed-up with both 95 % intervals; up and right is better."""
    rows = [r for r in table.rows if r.accuracy and (r.speed_up or r.method == TARGET)]
    if len(rows) < 2:
        return None
    figure, axes = empty()
    for place, row in enumerate(rows):
        assert row.accuracy is not None
        x, around = 1.0, (0.0, 0.0)
        if row.speed_up is not None:
            x = row.speed_up.value
            around = (x - row.speed_up.low, row.speed_up.high - x)
        y = 100 * row.accuracy.value
        beside = (y - 100 * row.accuracy.low, 100 * row.accuracy.high - y)
        axes.errorbar(
            [x],
            [y],
            xerr=[[around[0]], [around[1]]],
            yerr=[[beside[0]], [beside[1]]],
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=7,
            capsize=3,
            linestyle="none",
            label=row.method,
        )
    axes.axvline(1.0, color="0.75", linewidth=0.8, zorder=0)
    axes.set_xlabel("speed-up over the target alone, tokens/s")
    axes.set_ylabel("right answers, %")
    axes.set_title(f"{table.task}, {table.problems} problems, 95 % intervals", fontsize=10)
    legend(figure, axes)
    return figure


def accepted(table: Table) -> Figure | None:
    """How many of a block's draft tokens stand, as shares of the rounds."""
    rows = [row for row in table.rows if row.histogram]
    if not rows:
        return None
    figure, axes = empty()
    width = 0.8 / len(rows)
    for place, row in enumerate(rows):
        lengths = range(len(row.histogram))
        axes.bar(
            [length + (place - (len(rows) - 1) / 2) * width for length in lengths],
            [100 * share for share in row.histogram],
            width,
            color=COLOURS[1:][place % (len(COLOURS) - 1)],
            edgecolor="white",
            hatch=HATCHES[place % len(HATCHES)],
            label=f"{row.method} (mean length {row.accepted_length or 1:.2f})",
        )
    axes.set_xticks(range(max(len(row.histogram) for row in rows)))
    axes.set_xlabel("draft tokens accepted in a round")
    axes.set_ylabel("rounds, %")
    axes.set_title(f"{table.task}, {table.problems} problems", fontsize=10)
    legend(figure, axes)
    return figure


def svg(figure: Figure) -> str:
    """A figure as SVG text, the same every time for the same data."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "antiphon", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save(table: Table, folder: Path, stem: str) -> list[Path]:
    """Write every figure as SVG and PNG; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, figure in figures(table).items():
        path = folder / f"{stem}-{name}.svg"
        path.write_text(svg(figure), encoding="utf-8")
        figure.savefig(path.with_suffix(".png"), dpi=150, bbox_inches="tight")
        files += [path, path.with_suffix(".png")]
    return files


def empty() -> tuple[Figure, Any]:
    """A figure of this style; raises UserError where there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(
            "figures need matplotlib: install it with pip install 'antiphon[eval]'"
        ) from None
    figure = Figure(figsize=(5.6, 3.8))
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def legend(figure: Figure, axes: Any) -> None:
    """What is what, below the axes."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=1 if max(map(len, labels)) > 28 else 3,
        frameon=False,
        fontsize=9,
    )
