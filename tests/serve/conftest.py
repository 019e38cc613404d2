"""A server over the bundled pair, in a thread of the test's own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from antiphon.cli.serve import build
from antiphon.lab import pair_path
from antiphon.methods import SMC, Speculative
from antiphon.models.pair import LoadOptions, ModelPair, load_pair
from antiphon.serve.limits import Limits

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
uvicorn = pytest.importorskip("uvicorn")

MODEL = "lab"
PROMPT = "Tom has 3 apples and buys 4 more apples. How many apples does Tom have?"


@dataclass(frozen=True)
class Server:
    """A running server: where it is, and the pair it serves."""

    url: str
    pair: ModelPair
    app: Any


@contextmanager
def serving(
    pair: ModelPair, key: str | None = None, origins: Sequence[str] = (), **limits: Any
) -> Iterator[Server]:
    methods = [Speculative(), SMC(particles=4, gamma=4)]
    app = build(pair, MODEL, methods, Limits(**limits), key, origins)
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=20)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 30
    while not server.started and time.monotonic() < end:
        time.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield Server(f"http://{host}:{port}", pair, app)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def lab_pair() -> ModelPair:
    target, draft = (str(pair_path(role)) for role in ("target", "draft"))
    return load_pair(target, draft, LoadOptions(dtype="float32"))


@pytest.fixture(scope="session")
def server(lab_pair: ModelPair) -> Iterator[Server]:
    with serving(lab_pair, queue=256, max_context=1024) as running:
        yield running
