"""A comparison as one self-contained HTML page: tables, figures, conditions; no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from antiphon.eval import layout
from antiphon.eval.figures import figures, svg
from antiphon.eval.report import Table

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem;
       padding: 0 1rem; color: #1a1a1a; background: #fff; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
th { vertical-align: bottom; font-weight: 600; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
td { white-space: nowrap; }
figure { display: inline-block; margin: 1rem 1rem 0 0; }
figure svg { max-width: 100%; height: auto; }
code { font-size: 12px; overflow-wrap: anywhere; }
"""


def page(found: Sequence[Table]) -> str:
    """The page of some tables."""
    body = "\n".join(_section(table) for table in found)
    title = escape(", ".join(dict.fromkeys(table.task for table in found)))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>antiphon: {title}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _section(table: Table) -> str:
    columns = layout.used(table)
    head = "".join(f"<th>{escape(name)}</th>" for name in ("method", *columns))
    rows = "\n".join(
        "<tr>"
        + "".join(
            f"<td>{escape(cell)}</td>"
            for cell in (row.method, *(cell(row) for cell in columns.values()))
        )
        + "</tr>"
        for row in table.rows
    )
    drawings = "\n".join(f"<figure>{svg(figure)}</figure>" for figure in figures(table).values())
    remarks = "".join(f"<li>{escape(remark)}</li>" for remark in table.remarks)
    commands = "".join(f"<p><code>{escape(command)}</code></p>" for command in table.commands)
    return (
        f"<h1>{escape(table.task)}</h1>\n<p>{escape(layout.conditions(table))}</p>\n"
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n'
        f"</tbody></table></div>\n"
        + (f"<ul>{remarks}</ul>\n" if remarks else "")
        + f"{drawings}\n{commands}"
    )
