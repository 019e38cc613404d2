"""What a graph's layers do, and which of them can be watched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WATCHED = 4
"""The last layers whose queries a graph gives out, for those who ask for attention weights."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer's attention does beside the product: `None` where it does nothing."""

    scaling: float | None
    window: int | None
    softcap: float | None


def windows_of(layers: Iterable[Layer]) -> tuple[int | None, ...]:
    """The sliding windows of some layers, one mask each, in the order of the graph's inputs."""
    return tuple(sorted({layer.window for layer in layers}, key=lambda window: window or 0))
