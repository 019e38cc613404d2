"""What a token-level acceptance rule is given, and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch

from antiphon.rules.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Block:
    """Draft tokens to judge: a chain of ``K`` tokens, or a tree of several chains.

    Row ``r`` of the target's scores follows the last committed token (``r = 0``) or draft
    token ``r - 1``. At row ``r`` the draft made the draws ``draws[r]``, in that order.

    Attributes:
        tokens: the ``K`` draft tokens; a token comes after its parent.
        parents: for each token the row it hangs from: 0, or 1 + the index of a token.
        draws: for each of the ``K + 1`` rows, pairs (index of the token drawn, row of `q` it
            was drawn from). Chains that drew the same token share it, and both draws are
            listed: an exact rule needs every one.
        q: the very distributions the draws were made from, ``Q`` rows of float32 ``[V]``; None
            for a deterministic drafter, whose rows are one-hot on the tokens drawn.
        belief: what a draft model thought before temperature 0 made it deterministic, ``Q``
            rows of ``[V]``; None where it was not asked for, or where `q` is all there is.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    draws: tuple[tuple[tuple[int, int], ...], ...]
    q: tuple[torch.Tensor, ...] | None = None
    belief: tuple[torch.Tensor, ...] | None = None

    @staticmethod
    def chain(tokens: tuple[int, ...]) -> Block:
        """One chain of a deterministic drafter."""
        count = len(tokens)
        draws = tuple(((k, k),) for k in range(count))
        return Block(tokens, tuple(range(count)), (*draws, ()))

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands of a block, and the target's own token after it.

    Attributes:
        accepted: indices of the accepted draft tokens, from the block's root downwards.
        token: the token the target adds.
        provenance: "bonus" where no draft token was left to judge, else "correction".
        notes: what a rule adds to the trace: how often it vetoed or rescued.
    """

    accepted: tuple[int, ...]
    token: int
    provenance: Literal["bonus", "correction"]
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A base rule's opinion of a block, for all of its positions at once.

    Attributes:
        score: ``[K]``; token k is accepted iff ``u * q(x_k) < score_k``, u uniform. The exact
            rule's score is p(x_k).
        residual: k -> the distribution ``[V]`` the target draws from after refusing token k.
    """

    score: torch.Tensor
    residual: Callable[[int], torch.Tensor]


class BaseRule(Protocol):
    """Accepts or refuses every token of a block, given that those before it stand."""

    GUARANTEE: ClassVar[str]
    SOURCE: ClassVar[str]

    def judge(self, evidence: Evidence) -> Acceptance: ...


class Rescue(Protocol):
    """Turns refusals of the base rule into acceptances."""

    GUARANTEE: ClassVar[str]
    SOURCE: ClassVar[str]

    def keep(self, evidence: Evidence) -> torch.Tensor:
        """Positions ``[K]`` whose token stands even if the base rule refuses it."""
        ...


class Veto(Protocol):
    """Turns acceptances into refusals."""

    GUARANTEE: ClassVar[str]
    SOURCE: ClassVar[str]

    def refuse(self, evidence: Evidence) -> torch.Tensor:
        """Positions ``[K]`` whose token falls even if it was accepted."""
        ...

    def redraw(self, evidence: Evidence, k: int) -> torch.Tensor:
        """The distribution ``[V]`` the target draws from in place of token k."""
        ...
