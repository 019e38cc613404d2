"""Starts the launcher, listens to it, and turns what it hears into an outcome."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from antiphon.eval.sandbox.outcome import Kind, Limits, Outcome

_LAUNCHER = Path(__file__).with_name("launcher.py")
_TAIL_BYTES = 2000
_CONTROL_BYTES = 65536
# What the launcher may take beyond the program's time before it is killed itself.
_GRACE_SECONDS = 5.0
_SYSTEM = (
    "/usr /bin /lib /lib32 /lib64 /nix/store /etc/ld.so.cache /etc/localtime"
    " /dev/null /dev/zero /dev/random /dev/urandom"
)


def run_python(source: str, limits: Limits | None = None) -> Outcome:
    """Run a program in a process of its own, behind the walls that this machine offers.

    The program sees the standard library and the packages of this environment. Its `__name__` is
    "program", so an `if __name__ == "__main__":` block does not run; its hash seed is fixed.

    Args:
        source: the text of the program.
        limits: what it may use; None: the defaults.

    Returns:
        What became of it. Nothing that the program does raises here.
    """
    started = time.monotonic()
    try:
        outcome = _attempt(source, limits or Limits(), ())
        if outcome.kind == "sandbox":
            # A namespace that came up halfway: the other layers still hold without it.
            outcome = _attempt(source, limits or Limits(), ("namespaces",))
    except Exception as error:
        outcome = Outcome("sandbox", error=type(error).__name__, message=str(error)[:300])
    seconds = time.monotonic() - started
    return Outcome(**{**asdict(outcome), "seconds": seconds})


@functools.cache
def isolation() -> tuple[str, ...]:
    """The layers that are active on this machine, found by running an empty program once."""
    return run_python("").isolation


@functools.cache
def _readable() -> tuple[str, ...]:
    """Files and folders that a program may read, none of them within another."""
    wanted = [*_SYSTEM.split(), sys.prefix, sys.base_prefix, str(_LAUNCHER.parent)]
    wanted += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    wanted += filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    paths = sorted({Path(path).absolute() for path in wanted if Path(path).exists()})
    kept: list[Path] = []
    for path in paths:
        if path != Path(path.anchor) and not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return tuple(map(str, kept))


def _environment(folder: Path) -> dict[str, str]:
    """The program's whole environment: nothing of ours, so no secret of ours."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        # The order of a set of strings, and so a verdict, is the same in every run.
        "PYTHONHASHSEED": "0",
        # Threads count as processes, and each takes address space.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    if libraries := os.environ.get("LD_LIBRARY_PATH"):
        environment["LD_LIBRARY_PATH"] = libraries
    return environment


