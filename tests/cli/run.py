"""Runs the command inside the test's own process: imports are paid for once."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from unittest import mock

from antiphon.cli import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a user would see."""

    returncode: int
    stdout: str
    stderr: str


def antiphon(*arguments: str, stdin: str = "") -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        mock.patch.object(sys, "argv", ["antiphon", *arguments]),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    return Outcome(code, out.getvalue(), err.getvalue())
