"""Attention over trees, registered with transformers' AttentionInterface.

A forward pass holds the new tokens of many trees, laid end to end: linears see one long row
of tokens, attention sees each tree by itself. Keys and values go straight into the trees'
own buffers and are read there, never gathered or padded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F
from transformers import AttentionInterface

from antiphon.models.tree import KVTree

NAME = "antiphon_tree"


@dataclass(slots=True)
class Segment:
    """The new tokens of one tree: columns ``start .. start + count`` of the pass."""

    tree: KVTree
    start: int
    count: int
    masks: dict[tuple[int | None, int], torch.Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None, groups: int, device: torch.device) -> torch.Tensor | None:
        """Bool ``[groups * count, slots]``: `KVTree.visible`, once per query group."""
        key = (window, groups)
        if key not in self.masks:
            seen = self.tree.visible(self.count, window)
            self.masks[key] = None if seen is None else seen.to(device).repeat(groups, 1)
        return self.masks[key]


class TreeCache:
    """The cache object transformers' attention layers write to: it scatters to the trees.

    Only what modeling code calls is implemented: `update` and the length queries.
    """

    is_compileable = False

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store ``[1, H, T, D]`` keys and values of the new tokens in their trees."""
        for segment in self.segments:
            storage = segment.tree.storage
            assert storage is not None
            new = slice(segment.start, segment.start + segment.count)
            slots = slice(segment.tree.slots - segment.count, segment.tree.slots)
            storage.keys[layer_idx][:, slots] = keys[0, :, new]
            storage.values[layer_idx][:, slots] = values[0, :, new]
        return keys, values

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, *_: Any, **__: Any) -> tuple[int, int]:
        return int(query_length), 0


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    tree_cache: TreeCache | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of the new tokens over their own trees.

    Args:
        query: ``[1, Hq, T, D]``. `key` and `value` are already stored (`TreeCache.update`).
        sliding_window: positions a layer may look back, if it is limited.
        softcap: Gemma 2's bound on attention logits.

    Returns:
        ``[1, T, Hq, D]`` and no weights.
    """
    if tree_cache is None:
        raise RuntimeError("tree attention runs only inside antiphon's own forward pass")
    layer: int = module.layer_idx  # type: ignore[assignment]
    heads, _total, size = query.shape[1:]
    outputs = []
    for segment in tree_cache.segments:
        storage = segment.tree.storage
        assert storage is not None
        used = segment.tree.slots
        keys, values = storage.keys[layer][:, :used], storage.values[layer][:, :used]
        kv_heads = keys.shape[0]
        groups = heads // kv_heads
        new = query[0, :, segment.start : segment.start + segment.count]
        # Query heads that share a key head become rows of one product: nothing is repeated.
        rows = new.reshape(1, kv_heads, groups * segment.count, size)
        mask = segment.mask(sliding_window, groups, query.device)
        out = _attend(rows, keys[None], values[None], mask, scaling, softcap)
        outputs.append(out.reshape(heads, segment.count, size))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return joined.transpose(0, 1)[None], None


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    if softcap is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    logits = torch.tanh(query @ keys.transpose(-1, -2) * scale / softcap) * softcap
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf"))
    return torch.softmax(logits, dim=-1, dtype=torch.float32).to(query.dtype) @ values


# No mask function is registered under this name: transformers builds no mask, trees bring theirs.
AttentionInterface.register(NAME, tree_attention)
