"""A small perceptron with one output, on standardised features: what judges tokens and steps."""

from __future__ import annotations

import torch
from torch import nn


class Perceptron(nn.Module):
    """Features ``[..., F]`` to log-odds ``[...]``.

    Args:
        size: F.
        width: hidden units; 0: none, a logistic regression.

    Attributes:
        mean, scale: of the training data, ``[F]``; who trains it sets them.
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(size))
        self.scale = nn.Buffer(torch.ones(size))
        self.inner = nn.Linear(size, width) if width else None
        self.outer = nn.Linear(width or size, 1)

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        """Log-odds; their sigmoid is the chance."""
        normed = (found.float() - self.mean) / self.scale
        seen = normed if self.inner is None else nn.functional.gelu(self.inner(normed))
        out: torch.Tensor = self.outer(seen)
        return out.squeeze(-1)
