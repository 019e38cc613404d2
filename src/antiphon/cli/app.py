"""The application: which function is which command."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.resources import files
from typing import Any

import typer

COMMANDS = {
    "generate": ("generate", "generate"),
    "chat": ("generate", "chat"),
    "demo": ("demo", "demo"),
    "methods": ("demo", "methods"),
    "bench": ("bench", "bench"),
    "eval": ("eval", "evaluate"),
    "compare": ("compare", "compare"),
    "calibrate": ("calibrate", "calibrate"),
    "plan": ("plan", "plan"),
    "serve": ("serve", "serve"),
    "train-arbiter": ("train", "train_arbiter"),
    "train-reward": ("reward", "train_reward"),
}
"""Modules, and the functions in them."""
GROUPS = {
    "lab": "The bundled tiny pair: train it anew, or test it.",
    "trace": "Look at what `antiphon generate --trace` wrote.",
}
"""Modules of several commands, and what they are for."""


def build(first: str | None = None) -> typer.Typer:
    """The application as far as a command line needs it that begins with `first`.

    Where that is a command, the application has it alone: every command's module imports what the
    command needs, which takes seconds for all of them. Else it has all, to be listed.
    """
    app = typer.Typer(
        name="antiphon",
        help="Speculative decoding beyond exact matching.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_group)
    if first in COMMANDS:
        app.command(first)(_found(*COMMANDS[first]))
    elif first in GROUPS:
        app.add_typer(_found(first, "app"), name=first, help=GROUPS[first])
    else:
        for name, place in COMMANDS.items():
            app.command(name)(_described(*place))
        for name, purpose in GROUPS.items():
            app.add_typer(typer.Typer(), name=name, help=purpose)
    return app


def _group() -> None:
    # Without a callback an application of one command would be that command.
    pass


def _found(module: str, name: str) -> Any:
    return getattr(import_module(f"antiphon.cli.{module}"), name)


def _described(module: str, name: str) -> Any:
    """A function that does nothing, with the docstring of one whose module is only read."""
    text = (files("antiphon.cli") / f"{module}.py").read_text(encoding="utf-8")
    (found,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )

    def described() -> None:
        pass

    described.__doc__ = ast.get_docstring(found)
    return described
