"""`antiphon trace view`: a stored trace as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.cli import options as opt
from antiphon.detokenizer import Detokenizer
from antiphon.errors import UserError
from antiphon.models import source
from antiphon.serve.page import trace_page

app = typer.Typer(no_args_is_help=True)


@app.callback()
def trace() -> None:
    """Look at what `antiphon generate --trace` wrote."""


@app.command()
def view(
    file: Annotated[Path, typer.Argument(help="A trace: the JSONL of generate --trace.")],
    out: Annotated[Path, typer.Option(help="Write the page here.")],
    target: opt.Target = None,
) -> None:
    """Write a self-contained page: who wrote each token, round by round.

    --target names the model whose tokenizer the trace's ids belong to.
    """
    finished, rounds = read(file)
    if target is None:
        from antiphon.lab import pair_path

        target = str(pair_path("target"))
    tokenizer = source.find(target).tokenizer
    texts = [text(tokenizer, record, rounds.get(name, [])) for name, record in finished.items()]
    out.write_text(trace_page(file.name, texts), encoding="utf-8")
    typer.echo(f"wrote {out}", err=True)


def read(file: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The finished samples of a trace, and the rounds of each.

    Raises UserError for a file that is none, or in which nothing is finished.
    """
    finished: dict[str, Any] = {}
    rounds: dict[str, list[Any]] = {}
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["event"] == "finished":
                finished[record["request"]] = record
            else:
                rounds.setdefault(record["request"], []).append(record)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: is no trace ({error}): make one with --trace") from None
    if not finished:
        raise UserError(f"{file}: holds no finished text: make one with antiphon generate --trace")
    return finished, rounds


def text(tokenizer: Any, record: dict[str, Any], rounds: list[Any]) -> dict[str, Any]:
    """One sample as the page shows it. Raises UserError for ids the tokenizer has not."""
    if max(record["token_ids"], default=0) >= len(tokenizer):
        raise UserError("the trace has ids that this tokenizer lacks: give --target PATH")
    reader = Detokenizer(tokenizer)
    told = zip(record["token_ids"], record["provenance"], record["logprobs"], strict=True)
    return {
        "title": f"sample {record['request']}",
        "tokens": [
            {"text": reader.push(token), "who": who, "logprob": value} for token, who, value in told
        ],
        "statistics": record["statistics"],
        "seed": record["seed"],
        "rounds": [
            {**each, "proposed": len(each["proposed"]), "committed": None} for each in rounds
        ],
    }
