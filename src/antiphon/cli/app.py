"""The application: which function is which command."""

from __future__ import annotations

from importlib import import_module
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
GROUPS = {"lab": ("lab", "app"), "trace": ("trace", "app")}
"""Commands of commands. Both: module and name in it."""


def build(first: str | None = None) -> typer.Typer:
    """The application with the command `first` alone, where that is one, else with all.

    Every command's module imports what the command needs, which takes seconds for all of them.
    """
    app = typer.Typer(
        name="antiphon",
        help="Speculative decoding beyond exact matching.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_group)
    one = first in (*COMMANDS, *GROUPS)
    for name, place in COMMANDS.items():
        if not one or name == first:
            app.command(name)(_found(*place))
    for name, place in GROUPS.items():
        if not one or name == first:
            app.add_typer(_found(*place), name=name)
    return app


def _group() -> None:
    # Without a callback an application of one command would be that command.
    pass


def _found(module: str, name: str) -> Any:
    return getattr(import_module(f"antiphon.cli.{module}"), name)
