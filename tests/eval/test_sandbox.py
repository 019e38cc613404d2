"""What a program cannot do. No program here would harm a machine whose walls all failed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.eval.sandbox import Limits, Outcome, isolation, run_python
from antiphon.eval.sandbox import run as sandbox_run

SMALL = Limits(
    wall_seconds=4, cpu_seconds=1, memory_bytes=160 << 20, file_bytes=1 << 20, processes=6
)


def needs(*layers: str) -> None:
    if not set(layers) & set(isolation()):
        pytest.skip(f"this machine has no {' or '.join(layers)}")


def without(*layers: str) -> Callable[[str, Limits], Outcome]:
    return lambda source, limits: sandbox_run._attempt(source, limits, layers)


def test_a_program_runs_to_its_end() -> None:
    outcome = run_python("import collections, math, re\nprint('x')", SMALL)
    assert outcome.finished
    assert outcome.exit_code == 0
    assert "limits" in outcome.isolation
    assert outcome.seconds < SMALL.wall_seconds


def test_an_exception_is_reported() -> None:
    outcome = run_python("raise ValueError('as I said')", SMALL)
    assert (outcome.kind, outcome.error, outcome.message) == ("error", "ValueError", "as I said")
    assert outcome.stderr.endswith("ValueError: as I said\n")


@pytest.mark.parametrize("source", ["x = '\udcff'", "a\0b", "(" * 5000, "def f(): f()\nf()"])
def test_an_odd_program_is_an_outcome(source: str) -> None:
    assert run_python(source, SMALL).kind in ("error", "memory")


@pytest.mark.parametrize(
    ("source", "code"),
    [("exit(0)", 0), ("import sys; sys.exit(3)", 3), ("import os; os._exit(0)", 0)],
)
def test_a_program_that_ends_itself_has_not_finished(source: str, code: int) -> None:
    outcome = run_python(source + "\nassert False", SMALL)
    assert (outcome.kind, outcome.exit_code) == ("exit", code)


def test_writing_everywhere_is_no_proof() -> None:
    source = """
import os
for number in range(3, 64):
    try:
        os.write(number, b"x" * 32 + b"{}")
    except OSError:
        pass
os._exit(0)
"""
    assert run_python(source, SMALL).kind == "exit"


def test_a_forked_child_proves_nothing() -> None:
    source = "import os\nif os.fork():\n    os.wait()\n    os._exit(0)\n"
    assert run_python(source, SMALL).kind == "exit"


def test_a_signal_is_reported() -> None:
    outcome = run_python("import os; os.abort()", SMALL)
    assert (outcome.kind, outcome.error) == ("killed", "SIGABRT")


@pytest.mark.parametrize("source", ["while True: pass", "import time; time.sleep(60)"])
def test_time_ends(source: str) -> None:
    started = time.monotonic()
    outcome = run_python(source, Limits(wall_seconds=1.5, cpu_seconds=1))
    assert outcome.kind == "timeout"
    assert time.monotonic() - started < 6


def test_memory_ends() -> None:
    outcome = run_python("x = []\nwhile True: x.append(bytearray(1 << 20))", SMALL)
    assert outcome.kind == "memory"


def test_output_ends() -> None:
    limits = Limits(output_bytes=100_000)
    outcome = run_python("while True: print('x' * 1000)", limits)
    assert outcome.kind == "output"
    assert outcome.seconds < 5
    loud = "import sys\nwhile True: sys.stderr.write('e' * 1000)"
    assert len(run_python(loud, limits).stderr) <= 2000


FORKS = """
import os, time
made = 0
try:
    while made < {most}:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        made += 1
except OSError:
    pass
assert made < {limit}, made
"""


def test_processes_end() -> None:
    needs("own user id", "user namespace")
    # First a forker that stops by itself, so that a hole in the wall costs nothing.
    outcome = run_python(FORKS.format(most=60, limit=SMALL.processes), SMALL)
    assert outcome.kind == "ok", outcome
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    outcome = run_python(bomb, Limits(wall_seconds=1, cpu_seconds=1, processes=6))
    assert outcome.kind == "timeout"
    # The machine still takes work.
    assert run_python("pass", SMALL).finished


GRANDCHILD = """
import os, sys, time
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(writing, b"x")
    time.sleep(30)
    os._exit(0)
