"""Runs one program behind walls. A script of its own: `run_python` starts it, nothing imports it.

Processes: the launcher keeps the time; where there is a process namespace, its child is the first
process in it, whose end is the end of all others there; the program is the last child. The parent
gets lines of JSON through the descriptor `control`, and the proof through `channel`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

_HERE = Path(__file__).resolve().parent

# The sandbox's modules without the packages around them, whose imports take seconds.
for _name, _folder in {
    "antiphon": _HERE.parents[1],
    "antiphon.eval": _HERE.parent,
    "antiphon.eval.sandbox": _HERE,
}.items():
    _package = types.ModuleType(_name)
    _package.__path__ = [str(_folder)]
    sys.modules[_name] = _package

_LINUX = sys.platform.startswith("linux")
if _LINUX:
    from antiphon.eval.sandbox import linux, seccomp

_GRACE_SECONDS = 2.0


def _say(control: int, **message: Any) -> None:
    os.write(control, json.dumps(message).encode() + b"\n")


def _limit(config: dict[str, Any], processes: int | None) -> None:
    """Set the limits that the kernel keeps for each process."""
    import resource

    def lower(name: str, value: int, last: int | None = None) -> None:
        which = getattr(resource, name, None)
        if which is None:
            return
        _, hard = resource.getrlimit(which)
        last = value if last is None else last
        if hard != resource.RLIM_INFINITY:
            value, last = min(value, hard), min(last, hard)
        # macOS refuses some that it knows.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(which, (value, last))

    cpu = max(1, -(-config["cpu_seconds"] // 1))
    lower("RLIMIT_CPU", int(cpu), int(cpu) + 1)
    lower("RLIMIT_AS", config["memory_bytes"])
    lower("RLIMIT_FSIZE", config["file_bytes"])
    lower("RLIMIT_CORE", 0)
    lower("RLIMIT_NOFILE", 64)
    lower("RLIMIT_MSGQUEUE", 0)
    if processes is not None:
        lower("RLIMIT_NPROC", processes)


def _walls(config: dict[str, Any], layers: list[str]) -> None:
    """Wall this process in, for good: what works joins `layers`."""
    skip, user = config["skip"], config["user"]
    if _LINUX:
        linux.die_with_parent()
    _limit(config, None)
    if user is not None and "user" not in skip:
        with contextlib.suppress(OSError):
            linux.become(user)
            layers.append("own user id")
    rooted = os.getuid() == 0
    alone = "process namespace" in layers
    if rooted and not alone:
        # Root may end every process of the machine: no program gets that far.
        raise PermissionError("as root, code needs a process namespace or another user id")
    if "own user id" in layers:
        processes = config["processes"]
    else:
        processes = config["processes"] + config["others"]
    _limit(config, processes)
    layers.append("limits")
    if not _LINUX:
        return
    linux.die_with_parent()  # a new user id undoes the first
    with contextlib.suppress(OSError):
        linux.no_new_privileges()
        layers.append("no new privileges")
    if "landlock" not in skip:
        with contextlib.suppress(OSError):
            linux.landlock(config["readable"], config["folder"])
            layers.append("landlock")
    if "seccomp" not in skip:
        with contextlib.suppress(OSError):
            # No limit on processes binds root, so root's program gets none.
            seccomp.install(forks=not rooted, only=None if alone else os.getpid())
            layers.append("seccomp")


def _short(error: BaseException) -> str:
    try:
        return str(error)[:300]
    except BaseException:
        return ""


def _execute(source: str, channel: int) -> NoReturn:
    """Run the program to its end, then prove it: the token is read only now, and sent back."""
    read, write, leave, dumps, pid = os.read, os.write, os._exit, json.dumps, os.getpid()
    getpid, short = os.getpid, _short
    module = types.ModuleType("program")
    sys.modules["program"] = module
    result: dict[str, Any] = {}
    try:
        exec(compile(source, "program.py", "exec"), module.__dict__)
    except SystemExit as error:
        code = error.code
        result = {"exit": code if isinstance(code, int) else int(code is not None)}
    except BaseException as error:
        result = {"error": type(error).__name__, "message": short(error)}
        with contextlib.suppress(BaseException):
            traceback.print_exception(error, limit=-5)
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    if getpid() == pid:  # a forked child that comes here has nothing to prove
        write(channel, read(channel, 32) + dumps(result).encode())
    leave(1 if "error" in result else result.get("exit", 0) & 0xFF)


def _program(config: dict[str, Any], layers: list[str]) -> NoReturn:
    """The process of the program: walls first, then the program."""
    control, channel = config["control"], config["channel"]
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        # A number that no program guesses by chance.
        hidden = 10 + secrets.randbelow(50)
        while hidden in (control, channel):
            hidden = 10 + secrets.randbelow(50)
        os.dup2(channel, hidden, inheritable=False)
        os.chdir(config["folder"])
        os.umask(0o077)
        _walls(config, layers)
        _say(control, layers=layers)
        os.closerange(3, hidden)
        os.closerange(hidden + 1, 256)
        source = config["source"]
        sys.path += config["path"]
        sys.argv = ["program.py"]
        sys.dont_write_bytecode = True
        import site  # for exit() and its like, which -S leaves out

        site.setquit()
        for name in ("antiphon.eval.sandbox", "antiphon.eval", "antiphon"):
            sys.modules.pop(name, None)
        config.clear()
    except BaseException as error:
        with contextlib.suppress(OSError):
            _say(control, failed=f"{type(error).__name__}: {_short(error)}")
        os._exit(1)
    _execute(source, hidden)


def _first(config: dict[str, Any], layers: list[str]) -> NoReturn:
    """The first process of a process namespace: waits for the program, buries the others."""
    linux.die_with_parent()
    program = os.fork()
    if program == 0:
        _program(config, layers)
    while True:
        pid, status = os.wait()
        if pid == program:
            _say(config["control"], status=status)
            os._exit(0)


def _prepare(config: dict[str, Any], layers: list[str]) -> None:
    """Namespaces and file system, before anything is forked."""
    skip, folder = config["skip"], config["folder"]
    config["user"], config["others"] = None, 0
    if not _LINUX:
        return
    linux.die_with_parent()
    with contextlib.suppress(OSError):
        # If memory runs out all the same, the kernel begins here.
        Path("/proc/self/oom_score_adj").write_text("1000")
    config["user"] = owner = None if "user" in skip else linux.spare_user()
    others = linux.tasks_of(os.getuid())
    if "namespaces" not in skip:
        layers += linux.separate()
    # The launcher and the first process count too, where only this namespace counts.
    alone = "user namespace" in layers and linux.counts_by_namespace()
    config["others"] = 2 if alone else others
    linux.adopt_orphans()
    if "mount namespace" in layers:
        size = config["file_bytes"]
        try:
            linux.private_mounts()
            linux.private_root(config["stage"], folder, config["readable"], size, owner)
            layers += ["private root", "small disk"]
        except OSError:
            with contextlib.suppress(OSError):
                linux.small_disk(folder, size, owner)
                layers.append("small disk")
    if owner is not None and "small disk" not in layers:
        os.chown(folder, owner, owner)
        Path(folder).parent.chmod(0o711)


def main() -> None:
    """Read what to run from standard input; returns when all of it has ended."""
    started = time.monotonic()
    with open(0, closefd=False, encoding="utf-8") as stream:
        config: dict[str, Any] = json.load(stream)
    control, layers = config["control"], list[str]()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        _prepare(config, layers)
    except Exception as error:
        _say(control, failed=f"{type(error).__name__}: {_short(error)}")
        return
    asleep, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    child = os.fork()
    if child == 0:
        (_first if "process namespace" in layers else _program)(config, layers)
    os.close(config["channel"])
    ended = 0
    while not ended:
        left = started + config["wall_seconds"] - time.monotonic()
        if left <= 0:
            _say(control, timeout=True)
        if left <= 0 or stop:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        # Woken by a signal; looks for itself now and then, as a child may end before it sleeps.
        if select.select([asleep], [], [], min(left, 0.5))[0]:
            os.read(asleep, 256)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended and "process namespace" not in layers:
            _say(control, status=status)
    if "process namespace" not in layers and _LINUX:
        linux.sweep(_GRACE_SECONDS)


if __name__ == "__main__":
    main()
