"""Grounding: how much of what a token attends to goes back to the prompt and accepted steps.

SpecGuard's attention-based grounding verification (arXiv 2604.15244): the rollout
``R = A^(L) ... A^(1)`` over the last layers, and ``G(y_t)`` the mass of row t on the prompt and
the accepted steps I. No N x N matrix is ever multiplied: ``G = A^(L) (... (A^(1) 1_I))``, and of
every vector on the way only the new tokens' entries are new.
"""

from __future__ import annotations

import torch


class Grounding:
    """Rollout vectors of one text, for one model.

    Args:
        layers: number ``L`` of attention matrices in the rollout.
        residual: share r of the identity in each: ``(1 - r) A + r I``.
    """

    def __init__(self, layers: int, residual: float = 0.0) -> None:
        self.residual = residual
        self._prefix = [torch.empty(0) for _ in range(layers)]

    @property
    def length(self) -> int:
        """Tokens of I so far."""
        return len(self._prefix[0])

    def absorb(self, attention: torch.Tensor) -> None:
        """Add ``T`` tokens to I.

        Args:
            attention: their weights ``[L, T, S]`` over the ``S - T`` tokens of I before them,
                and themselves.
        """
        levels = self._levels(attention, own=1.0)
        self._prefix = [
            torch.cat([old.to(new), new]) for old, new in zip(self._prefix, levels, strict=False)
        ]

    def score(self, attention: torch.Tensor) -> torch.Tensor:
        """G of ``T`` tokens that follow I but are not in it, ``[T]``, 0 to 1."""
        return self._levels(attention, own=0.0)[-1]

    def _levels(self, attention: torch.Tensor, own: float) -> list[torch.Tensor]:
        count, slots = attention.shape[1:]
        if slots - count != self.length:
            raise ValueError(f"weights over {slots - count} tokens, but I has {self.length}")
        levels = [attention.new_full((count,), own)]
        for weights, prefix in zip(attention, self._prefix, strict=True):
            before, within = weights[:, : self.length], weights[:, self.length :]
            mixed = before @ prefix.to(weights) + within @ levels[-1]
            levels.append((1 - self.residual) * mixed + self.residual * levels[-1])
        return levels
