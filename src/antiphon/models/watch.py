"""The new tokens of one tree in a pass, and their attention weights for those who ask."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from antiphon.models.base import Capture
from antiphon.models.pool import Storage
from antiphon.models.tree import KVTree


@dataclass(frozen=True, slots=True)
class Segment:
    """The new tokens of one tree: columns ``start .. start + count`` of the pass."""

    tree: KVTree
    start: int
    count: int

    @property
    def row(self) -> int:
        assert isinstance(self.tree.storage, Storage)
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
        assert isinstance(storage, Storage)
        keys = storage.pool.keys[layer][storage.row, : segment.tree.slots].transpose(0, 1)
        new = query[0, :, segment.start : segment.start + segment.count]
        seen = segment.tree.visible(segment.count, window)
        self.weights.append(attention_weights(new, keys, seen, scaling, softcap, self.capture))


def attention_weights(
    queries: torch.Tensor,
    keys: torch.Tensor,
    seen: npt.NDArray[np.bool_] | None,
    scaling: float | None,
    softcap: float | None,
    capture: Capture,
) -> torch.Tensor:
    """Head-averaged weights ``[T, S]`` of ``[Hq, T, D]`` queries over ``[H, S, D]`` keys, float32.

    Args:
        seen: which keys each query sees, ``[T, S]``; None: all of them.
    """
    by_key_head = queries.float().reshape(keys.shape[0], -1, *queries.shape[1:])
    scale = queries.shape[-1] ** -0.5 if scaling is None else scaling
    logits = by_key_head @ keys.float()[:, None].transpose(-1, -2) * scale
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if seen is not None:
        logits = logits.masked_fill(~torch.from_numpy(seen).to(logits.device), -torch.inf)
    weights = logits.softmax(-1)
    if capture.threshold > 0:
        weights = weights.masked_fill(weights < capture.threshold, 0.0)
    if capture.renormalise:
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
    return weights.mean((0, 1))
