"""What every rule may look at: a chain of drafts, and both models' distributions along it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Evidence:
    """A chain of ``K`` draft tokens under judgement.

    ``p`` and ``q`` are what tokens are drawn from: at temperature 0 they are one-hot. A rule that
    asks how sure the models are looks at the beliefs ``P`` and ``Q`` instead: above temperature
    0 they are p and q themselves, at temperature 0 the distributions at temperature 1.

    Attributes:
        tokens: ``[K]``, the draft tokens.
        p: ``[K + 1, V]``, the target's distributions; the last row follows the whole block.
        q: ``[K, V]``, the draft's.
        P, Q: beliefs, of the same shapes.
        greedy: whether p is one-hot by temperature 0.
        states: ``[K + 1, W]``, the target's last hidden states: before each token, and after the
            whole block; None: nobody asked for them.
    """

    tokens: torch.Tensor
    p: torch.Tensor
    q: torch.Tensor
    P: torch.Tensor
    Q: torch.Tensor
    greedy: bool = False
    states: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def px(self) -> torch.Tensor:
        """The target's probability of each draft token, ``[K]``."""
        return at(self.p[: len(self)], self.tokens)

    @cached_property
    def qx(self) -> torch.Tensor:
        """The draft's probability of each draft token, ``[K]``."""
        return at(self.q, self.tokens)

    @cached_property
    def target_entropy(self) -> torch.Tensor:
        """Entropy of the target's belief at each token, ``[K]``, in nats."""
        return entropy(self.P[: len(self)])

    @cached_property
    def draft_entropy(self) -> torch.Tensor:
        """Entropy of the draft's belief at each token, ``[K]``, in nats."""
        return entropy(self.Q)

    @cached_property
    def is_top(self) -> torch.Tensor:
        """Whether each draft token is the target's most probable one, ``[K]``."""
        return self.P[: len(self)].argmax(-1) == self.tokens


def at(rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """One probability a row: ``rows [K, V]``, ``tokens [K]`` -> ``[K]``."""
    return rows.gather(-1, tokens[:, None])[:, 0]


def entropy(rows: torch.Tensor) -> torch.Tensor:
    """Shannon entropy of each row ``[..., V]``, in nats."""
    parts: torch.Tensor = torch.special.entr(rows)
    return parts.sum(-1)


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) of each row ``[..., V]``, in nats; infinite where p has mass that q lacks."""
    return torch.xlogy(p, p).sum(-1) - torch.xlogy(p, q).sum(-1)


def normalised(weights: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """`weights` ``[V]`` over their sum, in place; `otherwise` where they have no mass."""
    total = float(weights.sum())
    return weights.div_(total) if total > 0 else otherwise
