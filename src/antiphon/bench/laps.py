"""What a contestant is to a race, and what it brings home from a lap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from antiphon.params import SamplingParams


class PeerError(RuntimeError):
    """A peer failed in the middle of a race, which goes on without it."""


@dataclass(frozen=True, slots=True)
class Lap:
    """One contestant's run over some prompts, all tokens counted by id.

    Attributes:
        token_ids: per prompt, end token included.
        seconds: wall time, prompts' prefill included.
        decode_seconds, decode_tokens: after the first tokens, which come with the prefill; both
            are 0 where a peer cannot tell when those came.
    """

    token_ids: tuple[tuple[int, ...], ...]
    seconds: float
    decode_seconds: float = 0.0
    decode_tokens: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.token_ids))


class Contestant(Protocol):
    """Answers prompts.

    Attributes:
        batch: prompts it answers at once.
        peer: whether it is another library, and not one of our methods.
        about: what a record should tell of it.
    """

    name: str
    batch: int
    peer: bool
    about: Mapping[str, Any]

    def run(self, prompts: Sequence[str], params: SamplingParams) -> Lap: ...

    def close(self) -> None: ...