os.read(reading, 1)
"""


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Numbers of the processes that this test's sandboxes left behind."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("no /proc to look for processes in")
    monkeypatch.setattr(sandbox_run.tempfile, "tempdir", str(tmp_path))
    mark = os.fsencode(tmp_path / "antiphon-")

    def find() -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
        return found

    return find


@pytest.mark.parametrize("ending", ["", "time.sleep(60)"])
def test_a_grandchild_in_a_session_of_its_own_ends_too(
    ending: str, left: Callable[[], list[str]]
) -> None:
    outcome = run_python(GRANDCHILD + ending, Limits(wall_seconds=1.5, processes=6))
    assert outcome.kind == ("timeout" if ending else "ok")
    assert outcome.seconds < 6
    assert not left()


def test_without_namespaces_a_grandchild_is_swept_up(left: Callable[[], list[str]]) -> None:
    outcome = without("namespaces")(GRANDCHILD, Limits(wall_seconds=3, processes=6))
    if outcome.kind == "sandbox":
        pytest.skip(outcome.message)
    assert outcome.kind == "ok"
    assert not left()


def test_the_mark_of_a_sandbox_can_be_seen(left: Callable[[], list[str]]) -> None:
    seen: list[str] = []
    watcher = threading.Timer(0.7, lambda: seen.extend(left()))
    watcher.start()
    run_python("import time; time.sleep(60)", Limits(wall_seconds=1.5))
    watcher.join()
    assert seen


def test_the_disk_ends() -> None:
    big = run_python("open('f', 'wb').write(bytes(4 << 20))", SMALL)
    assert (big.kind, big.error) == ("error", "OSError")
    needs("small disk")
    many = "for i in range(20): open(f'f{i}', 'wb').write(bytes(1 << 19))"
    outcome = run_python(many, SMALL)
    assert (outcome.kind, outcome.error) == ("error", "OSError")


def test_the_folder_is_new_and_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_run.tempfile, "tempdir", str(tmp_path))
    source = "import os, tempfile\nassert not os.listdir()\nopen('a', 'w').write('x')\n"
    source += "os.mkdir('b', 0)\ntempfile.TemporaryFile().close()\n"
    assert run_python(source, SMALL).finished
    assert not list(tmp_path.iterdir())


def test_no_program_reaches_the_network() -> None:
    needs("network namespace", "seccomp", "landlock")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        source = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)"
        for run in (run_python, without("seccomp"), without("namespaces")):
            outcome = run(source, SMALL)
            assert outcome.kind in ("error", "sandbox")
        with pytest.raises(TimeoutError):
            server.accept()


def test_other_files_cannot_be_read_or_written(tmp_path: Path) -> None:
    needs("landlock", "private root")
    secret = tmp_path / "id_rsa"
    secret.write_text("secret")
    secret.chmod(0o644)
    tmp_path.chmod(0o777)
    home = Path.home()
    for run in (run_python, without("landlock"), without("namespaces")):
        for source in (
            f"open({str(secret)!r}).read()",
            f"open({str(secret)!r}, 'a').write('x')",
            f"open({str(tmp_path / 'new')!r}, 'w')",
            f"import os; os.listdir({str(home / '.ssh')!r})",
            f"import os; os.unlink({str(secret)!r})",
        ):
            outcome = run(source, SMALL)
            assert outcome.kind in ("error", "sandbox"), source
            if outcome.kind == "error":
                assert outcome.error in ("PermissionError", "FileNotFoundError", "OSError")
    assert secret.read_text() == "secret"
    assert [path.name for path in tmp_path.iterdir()] == ["id_rsa"]


def test_no_signal_reaches_us() -> None:
    needs("process namespace", "seccomp", "landlock")
    # Signal 0 only asks whether a signal would be allowed.
    source = f"import os\nos.kill({os.getpid()}, 0)"
    for run in (run_python, without("namespaces")):
        assert run(source, SMALL).kind in ("error", "sandbox")


def test_the_environment_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hf_secret")
    source = "import os\nassert 'SOME_TOKEN' not in os.environ\nassert len(os.environ) < 15"
    assert run_python(source, SMALL).finished


def test_standard_input_is_empty() -> None:
    assert run_python("input()", SMALL).error == "EOFError"


def test_privileges_are_gone_for_good() -> None:
    needs("no new privileges")
    source = "import os\ntry:\n    os.setuid(0)\nexcept OSError:\n    pass\nelse:\n    1 / 0\n"
    assert run_python(source, SMALL).finished
    needs("seccomp")
    source = "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == -1"
    assert run_python(source, SMALL).finished


def test_ordinary_programs_notice_nothing() -> None:
    source = """
import asyncio, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor

asyncio.run(asyncio.sleep(0))
with ThreadPoolExecutor(2) as pool:
    assert list(pool.map(abs, [-1, 2])) == [1, 2]
command = [sys.executable, "-c", "print(1)"]
assert subprocess.run(command, capture_output=True, check=True).stdout == b"1\\n"
"""
    outcome = run_python(source, Limits())
    assert outcome.finished, outcome


def test_the_order_of_a_set_is_the_same_in_every_run() -> None:
    source = "import sys\nsys.stderr.write(repr(set('abcdefgh')))"
    assert run_python(source, SMALL).stderr == run_python(source, SMALL).stderr != ""


def test_a_launcher_that_cannot_start_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_run.sys, "executable", "/nonexistent/python")
    assert run_python("pass", SMALL).kind == "sandbox"
    monkeypatch.undo()
    monkeypatch.setattr(sandbox_run, "_LAUNCHER", Path("/nonexistent/launcher.py"))
    assert run_python("pass", SMALL).kind == "sandbox"
