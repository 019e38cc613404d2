"""The HTTP side: routes, status codes and streams. Nothing here knows how tokens are made."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version as version_of
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from antiphon.errors import UserError
from antiphon.serve.fields import ChatRequest, CompletionRequest, FieldError, TokenizeRequest
from antiphon.serve.guard import Guard, error_object
from antiphon.serve.offers import UnknownModelError
from antiphon.serve.page import page
from antiphon.serve.service import Job, Run, SampleError, Service
from antiphon.serve.worker import BusyError, ClosingError

logger = logging.getLogger(__name__)

_GONE = 499
"""nginx's status for a client that went away; nobody reads it."""
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text}
    for status, text in {
        400: "The request is refused; the error names the field.",
        401: "The API key is missing or wrong.",
        404: "The model is not offered.",
        413: "The body is too large.",
        429: "The line is full: try again later.",
        500: "A method failed.",
        503: "The server is shutting down.",
        504: "The request took too long.",
    }.items()
}


def make_app(
    service: Service,
    key: str | None = None,
    origins: Sequence[str] = (),
    example: str = "",
) -> FastAPI:
    """The ASGI application; its lifespan starts the worker and drains it.

    Args:
        key: every request but health checks and the page must carry it; None: none.
        origins: that browsers may ask from.
        example: a prompt that the page begins with.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await run_in_threadpool(service.worker.stop, True, service.limits.drain)

    app = FastAPI(
        title="antiphon",
        version=version_of("antiphon"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(Guard, key=key, largest_body=service.limits.max_body)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    _routes(app, service, example)
    _errors(app, service)
    return app


def _routes(app: FastAPI, service: Service, example: str) -> None:
    @app.post("/v1/completions", responses=_ERRORS)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await _serve(service, await run_in_threadpool(service.prepare, body), request)

    @app.post("/v1/chat/completions", responses=_ERRORS)
    async def chat(body: ChatRequest, request: Request) -> Response:
        return await _serve(service, await run_in_threadpool(service.prepare, body), request)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in service.offers.names()]}

    @app.get("/v1/models/{name:path}", responses={404: _ERRORS[404]})
    async def model(name: str) -> dict[str, Any]:
        service.offers.find(name, None, {})
        return _model(name)

    @app.post("/tokenize", responses=_ERRORS)
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        if (body.prompt is None) == (body.messages is None):
            raise FieldError("prompt", "give either prompt or messages")
        if body.messages is not None:
            ids = await run_in_threadpool(service.conversation, body.messages)
        else:
            ids = await run_in_threadpool(service.text_ids, body.prompt or "")
        return {"tokens": list(ids), "count": len(ids), "max_model_len": service.context}

    @app.get("/health", responses={503: _ERRORS[503]})
    async def health() -> Response:
        return Response(status_code=200 if service.worker.healthy else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": version_of("antiphon")}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", response_class=HTMLResponse)
    async def home() -> str:
        offers = service.offers
        return page(offers.name, list(offers.methods), offers.default_name, example)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "antiphon"}


async def _serve(service: Service, job: Job, request: Request) -> Response:
    run = await service.begin(job)
    if job.stream:
        return StreamingResponse(_events(service, run), media_type="text/event-stream")
    finished = asyncio.ensure_future(_finish(run))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({finished, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not finished.done():
            return Response(status_code=_GONE)
        return JSONResponse(await finished)
    finally:
        finished.cancel()
        gone.cancel()
        await asyncio.gather(finished, gone, return_exceptions=True)


async def _finish(run: Run) -> dict[str, Any]:
    news = run.news()
    try:
        async for _ in news:
            pass
    finally:
        await news.aclose()  # type: ignore[attr-defined]
    return run.job.answer.whole(run.voices, run.in_order)


async def _gone(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.1)


async def _events(service: Service, run: Run) -> AsyncIterator[str]:
    """Server-sent events; a client that goes away ends this generator, and so the samples."""
    answer = run.job.answer
    news = run.news()
    try:
        for index in range(len(run.voices)):
            opening = answer.opening(index)
            if opening is not None:
                yield _event(opening)
        async for index, delta in news:
            yield _event(answer.chunk(index, run.voices[index], delta))
        if run.job.include_usage:
            yield _event(answer.closing(run.in_order))
    except Exception as error:
        status, body = _told(error)
        service.metrics.refused.labels(str(status)).inc()
        yield _event(body)
    finally:
        await news.aclose()  # type: ignore[attr-defined]
    yield "data: [DONE]\n\n"


def _event(record: Any) -> str:
    return f"data: {json.dumps(record, ensure_ascii=False)}\n\n"


def _told(error: Exception) -> tuple[int, Any]:
    """The status code and the error object of whatever went wrong."""
    invalid = "invalid_request_error"
    match error:
        case FieldError():
            return 400, error_object(str(error), invalid, error.param)
        case UserError():
            return 400, error_object(str(error), invalid)
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"] if part != "body")
            text = f"{where or 'the body'}: {first['msg']}"
            return 400, error_object(text, invalid, where or None)
        case UnknownModelError():
            return 404, error_object(str(error), invalid, "model", "model_not_found")
        case BusyError():
            return 429, error_object(f"{error}: try again later", "rate_limit_error")
        case ClosingError():
            return 503, error_object(str(error), "server_error")
        case TimeoutError():
            return 504, error_object("the request took too long: ask for less", "timeout_error")
        case SampleError():
            return 500, error_object(str(error), "server_error")
        case HTTPException():
            return error.status_code, error_object(str(error.detail), invalid)
    logger.error("a request failed", exc_info=error)
    return 500, error_object("internal error: see the server's log", "server_error")


def _errors(app: FastAPI, service: Service) -> None:
    async def answer(_: Request, error: Exception) -> Response:
        status, body = _told(error)
        service.metrics.refused.labels(str(status)).inc()
        headers = {"Retry-After": "1"} if status == 429 else None
        if isinstance(error, HTTPException) and error.headers:
            headers = dict(error.headers)
        return JSONResponse(body, status, headers)

    for kind in (
        UserError,
        RequestValidationError,
        UnknownModelError,
        BusyError,
        ClosingError,
        TimeoutError,
        SampleError,
        HTTPException,
        Exception,
    ):
        app.add_exception_handler(kind, answer)
