"""A contestant in another process: started with its own interpreter, spoken to in JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.bench.laps import Lap, PeerError
from antiphon.errors import UserError
from antiphon.params import SamplingParams

START_SECONDS = 1800.0
"""Of patience with a start; one may have to export a model's weights first."""
GOODBYE_SECONDS = 10.0
LAST_LINES = 5

Encode = Callable[[str], Sequence[int]]


class Process:
    """A peer whose engine runs in a worker script.

    Args:
        name: of the contestant.
        interpreter: the Python of the engine's environment.
        script: the worker.
        wishes: what to load, as that script reads it.
        fix: how to get such an environment, for messages.
        encode: token ids of a prompt: a peer reads ours.
        eos: ids that end a text.
        batch: prompts that it answers at once.
        start_seconds: patience until it has loaded.

    Attributes:
        about: the versions and settings that the worker tells.
        log: file with what the engine printed; it stays if something fails.

    Raises:
        UserError: if the interpreter, a package or the start itself fails, with the fix.
    """

    peer = True

    def __init__(
        self,
        name: str,
        interpreter: Path,
        script: Path,
        wishes: Mapping[str, Any],
        fix: str,
        encode: Encode,
        eos: Sequence[int],
        batch: int = 1,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.name, self.batch = name, batch
        self._encode, self._eos, self._unread, self._fine = encode, list(eos), b"", False
        if not os.access(interpreter, os.X_OK):
            raise UserError(f"{name}: there is no Python at {interpreter}: {fix}")
        log = tempfile.NamedTemporaryFile(  # noqa: SIM115  # It is to outlive the process.
            prefix=f"antiphon-{name}-", suffix=".log", delete=False
        )
        self.log = Path(log.name)
        try:
            self._process = subprocess.Popen(
                [str(interpreter), str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
            )
        except OSError as error:
            raise UserError(f"{name}: {interpreter} does not start ({error}): {fix}") from error
        finally:
            log.close()
        try:
            self._send(wishes)
            hello = self._receive(start_seconds)
        except PeerError as error:
            self.close()
            raise UserError(str(error)) from error
        if "missing" in hello:
            self.close()
            raise UserError(f"{name}: {interpreter} lacks {hello['missing']}: {fix}")
        if "hello" not in hello:
            self.close()
            raise UserError(f"{name} did not start: {self._why(hello)}")
        self.about: Mapping[str, Any] = hello["hello"]
        self._fine = True

    def run(self, prompts: Sequence[str], params: SamplingParams) -> Lap:
        """Let the worker answer; raises PeerError if it cannot."""
        ids = [list(self._encode(prompt)) for prompt in prompts]
        self._fine = False
        parts = [self._lap(ids[i : i + self.batch], params) for i in range(0, len(ids), self.batch)]
        self._fine = True
        return Lap(
            token_ids=tuple(ids for part in parts for ids in part.token_ids),
            seconds=sum(part.seconds for part in parts),
            decode_seconds=sum(part.decode_seconds for part in parts),
            decode_tokens=sum(part.decode_tokens for part in parts),
        )

    def close(self) -> None:
        """End the worker: by the end of its input, or else by force. May be called again."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._fine:
            self.log.unlink(missing_ok=True)

    def _lap(self, ids: list[list[int]], params: SamplingParams) -> Lap:
        self._send(
            {
                "prompts": ids,
                "max_tokens": params.max_tokens,
                "eos": self._eos,
                "temperature": params.temperature,
                "seed": params.seed or 0,
            }
        )
        message = self._receive(None)
        try:
            answers, seconds = message["answers"], float(message["seconds"])
            outputs = tuple(tuple(map(int, answer["token_ids"])) for answer in answers)
            firsts = [answer["first_seconds"] for answer in answers]
            early = sum(answer["first_tokens"] for answer in answers)
        except (KeyError, TypeError, ValueError):
            raise PeerError(f"{self.name} failed: {self._why(message)}") from None
        if len(outputs) != len(ids):
            raise PeerError(f"{self.name} answered {len(outputs)} of {len(ids)} prompts")
        if any(first is None for first in firsts):
            return Lap(outputs, seconds)
        # As our own laps are counted: from the last first token on, there is only decoding.
        tokens = sum(map(len, outputs)) - early
        return Lap(outputs, seconds, seconds - max(firsts), tokens)

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # It has died; what it said last is read next.

    def _receive(self, seconds: float | None) -> dict[str, Any]:
        """The next line, waiting for at most so many seconds."""
        line = self._line(seconds)
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            text = line.decode(errors="replace").strip()[:80]
            raise PeerError(
                f"{self.name} printed {text!r} where an answer was due; log: {self.log}"
            )
        return message

    def _line(self, seconds: float | None) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        until = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._unread:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            if not select.select([pipe], [], [], left)[0]:
                self._process.kill()
                raise PeerError(f"{self.name} was not ready after {seconds:g} s{self._said()}")
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                code = self._process.wait()
                raise PeerError(f"{self.name} died (exit status {code}){self._said()}")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _why(self, message: Mapping[str, Any]) -> str:
        return f"{message.get('error', 'it gave no answer')}; log: {self.log}"

    def _said(self) -> str:
        """The last lines of the engine's own words."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-LAST_LINES:]
        said = f"it said last: {' | '.join(lines)}" if lines else "it said nothing"
        return f"; {said}; log: {self.log}"


def _environment() -> dict[str, str]:
    """Ours, less what would lead another interpreter into our environment, or off its script's."""
    ours = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if name not in ours}
