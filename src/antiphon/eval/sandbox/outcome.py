"""What a program may use, and what became of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from antiphon.errors import UserError

MIB = 1024 * 1024

Kind = Literal["ok", "error", "exit", "timeout", "memory", "output", "killed", "sandbox"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use.

    Attributes:
        wall_seconds: from start to end, the start of Python included.
        cpu_seconds: of one process, rounded up to whole seconds.
        memory_bytes: of address space, of one process; at least 64 MiB, which Python needs.
        file_bytes: of one file; of all files together where the sandbox has its own disk.
        processes: processes and threads at one time.
        output_bytes: of standard output and standard error together.

    Raises:
        UserError: a limit is not a positive finite number, or is too small to start Python.
    """

    wall_seconds: float = 20.0
    cpu_seconds: float = 10.0
    memory_bytes: int = 512 * MIB
    file_bytes: int = 16 * MIB
    processes: int = 16
    output_bytes: int = MIB

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            seconds = field.name.endswith("seconds")
            if isinstance(value, bool) or not isinstance(value, (int, float) if seconds else int):
                kind = "a number" if seconds else "a whole number"
                raise UserError(f"limit {field.name} must be {kind}, not {value!r}")
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"limit {field.name} is {value}; give a positive number")
        if self.memory_bytes < 64 * MIB:
            raise UserError(
                f"limit memory_bytes is {self.memory_bytes}; Python needs at least {64 * MIB}"
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program.

    Attributes:
        kind: "ok": it ran to its last line; "error": an exception ended it; "exit": it ended itself
            before its last line; "timeout": too much wall-clock or CPU time; "memory": a
            MemoryError ended it; "output": it printed too much; "killed": a signal ended it;
            "sandbox": it could not be run.
        exit_code: of the process; None where a signal ended it or it never ran.
        error: name of the exception that ended it, or what else went wrong; "" where nothing did.
        message: of that exception, shortened.
        stderr: the end of what it wrote to standard error.
        isolation: the layers that were active, in the words of docs/sandbox.md.
        seconds: wall-clock time of the run, the sandbox included.
    """

    kind: Kind
    exit_code: int | None = None
    error: str = ""
    message: str = ""
    stderr: str = ""
    isolation: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether the program ran to its last line."""
        return self.kind == "ok"
