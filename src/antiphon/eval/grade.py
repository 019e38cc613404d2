"""What a grader says of one output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict, with its reason.

    Attributes:
        right: None where there is nothing to grade (a speed-only task, a broken row).
        answer: what was read from the output, as text; None: nothing could be read.
        reason: "right", "wrong", or why it could not be right: "no answer", "timeout", ...
    """

    right: bool | None
    answer: str | None
    reason: str
