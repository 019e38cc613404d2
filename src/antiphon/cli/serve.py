"""`antiphon serve`: an OpenAI-compatible server over one pair."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.api import make_engine
from antiphon.cli import options as opt
from antiphon.errors import UserError
from antiphon.methods import METHODS, Method, spec
from antiphon.serve.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from antiphon.models.pair import ModelPair

KEY = "ANTIPHON_API_KEY"
_SERVER = "Server"
_LIMITS = "Limits"
DEFAULTS = Limits()


def serve(
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
    host: Annotated[str, typer.Option(help="Address.", rich_help_panel=_SERVER)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="0: a free one.", min=0, max=65535, rich_help_panel=_SERVER)
    ] = 8000,
    name: Annotated[
        str | None,
        typer.Option(help="The model's name. Default: the target's.", rich_help_panel=_SERVER),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME:field=value,... sets a method's defaults; may be repeated. The first one "
            "is what the bare model name stands for. Default: speculative with a draft.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            help="An origin that browsers may ask from; may be repeated.", rich_help_panel=_SERVER
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Samples in flight.", rich_help_panel=_LIMITS)
    ] = DEFAULTS.batch,
    queue: Annotated[
        int, typer.Option(help="Samples that may wait.", rich_help_panel=_LIMITS)
    ] = DEFAULTS.queue,
    timeout: Annotated[
        float, typer.Option(help="Seconds a request may take.", rich_help_panel=_LIMITS)
    ] = DEFAULTS.timeout,
    max_context: Annotated[
        int | None,
        typer.Option(help="Most tokens of prompt and answer.", rich_help_panel=_LIMITS),
    ] = DEFAULTS.max_context,
    max_samples: Annotated[
        int, typer.Option(help="Most samples of a request.", rich_help_panel=_LIMITS)
    ] = DEFAULTS.max_samples,
    max_body: Annotated[
        int, typer.Option(help="Most bytes of a request.", rich_help_panel=_LIMITS)
    ] = DEFAULTS.max_body,
    keep: Annotated[
        int,
        typer.Option(
            help="Tokens of ended texts that stay in the caches, for prompts that begin alike.",
            rich_help_panel=_LIMITS,
        ),
    ] = DEFAULTS.keep,
    drain: Annotated[
        float,
        typer.Option(
            help="Seconds that texts in flight may take after SIGTERM.", rich_help_panel=_LIMITS
        ),
    ] = DEFAULTS.drain,
) -> None:
    """Serve the pair; the bundled one on 127.0.0.1:8000 without any flag.

    An API key is read from the environment variable ANTIPHON_API_KEY.
    """
    try:
        import uvicorn

        import antiphon.serve.app  # noqa: F401
    except ImportError as error:
        raise UserError(f"the server needs {error.name}: pip install 'antiphon[serve]'") from error
    if draft == "ngram":
        raise UserError("--draft ngram: give --method speculative:drafter=ngram")
    limits = Limits(
        batch=batch,
        queue=queue,
        timeout=timeout,
        max_context=max_context,
        max_samples=max_samples,
        max_body=max_body,
        keep=keep,
        drain=drain,
    )
    given = [spec.parse(text) for text in method or []]
    pair = opt.load(
        target, draft, device, dtype, target_quant, draft_quant, threads, profile, engine, head
    )
    name = name or ("lab" if target is None else Path(pair.target.name).name)
    example = _example(bundled=target is None)
    app = build(pair, name, given, limits, os.environ.get(KEY) or None, cors or (), example)
    typer.echo(f"{pair.description}\n{name} on http://{host}:{port} (Ctrl-C ends it)", err=True)
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=max(int(drain), 1),
        server_header=False,
    )


def build(
    pair: ModelPair,
    name: str,
    given: Sequence[Method],
    limits: Limits,
    key: str | None = None,
    origins: Sequence[str] = (),
    example: str = "",
) -> FastAPI:
    """The application the flags describe, over a loaded pair."""
    from antiphon.serve.app import make_app
    from antiphon.serve.metrics import Metrics
    from antiphon.serve.offers import Offers
    from antiphon.serve.service import Service
    from antiphon.serve.worker import Worker

    engine = make_engine(pair, batch=limits.batch, costs=True)
    for model in (pair.target, pair.draft):
        # Only compiled models share beginnings; the eager engine's trees own their caches.
        prefixes = getattr(model, "prefixes", None)
        if prefixes is not None:
            prefixes.kept_tokens = limits.keep
    default = METHODS["autoregressive" if pair.draft is None else "speculative"]()
    offers = Offers(
        name,
        engine.models,
        given[0] if given else default,
        {spec.name_of(method): method for method in given},
    )
    worker = Worker(engine, limits.queue)
    metrics = Metrics(worker, {"target": pair.target, "draft": pair.draft})
    service = Service(pair, worker, offers, metrics, limits)
    return make_app(service, key, origins, example)


def _example(bundled: bool) -> str:
    """A prompt for the page to begin with: one that the pair was trained for."""
    if not bundled:
        return "Natalia sold 48 clips in April and half as many in May. How many in all?"
    from antiphon.lab.problems import problem

    return problem("test", 0).question
