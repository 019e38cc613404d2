"""The new tokens of one tree in a pass, and their attention weights for those who ask."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from antiphon.models.base import Capture
from antiphon.models.tree import KVTree


@dataclass(frozen=True, slots=True)
class Segment:
    """The new tokens of one tree: columns ``start .. start + count`` of the pass."""

    tree: KVTree
    start: int
    count: int

    @property
    def row(self) -> int:
        assert self.tree.storage is not None
        return self.tree.storage.row


@dataclass(slots=True)
class Watch:
    """Collects the attention weights of one tree's new tokens, layer by layer.

    Attributes:
        first: the lowest layer that is wanted.
        weights: ``[T, S]`` of each layer, lowest first.
    """

    segment: Segment
    capture: Capture
    first: int
    weights: list[torch.Tensor] = field(default_factory=list)

    def see(
        self,
        query: torch.Tensor,
        layer: int,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> None:
        """Work out one layer's weights from its queries ``[1, Hq, T, D]``: exact, in float32."""
        if layer < self.first:
            return
        segment = self.segment
        storage = segment.tree.storage
        assert storage is not None
        slots = segment.tree.slots
        keys = storage.pool.keys[layer][storage.row, :slots].float().permute(1, 2, 0)
        new = query[0, :, segment.start : segment.start + segment.count].float()
        grouped_ = new.reshape(keys.shape[0], -1, *new.shape[1:])
        scale = new.shape[-1] ** -0.5 if scaling is None else scaling
        logits = grouped_ @ keys[:, None] * scale
        if softcap is not None:
            logits = torch.tanh(logits / softcap) * softcap
        seen = segment.tree.visible(segment.count, window)
        if seen is not None:
            hidden = ~torch.from_numpy(seen).to(logits.device)
            logits = logits.masked_fill(hidden, -torch.inf)
        weights = logits.softmax(-1)
        if self.capture.threshold > 0:
            weights = weights.masked_fill(weights < self.capture.threshold, 0.0)
        if self.capture.renormalise:
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
        self.weights.append(weights.mean((0, 1)))
