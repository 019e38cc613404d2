"""What a training shows while it runs: a live bar on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

if TYPE_CHECKING:
    from antiphon.lab.recipe import Progress as Done
    from antiphon.lab.spec import Plan

_LOG_EVERY = 15.0


class Display:
    """A context manager; `update` after every step."""

    def __init__(self, name: str) -> None:
        self._console = Console(stderr=True)
        self._name = name
        self._live = self._console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"),
            console=self._console, disable=not self._live,
        )  # fmt: skip
        self._task = self._bar.add_task(name, total=1.0, text="")
        self._last: tuple[float, int] | None = None
        self._speed = 0.0
        self._logged = 0.0

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def update(self, done: Done, plan: Plan) -> None:
        """Shows step, loss, speed and the time left."""
        share = done.share(plan)
        if self._last is not None and done.seconds > self._last[0]:
            speed = (done.tokens - self._last[1]) / (done.seconds - self._last[0])
            self._speed = speed if self._speed == 0 else 0.95 * self._speed + 0.05 * speed
        self._last = (done.seconds, done.tokens)
        left = done.seconds * (1 - share) / share if share > 0 else 0.0
        text = (
            f"step {done.step}  loss {done.loss:.3f}  {self._speed:,.0f} tok/s  "
            f"{done.tokens / 1e6:.2f}M tokens  {share:.0%}  {left / 60:.0f} min left"
        )
        self._bar.update(self._task, completed=share, text=text)
        if not self._live and time.monotonic() - self._logged > _LOG_EVERY:
            self._logged = time.monotonic()
            print(f"{time.strftime('%H:%M:%S')} {self._name}: {text}", flush=True)

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._live:
            self._console.print(text)
        else:
            print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
