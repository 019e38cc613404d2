"""How much the server takes at once, of one request and in all."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.errors import UserError

_LEAST = {
    "batch": 1,
    "queue": 0,
    "max_context": 2,
    "max_samples": 1,
    "max_body": 1,
    "keep": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The flags of the same names.

    Attributes:
        batch: samples in flight.
        queue: samples that may wait beyond those.
        timeout: seconds from a request to its end.
        max_context: tokens of a sample, prompt and output; None: the models' context.
        max_samples: prompts times n of a request.
        max_body: bytes of a request.
        keep: tokens of ended texts that stay in the caches.
        drain: seconds that samples in flight may go on after the end was asked for.
    """

    batch: int = 16
    queue: int = 64
    timeout: float = 600.0
    max_context: int | None = None
    max_samples: int = 32
    max_body: int = 2**20
    keep: int = 16384
    drain: float = 60.0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} is {value}: give a whole number >= {least}")
        for name in ("timeout", "drain"):
            if not getattr(self, name) > 0:
                raise UserError(f"--{name} is {getattr(self, name)}: give seconds above 0")
