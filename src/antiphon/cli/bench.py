"""`antiphon bench`: methods and peers side by side, and the costs of a pass."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from rich.table import Table

from antiphon.api import encode, pair_costs
from antiphon.bench.contestants import Ours, contestants
from antiphon.bench.figure import save
from antiphon.bench.laps import Contestant
from antiphon.bench.peers.engines import PeerOptions
from antiphon.bench.prompts import load_prompts
from antiphon.bench.race import Report, race
from antiphon.bench.rules import rule_costs
from antiphon.bench.split import split_rounds
from antiphon.cli import options as opt
from antiphon.costs import machine
from antiphon.drafting.length import best_length
from antiphon.errors import UserError
from antiphon.models.pair import ModelPair
from antiphon.params import SamplingParams


def bench(
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
    methods: Annotated[
        str, typer.Option(help="autoregressive, speculative, ngram, multi-draft; commas between.")
    ] = "autoregressive,speculative",
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:knob=value,...]",
            help="One more contestant, any of `antiphon methods`; may be repeated.",
        ),
    ] = None,
    peers: Annotated[
        str,
        typer.Option(
            help="transformers, transformers-assisted, openvino, openvino-speculative, vllm, "
            "vllm-draft, llama-cpp; commas between. docs/bench.md says how to set them up."
        ),
    ] = "",
    peer_dtype: Annotated[
        str,
        typer.Option(help="Weights of transformers and vLLM: float32, bfloat16, float16."),
    ] = "bfloat16",
    peer_weights: Annotated[
        str, typer.Option(help="Weights of OpenVINO: int8, int4, bfloat16, float32.")
    ] = "int8",
    gamma: Annotated[str, typer.Option(help="Draft tokens per round, or 'auto'.")] = "4",
    task: Annotated[str, typer.Option(help="lab, or gsm8k with --data.")] = "lab",
    data: Annotated[Path | None, typer.Option(help="JSONL with a 'question' in each line.")] = None,
    limit: Annotated[int, typer.Option(help="Number of prompts.")] = 20,
    max_tokens: Annotated[int, typer.Option(help="Longest output.")] = 200,
    batch: Annotated[
        int, typer.Option(help="Requests at once (of the peers, openvino and vllm take many).")
    ] = 1,
    repeats: Annotated[int, typer.Option(help="Passes over the prompts.")] = 1,
    temperature: opt.Temperature = 0.0,
    seed: Annotated[int, typer.Option(help="Random seed, for temperatures above 0.")] = 0,
    costs: Annotated[
        bool, typer.Option("--costs", help="Measure pass costs over 1 to 64 rows and stop.")
    ] = False,
    rules: Annotated[
        bool, typer.Option("--rules", help="Measure what each token rule costs and stop.")
    ] = False,
    split: Annotated[
        bool, typer.Option("--split", help="Measure where a round's time goes and stop.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Append every lap to this JSONL file.")] = None,
    record: Annotated[Path | None, typer.Option(help="Keep the final JSON here.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the speeds with their intervals, as SVG.")
    ] = None,
) -> None:
    """Race methods and peers on the same prompts; ratios with their spread, then one JSON line."""
    if limit < 1 or repeats < 1 or batch < 1:
        raise UserError("--limit, --repeats and --batch are whole numbers >= 1")
    if costs + rules + split > 1:
        raise UserError("--costs, --rules and --split each measure one thing: give one of them")
    if costs or rules:
        pair = opt.load(
            target, draft, device, dtype, target_quant, draft_quant, threads, profile, engine, head
        )
        measured = print_costs(pair) if costs else print_rules(pair, opt.parse_gamma(gamma))
        finish(measured | {"pair": pair.description}, record)
        return
    questions = load_prompts(task, data, limit)
    params = opt.sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)
    pair = opt.load(
        target, draft, device, dtype, target_quant, draft_quant, threads, profile, engine, head
    )
    block = opt.parse_gamma(gamma)
    options = PeerOptions(
        dtype=peer_dtype,
        weights=peer_weights,
        gamma=4 if block == "auto" else block,
        threads=torch.get_num_threads(),
        batch=batch,
        seed=seed,
    )

    def say(line: str) -> None:
        typer.echo(line, err=True)

    peer = {"peer_dtype": peer_dtype, "peer_weights": peer_weights} if peers else {}
    run = {"pair": pair.description, "task": task, "gamma": gamma, "seed": seed} | peer
    ours = [*_names(methods), *(method or [])]
    with contestants(
        pair, ours, _names(peers), block, (target, draft), options, params, say
    ) as racers:
        if split:
            finish(print_split(pair, racers, questions, params) | run, record)
            return
        report = race(racers, questions, params, repeats, out)
    print_report(report, pair)
    if figure is not None:
        save(report, pair.description, figure)
    finish(report.to_json() | run, record)
    if report.failed:
        for error in report.failed.values():
            typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1)


def finish(result: dict[str, Any], record: Path | None) -> None:
    """The JSON line for machines, last; and the same with its command in a file."""
    result = result | {"machine": machine(), "date": date.today().isoformat()}
    print(json.dumps(result))
    if record is not None:
        command = shlex.join(["antiphon", *sys.argv[1:]])
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"command": command} | result, indent=1) + "\n")


def print_report(report: Report, pair: ModelPair) -> None:
    """The table, with ratios to the first contestant."""
    console = Console()
    table = Table(
        "contestant", "tok/s", "ratio (95 %)", "decode tok/s", "ratio (95 %)", "same text"
    )
    for row in report.rows:
        table.add_row(
            row.name,
            f"{row.tokens_per_second:.2f}",
            f"{row.ratio:.2f} ({row.ratio_low:.2f} to {row.ratio_high:.2f})",
            f"{row.decode_tokens_per_second:.2f}" if row.decode_tokens_per_second else "-",
            f"{row.decode_ratio:.2f} ({row.decode_ratio_low:.2f} to {row.decode_ratio_high:.2f})"
            if row.decode_ratio
            else "-",
            f"{row.same_text}/{report.prompts * report.repeats}",
        )
    console.print(f"{pair.description}; {report.prompts} prompts; {machine()}")
    console.print(table)


def print_costs(pair: ModelPair) -> dict[str, Any]:
    """Milliseconds of a pass over 1 to 64 rows, and what they allow; returns them."""
    measured = pair_costs(pair, fresh=True)
    console = Console()
    table = Table("rows", pair.target.name, pair.draft.name if pair.draft else "no draft")
    for rows, seconds in measured.target.by_rows.items():
        other = f"{1e3 * measured.draft.seconds(rows):.2f} ms" if measured.draft else "-"
        table.add_row(str(rows), f"{1e3 * seconds:.2f} ms", other)
    console.print(table)
    console.print(f"c = {measured.ratio:.3f} (a draft pass in target passes)")
    outlook = Table("share of drafts accepted", "best gamma", "predicted speed-up")
    for acceptance in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        gamma, gain = best_length(acceptance, measured)
        outlook.add_row(f"{acceptance:.0%}", str(gamma), f"{gain:.2f}x")
    console.print(outlook)
    return {
        "target_ms": {r: 1e3 * s for r, s in measured.target.by_rows.items()},
        "draft_ms": {r: 1e3 * s for r, s in measured.draft.by_rows.items()}
        if measured.draft
        else None,
    }


def print_rules(pair: ModelPair, gamma: int | Literal["auto"]) -> dict[str, Any]:
    """What each rule adds to a round of this pair; returns it."""
    if gamma == "auto":
        raise UserError("--rules needs a fixed block length: give --gamma N")
    whole = pair_costs(pair).round_seconds(gamma)
    found = rule_costs(pair.target.vocab_size, gamma)
    table = Table("rule", "ms a block", "beyond exact, ms", f"share of a round, gamma {gamma}")
    for cost in found:
        table.add_row(
            cost.name,
            f"{1e3 * cost.seconds:.2f}",
            f"{1e3 * cost.extra:+.2f}",
            f"{max(cost.extra, 0) / whole:.1%}",
        )
    Console().print(table)
    return {
        "round_ms": 1e3 * whole,
        "rule_ms": {cost.name: 1e3 * cost.seconds for cost in found},
        "gamma": gamma,
        "vocabulary": pair.target.vocab_size,
    }


def print_split(
    pair: ModelPair, racers: Sequence[Contestant], questions: Sequence[str], params: SamplingParams
) -> dict[str, Any]:
    """Where a round's time goes, method by method; returns it."""
    ours = [racer for racer in racers if isinstance(racer, Ours)]
    if len(ours) < len(racers):
        raise UserError("peers cannot be split: drop --peers")
    prompts = [encode(pair, question) for question in questions]
    found = [
        split_rounds(
            *(racer.name, racer.method, racer.engine.models, racer.engine.vocabulary),
            *(prompts, params, racer.batch),
        )
        for racer in ours
    ]
    table = Table("method", "rounds", "batch", "draft ms", "target ms", "engine ms", "share")
    for each in found:
        table.add_row(
            each.name,
            str(each.rounds),
            f"{each.requests:.1f}",
            f"{each.draft_ms:.2f}",
            f"{each.target_ms:.2f}",
            f"{each.engine_ms:.2f}",
            f"{each.engine_share:.1%}",
        )
    console = Console()
    console.print(f"{pair.description}; a round, on average; {machine()}")
    console.print(table)
    return {
        "split": [each.to_json() for each in found],
        "temperature": params.temperature,
        "prompts": len(prompts),
        "max_tokens": params.max_tokens,
        "batch": ours[0].batch,
    }


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
