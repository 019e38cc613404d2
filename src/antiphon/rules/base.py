"""What a token-level acceptance rule is given, and what it decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


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
        q: float32 ``[Q, V]``, the very distributions the draws were made from; one-hot for a
            deterministic drafter.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    draws: tuple[tuple[tuple[int, int], ...], ...]
    q: torch.Tensor

    @staticmethod
    def chain(tokens: tuple[int, ...], q: torch.Tensor) -> Block:
        """A block of one chain; `q` is ``[K, V]``, row ``k`` for token ``k``."""
        count = len(tokens)
        draws = tuple(((k, k),) for k in range(count))
        return Block(tokens, tuple(range(count)), (*draws, ()), q)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands of a block, and the target's own token after it.

    Attributes:
        accepted: indices of the accepted draft tokens, from the block's root downwards.
        token: the token the target adds.
        provenance: "bonus" where no draft token was left to judge, else "correction".
    """

    accepted: tuple[int, ...]
    token: int
    provenance: Literal["bonus", "correction"]