def _attempt(source: str, limits: Limits, skip: Collection[str]) -> Outcome:
    """Run a program once, without the layers in `skip`."""
    if os.name != "posix":
        return Outcome("sandbox", error="this system has no sandbox; grade code on Linux or macOS")
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="antiphon-", ignore_cleanup_errors=True)
        base = Path(stack.enter_context(temporary)).resolve()
        (base / "work").mkdir()
        (base / "stage").mkdir()
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        stack.enter_context(theirs)
        token = secrets.token_hex(16).encode()
        ours.sendall(token)
        reader, writer = os.pipe()
        control = stack.enter_context(os.fdopen(reader, "rb", buffering=0))
        config = {
            **asdict(limits),
            "source": source,
            "folder": str(base / "work"),
            "stage": str(base / "stage"),
            "readable": _readable(),
            "path": [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")],
            "skip": list(skip),
            "control": writer,
            "channel": theirs.fileno(),
        }
        # A file, since a long program would fill a pipe that nobody reads yet.
        script = stack.enter_context(tempfile.TemporaryFile())
        script.write(json.dumps(config).encode())
        script.seek(0)
        try:
            process = subprocess.Popen(
                # Not -I, which would also leave the hash seed out; the environment is ours anyway.
                # The folder is there for whoever looks at a list of processes.
                [sys.executable, "-S", "-s", "-P", str(_LAUNCHER), str(base)],
                stdin=script,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=base,
                env=_environment(base / "work"),
                pass_fds=(writer, theirs.fileno()),
                start_new_session=True,
            )
        finally:
            os.close(writer)
        theirs.close()
        stack.enter_context(process)
        stack.callback(_end, process)
        return _listen(process, control.fileno(), ours, token, limits)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)  # it sweeps up first
    # Not poll() or wait(): once they have returned, another group may get the number.
    deadline = time.monotonic() + _GRACE_SECONDS
    while not _ended(process.pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended(pid: int) -> bool:
    """Whether a child has ended; its number stays taken."""
    if not hasattr(os, "waitid"):  # macOS, before Python 3.13
        time.sleep(0.05)
        return True
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _listen(
    process: subprocess.Popen[bytes],
    control: int,
    ours: socket.socket,
    token: bytes,
    limits: Limits,
) -> Outcome:
    """Read all that the launcher and the program say, never more than the limits allow."""
    assert process.stdout is not None
    assert process.stderr is not None
    heard: dict[int, bytes] = {}
    caps = {control: _CONTROL_BYTES, ours.fileno(): _CONTROL_BYTES}
    printed = 0
    deadline = time.monotonic() + limits.wall_seconds + _GRACE_SECONDS
    late = False
    with selectors.DefaultSelector() as selector:
        for descriptor in (process.stdout.fileno(), process.stderr.fileno(), *caps):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
            heard[descriptor] = b""
        over = False
        while printed <= limits.output_bytes:
            # After the launcher's end, what the pipes still hold and no more: a process that
            # escaped may keep them open.
            left = 0.0 if over else deadline - time.monotonic()
            ready = selector.select(max(left, 0.0))
            if not ready:
                late = not over
                break
            for key, _ in ready:
                try:
                    data = os.read(key.fd, 65536)
                except OSError:
                    data = b""
                if not data:
                    selector.unregister(key.fd)
                    over = over or key.fd == control
                elif key.fd in caps:
                    heard[key.fd] = (heard[key.fd] + data)[: caps[key.fd]]
                else:
                    printed += len(data)
                    heard[key.fd] = (heard[key.fd] + data)[-_TAIL_BYTES:]
            if not selector.get_map():
                break
    said = _messages(heard[control])
    stderr = heard[process.stderr.fileno()].decode("utf-8", "replace")
    layers = tuple(said.get("layers", ()))
    if printed > limits.output_bytes:
        return Outcome("output", stderr=stderr, isolation=layers)
    if late or said.get("timeout"):
        return Outcome("timeout", error="wall-clock time", stderr=stderr, isolation=layers)
    proof = heard[ours.fileno()]
    result = _messages(proof.removeprefix(token)) if proof.startswith(token) else None
    kind, code, error, message = _verdict(said, result)
    return Outcome(kind, code, error, message, stderr, layers)


def _messages(data: bytes) -> dict[str, Any]:
    """Lines of JSON objects as one; what cannot be read is left out."""
    messages: dict[str, Any] = {}
    for line in data.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            messages.update(json.loads(line))
    return messages


def _verdict(
    said: dict[str, Any], result: dict[str, Any] | None
) -> tuple[Kind, int | None, str, str]:
    """Kind, exit code, error and message of a run that was not cut short."""
    status = said.get("status")
    if said.get("failed") or status is None or "layers" not in said:
        return "sandbox", None, "set-up", str(said.get("failed", "the launcher ended early"))
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXCPU:
        return "timeout", None, "CPU time", ""
    if code < 0:
        return "killed", None, signal.Signals(-code).name, ""
    if result is None or "exit" in result:
        return "exit", code, "", ""
    if "error" in result:
        name, message = str(result["error"]), str(result.get("message", ""))
        return ("memory" if name == "MemoryError" else "error"), code, name, message
    return "ok", code, "", ""
