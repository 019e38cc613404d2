"""What a drafter is: it proposes a block, and hears what became of it."""

from __future__ import annotations

from typing import Protocol

from antiphon.request import Steps
from antiphon.rules.base import Block
from antiphon.sampling import Context


class Drafter(Protocol):
    """Proposes the continuation of one request.

    A drafter returns its tokens together with the exact distributions they were drawn from,
    after the request's sampling pipeline: that is what makes an exact rule exact.
    """

    def propose(self, context: Context, gamma: int) -> Steps[Block]:
        """Draft at most `gamma` tokens a chain after `context`; an empty block is allowed."""
        ...

    def settle(self, accepted: tuple[int, ...]) -> None:
        """Hear which tokens of the last block stand (`Verdict.accepted`); drop the others."""
        ...
