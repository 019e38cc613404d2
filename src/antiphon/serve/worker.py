"""The engine in a thread of its own: requests of any thread go in, their news come out.

The engine knows nothing of threads. So everything that touches it, a cancellation included,
is a job that the thread runs between two steps.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from antiphon.engine import Engine
from antiphon.methods import Method
from antiphon.params import SamplingParams
from antiphon.result import Delta

logger = logging.getLogger(__name__)

T = TypeVar("T")
Listener = Callable[[str, Delta | None], None]
"""Hears a sample's news, in the engine's thread: it must return at once and raise nothing.

Called with the sample's name and a delta, or None where the engine ended before the sample did.
"""


class BusyError(RuntimeError):
    """The line is full: try again later."""


class ClosingError(RuntimeError):
    """The server is shutting down and takes no more requests."""


class Worker:
    """Runs an engine until it is stopped.

    Args:
        engine: nobody else may touch it any more.
        longest_line: samples that may wait beyond those in flight.
    """

    def __init__(self, engine: Engine, longest_line: int) -> None:
        self.engine = engine
        self.longest_line = longest_line
        self.failure: BaseException | None = None
        self._listeners: dict[str, Listener] = {}
        self._jobs: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = self._ended = False
        self._thread = threading.Thread(target=self._run, name="antiphon-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(
        self, asks: Sequence[tuple[Sequence[int], SamplingParams, Method]], listen: Listener
    ) -> Future[list[list[str]]]:
        """Put prompts in line, all or none; the names of each one's samples.

        The future raises UserError for what the engine refuses, `BusyError` where the line is
        full, and `ClosingError` after `stop`. No news is told before it is done.
        """

        def job() -> list[list[str]]:
            samples = sum(params.n for _, params, _ in asks)
            room = self.engine.max_batch - len(self.engine.in_flight)
            if self.engine.waiting + samples > self.longest_line + room:
                raise BusyError(f"{self.engine.waiting} samples are waiting already")
            groups: list[list[str]] = []
            try:
                for prompt, params, method in asks:
                    groups.append(self.engine.submit(prompt, params, method))
            except Exception:
                for name in (name for group in groups for name in group):
                    self.engine.cancel(name)
                raise
            self._listeners.update({name: listen for group in groups for name in group})
            return groups

        return self._do(job)

    def cancel(self, names: Sequence[str]) -> None:
        """End samples before the next step; nobody hears of them any more."""

        def job() -> None:
            for name in names:
                self._listeners.pop(name, None)
                self.engine.cancel(name)

        self._do(job)

    def stop(self, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests; finish those in flight (or drop them), then end the thread."""
        with self._wake:
            self._closing = True
            self._ended = self._ended or not drain
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            with self._wake:
                self._ended = True
                self._wake.notify()
            self._thread.join()

    @property
    def healthy(self) -> bool:
        """Whether the thread runs and takes requests."""
        return self._thread.is_alive() and not self._closing and self.failure is None

    def _do(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)

        with self._wake:
            if self._closing or self.failure is not None:
                future.set_exception(ClosingError("the server is shutting down"))
                return future
            self._jobs.append(run)
            self._wake.notify()
        return future

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    while not (self._jobs or self.engine.busy or self._closing):
                        self._wake.wait()
                    jobs, self._jobs = self._jobs, deque()
                    # A request that came before the end is still served.
                    over = self._ended or (self._closing and not jobs and not self.engine.busy)
                for job in jobs:
                    job()
                if over:
                    return
                for delta in self.engine.step():
                    self._tell(delta)
        except Exception as error:
            self.failure = error
            logger.exception("the engine has failed")
        finally:
            self._drop()

    def _tell(self, delta: Delta) -> None:
        done = delta.result is not None
        find = self._listeners.pop if done else self._listeners.get
        listener = find(delta.request, None)
        if listener is not None:
            listener(delta.request, delta)

    def _drop(self) -> None:
        """Whoever still waits hears that nothing more comes."""
        with self._wake:
            self._closing = True
            jobs, self._jobs = self._jobs, deque()
        for job in jobs:
            job()
        for name, listener in self._listeners.items():
            self.engine.cancel(name)
            listener(name, None)
        self._listeners.clear()
