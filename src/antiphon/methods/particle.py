"""One text of an SMC population, and what it drafts in a round."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from antiphon.request import Judged, Provenance


@dataclass(slots=True)
class Particle:
    """One text of the population.

    Attributes:
        target_unread, draft_unread: its last tokens, which the models have not read yet.
        tokens, judged, who: the output so far, token by token.
        target_path, draft_path: its nodes in the crowns of the two trees.
        potential: log of the potential of its text, when it was last asked for.
        finished: it has ended; it is not forwarded any more, and its weight stays.
    """

    target_unread: tuple[int, ...]
    draft_unread: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    judged: tuple[Judged, ...] = ()
    who: tuple[Provenance, ...] = ()
    target_path: tuple[int, ...] = ()
    draft_path: tuple[int, ...] = ()
    potential: float = 0.0
    finished: bool = False


@dataclass(slots=True)
class Draft:
    """What one particle drafted in a round.

    Attributes:
        tokens, log_q: the tokens, and the logarithm of the chance each was drawn with.
        q: the distributions they were drawn from, ``[V]`` each, where they are asked for.
        head: draft nodes that read what was unread before.
        nodes: draft nodes that read the tokens; the last token is never read in its round.
    """

    tokens: list[int] = field(default_factory=list)
    log_q: list[float] = field(default_factory=list)
    q: list[torch.Tensor] = field(default_factory=list)
    head: tuple[int, ...] = ()
    nodes: list[int] = field(default_factory=list)
