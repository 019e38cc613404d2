"""The command: `antiphon generate`, `chat`, `demo`, `bench`, `eval`, `compare` and the rest."""

from __future__ import annotations

import sys

from antiphon.cli.start import importing, quieten
from antiphon.errors import UserError


def main() -> None:
    """Entry point. Bad input: one line on standard error, exit code 2."""
    quieten()
    try:
        with importing():
            from antiphon.cli.app import build

            app = build(next(iter(sys.argv[1:]), None))
        app()
    except UserError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)  # The reader of our output has gone.
    except OSError as error:
        _say(f"error: {error}: check the path and its permissions")
        sys.exit(2)
    except MemoryError:
        _say("error: out of memory: use a smaller model or --target-quant int8")
        sys.exit(2)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
