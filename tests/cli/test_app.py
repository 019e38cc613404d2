"""Which function is which command, and what a command line imports for it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest
from tests.cli.run import antiphon

from antiphon.cli import app


def loaded(arguments: str) -> list[str]:
    """Heavy modules that a process has after a command line, and the line before."""
    script = (
        "import sys\n"
        "from antiphon.cli import main\n"
        f"sys.argv[1:] = {arguments.split()}\n"
        "try: main()\n"
        "finally: print([n for n in ('torch', 'transformers', 'numpy') if n in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("arguments", ["--help", "", "no-such-command"])
def test_a_list_of_commands_imports_none_of_them(arguments: str) -> None:
    assert loaded(arguments)[-1] == "[]"


def test_the_list_says_what_the_commands_say() -> None:
    for module, name in app.COMMANDS.values():
        function = getattr(import_module(f"antiphon.cli.{module}"), name)
        said = inspect.getdoc(app._described(module, name))
        assert said
        assert said == inspect.getdoc(function)
    listed = antiphon("--help").stdout
    for name in (*app.COMMANDS, *app.GROUPS):
        assert f" {name} " in listed


@pytest.mark.parametrize("name", [*app.COMMANDS, *app.GROUPS])
def test_every_command_has_its_help(name: str) -> None:
    outcome = antiphon(name, "--help")
    assert outcome.returncode == 0
    assert f"antiphon {name}" in outcome.stdout


def test_a_wrong_command_is_refused_in_a_line() -> None:
    outcome = antiphon("generat")
    assert outcome.returncode == 2
    assert "No such command" in outcome.stderr
