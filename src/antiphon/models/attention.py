"""Attention over trees, registered with transformers' AttentionInterface.

A forward pass holds the new tokens of many trees, laid end to end: linears see one long row
of tokens, attention sees each tree by itself. Trees that share a pool and get a few tokens each
are attended to in one call, padded to the longest; keys and values are read where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from antiphon.models.pool import Pool, Storage
from antiphon.models.watch import Segment, Watch

NAME = "antiphon_tree"
FEW = 16
"""Trees that get at most this many tokens share a call; the padding costs little."""


class Group:
    """Trees attended to in one call: a stretch of ``G`` rows of one pool.

    Args:
        pool: theirs.
        members: in the order of their rows. Rows of the stretch that belong to none of them
            are computed along with them and dropped.
        device: of the pass.
    """

    def __init__(self, pool: Pool, members: Sequence[Segment], device: torch.device) -> None:
        self.pool, self.members = pool, members
        first, last = members[0].row, members[-1].row
        self.rows = slice(first, last + 1)
        self.size = last + 1 - first
        self.count = max(segment.count for segment in members)
        self.used = max(segment.tree.slots for segment in members)
        self._masks: dict[tuple[int | None, int, torch.dtype], torch.Tensor | None] = {}
        # Where each padded place takes its query from, and which places hold a real token.
        source = np.zeros((self.size, self.count), dtype=np.int64)
        real: list[int] = []
        columns: list[int] = []
        for segment in members:
            place = segment.row - first
            mine = range(segment.start, segment.start + segment.count)
            source[place, : segment.count] = mine
            real += [place * self.count + i for i in range(segment.count)]
            columns += mine
        self.packed = len(real) == source.size and columns == list(
            range(columns[0], columns[0] + len(columns))
        )
        self.start = columns[0]
        self.source = torch.from_numpy(source.reshape(-1)).to(device)
        self.real = torch.tensor(real, device=device)
        self.columns = torch.tensor(columns, device=device)

    def mask(
        self, window: int | None, groups: int, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor | None:
        """Additive ``[G, 1, groups * count, used]``: `KVTree.visible`, once per query group."""
        key = (window, groups, dtype)
        if key not in self._masks:
            seen = self._visible(window)
            if seen is None:
                self._masks[key] = None
            else:
                # In one pass and type for all layers: a bool mask is converted at every call.
                mask = torch.zeros(seen.shape, dtype=dtype)
                mask.masked_fill_(~torch.from_numpy(seen), -torch.inf)
                self._masks[key] = mask.repeat(1, groups, 1)[:, None].to(device)
        return self._masks[key]

    def _visible(self, window: int | None) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Bool ``[G, count, used]``; None where everyone sees everything."""
        seen = np.zeros((self.size, self.count, self.used), dtype=np.bool_)
        seen[:, :, 0] = True  # A place without a token sees something, so as not to be NaN.
        whole = self.packed
        for segment in self.members:
            visible = segment.tree.visible(segment.count, window)
            place, slots = segment.row - self.members[0].row, segment.tree.slots
            whole &= visible is None and slots == self.used
            mine = seen[place, : segment.count, :slots]
            mine[:] = True if visible is None else visible
        return None if whole else seen


class TreeCache:
    """The cache object transformers' attention layers write to: it scatters to the trees.

    Only what modeling code calls is implemented: `update` and the length queries.
    """

    is_compileable = False

    def __init__(
        self,
        segments: Sequence[Segment],
        device: torch.device,
        watches: Sequence[Watch] = (),
    ) -> None:
        self.watches = watches
        self.groups = [Group(pool, members, device) for pool, members in grouped(segments)]
        self.order: torch.Tensor | None = None
        columns = torch.cat([group.columns for group in self.groups])
        if not torch.equal(columns, torch.arange(len(columns), device=device)):
            self.order = columns.argsort()
        self._places = [
            torch.tensor(
                [
                    segment.row * group.pool.slots + slot
                    for segment in group.members
                    for slot in range(segment.tree.slots - segment.count, segment.tree.slots)
                ],
                device=device,
            )
            for group in self.groups
        ]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store ``[1, H, T, D]`` keys and values of the new tokens in their trees."""
        for group, places in zip(self.groups, self._places, strict=True):
            for buffers, new in ((group.pool.keys, keys), (group.pool.values, values)):
                by_token = new[0].transpose(0, 1)
                if len(self.groups) > 1 or self.order is not None:
                    by_token = by_token.index_select(0, group.columns)
                buffers[layer_idx].flatten(0, 1).index_copy_(0, places, by_token)
        return keys, values

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, *_: Any, **__: Any) -> tuple[int, int]:
        return int(query_length), 0


def grouped(segments: Sequence[Segment]) -> list[tuple[Pool, list[Segment]]]:
    """Which segments are attended to together.

    Long ones alone. Few-token ones by pool, in stretches of rows at least half of which they
    fill: what the others cost stays below what they would cost apart.
    """
    found: list[tuple[Pool, list[Segment]]] = []
    few: dict[int, tuple[Pool, list[Segment]]] = {}
    for segment in segments:
        assert isinstance(segment.tree.storage, Storage)
        pool = segment.tree.storage.pool
        if segment.count > FEW:
            found.append((pool, [segment]))
        else:
            few.setdefault(id(pool), (pool, []))[1].append(segment)
    for pool, members in few.values():
        members.sort(key=lambda segment: segment.row)
        run: list[Segment] = []
        for segment in members:
            if run and segment.row - run[0].row + 1 > 2 * (len(run) + 1):
                found.append((pool, run))
                run = []
            run.append(segment)
        found.append((pool, run))
    return found


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
    for watch in tree_cache.watches:
        watch.see(query, layer, scaling, sliding_window, softcap)
    by_token = query[0].transpose(0, 1)  # [T, Hq, D]
    outputs = [
        _attend_group(group, by_token, layer, scaling, sliding_window, softcap)
        for group in tree_cache.groups
    ]
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if tree_cache.order is not None:
        joined = joined.index_select(0, tree_cache.order)
    return joined[None], None


def _attend_group(
    group: Group,
    by_token: torch.Tensor,
    layer: int,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """One group's output, ``[tokens, Hq, D]``, in the group's order of tokens."""
    heads, size = by_token.shape[1:]
    keys = group.pool.keys[layer][group.rows, : group.used].transpose(1, 2)
    values = group.pool.values[layer][group.rows, : group.used].transpose(1, 2)
    kv_heads = keys.shape[1]
    groups = heads // kv_heads
    if group.packed:
        new = by_token[group.start : group.start + group.size * group.count]
    else:
        new = by_token.index_select(0, group.source)
    # Query heads that share a key head become rows of one product: nothing is repeated.
    rows = (
        new.reshape(group.size, group.count, kv_heads, groups, size)
        .permute(0, 2, 3, 1, 4)
        .reshape(group.size, kv_heads, groups * group.count, size)
    )
    mask = group.mask(window, groups, rows.dtype, rows.device)
    out = _attend(rows, keys, values, mask, scaling, softcap)
    out = (
        out.reshape(group.size, kv_heads, groups, group.count, size)
        .permute(0, 3, 1, 2, 4)
        .reshape(group.size * group.count, heads, size)
    )
    return out if len(group.real) == len(out) else out.index_select(0, group.real)


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
        logits = logits + mask
    return torch.softmax(logits, dim=-1, dtype=torch.float32).to(query.dtype) @ values


def register() -> None:
    """Make `tree_attention` known to modeling code, which takes seconds to import.

    No mask function is registered: transformers builds no mask, trees bring theirs.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, tree_attention)
