"""`antiphon serve`: an OpenAI-compatible server over one pair."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.api import make_engine
from antiphon.cli import options as opt
from antiphon.errors import UserError
from antiphon.methods import METHODS, Method, spec

if TYPE_CHECKING:
    from fastapi import FastAPI

    from antiphon.models.pair import ModelPair

KEY = "ANTIPHON_API_KEY"
_SERVER = "Server"
_LIMITS = "Limits"


def serve(
    target: opt.Target = None,
    draft: opt.Draft = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    target_quant: opt.TargetQuant = "none",
    draft_quant: opt.DraftQuant = "none",
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
        int, typer.Option(help="Samples in flight.", min=1, rich_help_panel=_LIMITS)
    ] = 16,
    queue: Annotated[
        int, typer.Option(help="Samples that may wait.", min=0, rich_help_panel=_LIMITS)
    ] = 64,
    timeout: Annotated[
        float, typer.Option(help="Seconds a request may take.", rich_help_panel=_LIMITS)
    ] = 600.0,
    max_context: Annotated[
        int | None,
        typer.Option(help="Most tokens of prompt and answer.", rich_help_panel=_LIMITS),
    ] = None,
    max_samples: Annotated[
        int, typer.Option(help="Most samples of a request.", min=1, rich_help_panel=_LIMITS)
    ] = 32,
    max_body: Annotated[
        int, typer.Option(help="Most bytes of a request.", min=1, rich_help_panel=_LIMITS)
    ] = 2**20,
    keep: Annotated[
        int,
        typer.Option(
            help="Tokens of ended texts that stay in the caches, for prompts that begin alike.",
            min=0,
            rich_help_panel=_LIMITS,
        ),
    ] = 16384,
    drain: Annotated[
        float,
        typer.Option(
            help="Seconds that texts in flight may take after SIGTERM.", rich_help_panel=_LIMITS
        ),
    ] = 60.0,
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
    given = [spec.parse(text) for text in method or []]
    pair = opt.load(
        target, draft, device, dtype, target_quant, draft_quant, threads, profile, engine=engine
    )
    name = name or ("lab" if target is None else Path(pair.target.name).name)
    app = build(
        pair,
        name,
        given,
        key=os.environ.get(KEY) or None,
        origins=cors or [],
        batch=batch,
        queue=queue,
        timeout=timeout,
        max_context=max_context,
        max_samples=max_samples,
        max_body=max_body,
        keep=keep,
        drain=drain,
        example=_example(bundled=target is None),
    )
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
    given: list[Method],
    key: str | None = None,
    origins: list[str] | None = None,
    batch: int = 16,
    queue: int = 64,
    timeout: float = 600.0,
    max_context: int | None = None,
    max_samples: int = 32,
    max_body: int = 2**20,
    keep: int = 16384,
    drain: float = 60.0,
    example: str = "",
) -> FastAPI:
    """The application the flags describe, over a loaded pair."""
    from antiphon.serve.app import make_app
    from antiphon.serve.metrics import Metrics
    from antiphon.serve.offers import Offers
    from antiphon.serve.service import Limits, Service
    from antiphon.serve.worker import Worker

    limits = Limits(max_samples, max_context, timeout)
    engine = make_engine(pair, batch=batch, costs=True)
    for model in (pair.target, pair.draft):
        # Only compiled models share beginnings; the eager engine's trees own their caches.
        prefixes = getattr(model, "prefixes", None)
        if prefixes is not None:
            prefixes.kept_tokens = keep
    default = METHODS["autoregressive" if pair.draft is None else "speculative"]()
    offers = Offers(
        name,
        engine.models,
        given[0] if given else default,
        {spec.name_of(method): method for method in given},
    )
    worker = Worker(engine, queue)
    metrics = Metrics(worker, {"target": pair.target, "draft": pair.draft})
    service = Service(pair, worker, offers, metrics, limits)
    return make_app(service, key, max_body, origins or (), drain, example)


def _example(bundled: bool) -> str:
    """A prompt for the page to begin with: one that the pair was trained for."""
    if not bundled:
        return "Natalia sold 48 clips in April and half as many in May. How many in all?"
    from antiphon.lab.problems import problem

    return problem("test", 0).question
