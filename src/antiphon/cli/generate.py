"""`antiphon generate` and `antiphon chat`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from antiphon.api import encode, encode_messages, make_engine, needs_costs, pair_costs
from antiphon.cli import options as opt
from antiphon.cli.show import Painter, legend, painted, summary
from antiphon.drafting.length import best_length
from antiphon.engine import Engine
from antiphon.errors import UserError
from antiphon.methods import Method, Speculative
from antiphon.models.pair import ModelPair
from antiphon.params import SamplingParams
from antiphon.result import Result
from antiphon.trace import TraceWriter


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt. Default: standard input.")
    ] = None,
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
    method: opt.MethodName = None,
    gamma: opt.Gamma = None,
    chains: opt.Chains = None,
    confidence: opt.Confidence = None,
    rule: opt.Rule = None,
    rule_arg: opt.RuleArg = None,
    rescue: opt.Rescue = None,
    veto: opt.Veto = None,
    veto_entropy: opt.VetoEntropy = None,
    temperature: opt.Temperature = 0.0,
    top_k: opt.TopK = 0,
    top_p: opt.TopP = 1.0,
    min_p: opt.MinP = 0.0,
    repetition_penalty: opt.RepetitionPenalty = 1.0,
    presence_penalty: opt.PresencePenalty = 0.0,
    frequency_penalty: opt.FrequencyPenalty = 0.0,
    max_tokens: opt.MaxTokens = 256,
    stop: opt.Stop = None,
    seed: opt.Seed = None,
    ignore_eos: opt.IgnoreEos = False,
    n: Annotated[int, typer.Option("-n", help="Samples.")] = 1,
    logprobs: Annotated[int | None, typer.Option(help="Top alternatives per token.")] = None,
    chat: opt.Chat = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write every round to this JSONL file.")
    ] = None,
    stream: Annotated[bool, typer.Option(help="Print text as it comes.")] = False,
) -> None:
    """Answer one prompt."""
    if stream and (as_json or n > 1):
        raise UserError("--stream prints one text as it comes: drop --json and -n")
    params = opt.sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        seed=seed,
        ignore_eos=ignore_eos,
        n=n,
        logprobs=logprobs,
    )
    has_draft = draft is not None or target is None
    given = opt.knobs(gamma, chains, confidence, rule, rule_arg, rescue, veto, veto_entropy)
    chosen = opt.build_method(method, draft, has_draft, given)
    text = sys.stdin.read() if prompt is None else prompt
    if not text.strip():
        raise UserError("the prompt is empty: give it as an argument or on standard input")
    pair = opt.load(
        target,
        draft,
        device,
        dtype,
        target_quant,
        draft_quant,
        threads,
        profile,
        engine,
        head,
        quiet=as_json,
    )
    ids = encode(pair, text, chat)
    warn_if_slow(pair, chosen)
    writer = TraceWriter(trace) if trace else None
    try:
        loop = make_engine(pair, batch=n, costs=needs_costs(chosen), trace=writer)
        results = run(loop, pair, ids, params, chosen, live=stream)
    finally:
        if writer:
            writer.close()
    report(results, pair, ids, as_json, stream)


def run(
    engine: Engine,
    pair: ModelPair,
    ids: tuple[int, ...],
    params: SamplingParams,
    method: Method,
    live: bool,
) -> list[Result]:
    """All samples of one prompt; Ctrl-C ends them and keeps what they wrote."""
    console = Console(highlight=False)
    painter = Painter(pair.tokenizer, ids)
    names = engine.submit(ids, params, method)
    done: dict[str, Result] = {}
    try:
        while len(done) < len(names):
            for delta in engine.step():
                if live and console.is_terminal:
                    for piece in painter.paint(delta.token_ids, delta.provenance):
                        console.print(piece, end="", soft_wrap=True)
                elif live:
                    print(delta.text, end="", flush=True)
                if delta.result is not None:
                    done[delta.request] = delta.result
    except KeyboardInterrupt:
        for name in names:
            delta_or_none = engine.cancel(name)
            if delta_or_none is not None and delta_or_none.result is not None:
                done[name] = delta_or_none.result
                if live:
                    print(delta_or_none.text, end="", flush=True)
    if live:
        print()
    return [done[name] for name in names if name in done]


def report(
    results: list[Result], pair: ModelPair, ids: tuple[int, ...], as_json: bool, streamed: bool
) -> None:
    """Print results; the exit code is 130 after Ctrl-C and 1 after an error in a method."""
    console = Console(highlight=False)
    if as_json:
        records = [result.to_json() for result in results]
        print(json.dumps(records[0] if len(records) == 1 else records, ensure_ascii=False))
    else:
        for result in results:
            if console.is_terminal and not streamed:
                console.print(painted(pair.tokenizer, ids, result, console), soft_wrap=True)
            elif not streamed:
                print(result.text)
            if console.is_terminal:
                console.print(legend(console), f"({summary(result)})", style="dim")
    failed = next((result.error for result in results if result.error), None)
    if failed:
        typer.echo(f"error: {failed}", err=True)
        raise typer.Exit(1)
    if any(result.finish_reason == "cancelled" for result in results) or not results:
        raise typer.Exit(130)


def chat(
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
    method: opt.MethodName = None,
    gamma: opt.Gamma = None,
    chains: opt.Chains = None,
    confidence: opt.Confidence = None,
    rule: opt.Rule = None,
    rule_arg: opt.RuleArg = None,
    rescue: opt.Rescue = None,
    veto: opt.Veto = None,
    veto_entropy: opt.VetoEntropy = None,
    temperature: opt.Temperature = 0.0,
    max_tokens: opt.MaxTokens = 256,
    stop: opt.Stop = None,
    seed: opt.Seed = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
) -> None:
    """Talk with the pair; an empty line or Ctrl-D ends it, Ctrl-C ends an answer."""
    params = opt.sampling(
        temperature=temperature, max_tokens=max_tokens, stop=tuple(stop or ()), seed=seed
    )
    has_draft = draft is not None or target is None
    given = opt.knobs(gamma, chains, confidence, rule, rule_arg, rescue, veto, veto_entropy)
    chosen = opt.build_method(method, draft, has_draft, given)
    pair = opt.load(
        target, draft, device, dtype, target_quant, draft_quant, threads, profile, engine, head
    )
    warn_if_slow(pair, chosen)
    loop = make_engine(pair, costs=needs_costs(chosen))
    messages = [{"role": "system", "content": system}] if system else []
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not line:
            return
        messages.append({"role": "user", "content": line})
        results = run(loop, pair, encode_messages(pair, messages), params, chosen, live=True)
        for result in results:
            typer.echo(f"({summary(result)})", err=True)
            messages.append({"role": "assistant", "content": result.text})


def warn_if_slow(pair: ModelPair, method: Method) -> None:
    """Say so where measured costs rule speculation out, whatever the draft gets right.

    Pass costs are measured once per machine and pair, and kept in a profile.
    """
    if not isinstance(method, Speculative) or method.drafter != "model" or pair.draft is None:
        return
    costs = pair_costs(pair, say=lambda line: typer.echo(line, err=True))
    _, gain = best_length(1.0, costs)
    if gain <= 1.0:
        typer.echo(
            "warning: by the measured pass costs speculation cannot beat plain decoding here, "
            "however good the draft: use --method autoregressive",
            err=True,
        )
