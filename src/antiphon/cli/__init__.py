"""The command: `antiphon generate`, `chat`, `demo`, `bench`, `eval`, `compare` and the rest."""

from __future__ import annotations

import sys

import typer

from antiphon.errors import UserError

app = typer.Typer(
    name="antiphon",
    help="Speculative decoding beyond exact matching.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def build() -> typer.Typer:
    """The command-line application; imports torch, so it waits until it is needed."""
    if not app.registered_commands:
        from antiphon.cli import (
            bench,
            calibrate,
            compare,
            demo,
            generate,
            lab,
            plan,
            reward,
            serve,
            trace,
            train,
        )
        from antiphon.cli.eval import evaluate

        app.command()(generate.generate)
        app.command()(generate.chat)
        app.command()(demo.demo)
        app.command()(demo.methods)
        app.command()(bench.bench)
        app.command("eval")(evaluate)
        app.command()(compare.compare)
        app.command()(calibrate.calibrate)
        app.command()(plan.plan)
        app.command()(serve.serve)
        app.command("train-arbiter")(train.train_arbiter)
        app.command("train-reward")(reward.train_reward)
        app.add_typer(lab.app, name="lab")
        app.add_typer(trace.app, name="trace")
    return app


def main() -> None:
    """Entry point. Bad input: one line on standard error, exit code 2."""
    _quieten()
    try:
        build()()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)  # The reader of our output has gone.
    except OSError as error:
        typer.echo(f"error: {error}: check the path and its permissions", err=True)
        sys.exit(2)
    except MemoryError:
        typer.echo("error: out of memory: use a smaller model or --target-quant int8", err=True)
        sys.exit(2)


def _quieten() -> None:
    """Loading reports, progress bars and advice of transformers do not belong in our output."""
    import os

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")


if __name__ == "__main__":
    main()
