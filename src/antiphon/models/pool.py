"""Where keys and values live: pools of rows, one row a tree, so that a batch is one tensor.

Decoding extends many trees by a few tokens each. If every tree had buffers of its own,
attention would be one small call per tree and layer, and its overhead would exceed the linears.
Trees of similar size therefore share a pool ``[R, S, H, D]`` per layer: rows, slots, heads,
head size. A batch of trees is a stretch of rows, read in place.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

SMALLEST = 64
"""Slots of the smallest pool; each size of pool has twice the slots of the one before."""


class Pool:
    """Rows of ``S`` slots in every layer. Rows are taken and given back.

    Unused slots hold zeros or old values, never garbage: a masked slot must not be NaN.

    Args:
        layers: number of layers.
        heads: key/value heads ``H``.
        head_dim: head size ``D``.
        slots: slots ``S`` of a row.
        dtype, device: of the buffers.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        head_dim: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots = slots
        self._shape = (slots, heads, head_dim)
        self._like = {"dtype": dtype, "device": device}
        self._free: list[int] = []
        self._rows = 0
        empty = torch.zeros((0, *self._shape), dtype=dtype, device=device)
        self.keys = [empty] * layers
        self.values = [empty] * layers

    def take(self) -> int:
        """A free row, the lowest one: rows in use lie close together."""
        if not self._free:
            self._resize(max(1, 2 * self._rows))
        row = min(self._free)
        self._free.remove(row)
        return row

    def give_back(self, row: int) -> None:
        """Let another tree have the row; with the last row the memory goes, too."""
        self._free.append(row)
        if len(self._free) == self._rows:
            self._resize(0)

    @torch.no_grad()
    def _resize(self, rows: int) -> None:
        kept = min(rows, self._rows)
        for buffers in (self.keys, self.values):
            for layer, old in enumerate(buffers):
                new = torch.zeros((rows, *self._shape), dtype=old.dtype, device=old.device)
                new[:kept] = old[:kept]
                buffers[layer] = new
        self._free = [row for row in self._free if row < rows] + list(range(self._rows, rows))
        self._rows = rows


class Pools:
    """One model's pools, by their number of slots: 64, 128, 256, ..."""

    def __init__(
        self,
        layers: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._shape = (layers, heads, head_dim)
        self._kind = (dtype, device)
        self._pools: dict[int, Pool] = {}

    def of(self, capacity: int) -> Pool:
        """The smallest pool whose rows hold `capacity` slots."""
        slots = max(SMALLEST, 1 << max(capacity - 1, 0).bit_length())
        if slots not in self._pools:
            self._pools[slots] = Pool(*self._shape, slots, *self._kind)
        return self._pools[slots]


class Storage:
    """Keys and values of one tree: a row of a pool, a larger pool's when it runs out of slots.

    Args:
        pools: of the model.
        capacity: slots to begin with.
    """

    def __init__(self, pools: Pools, capacity: int) -> None:
        self._pools = pools
        self._settle(pools.of(capacity))

    def _settle(self, pool: Pool) -> None:
        self.pool, self.row = pool, pool.take()
        # The row goes back when the tree is gone, but not while the interpreter shuts down.
        self._lease = weakref.finalize(self, pool.give_back, self.row)
        self._lease.atexit = False

    @property
    def capacity(self) -> int:
        return self.pool.slots

    @torch.no_grad()
    def reserve(self, slots: int) -> None:
        """Make room for `slots` slots, keeping what is stored."""
        if slots <= self.capacity:
            return
        old, row, lease = self.pool, self.row, self._lease
        self._settle(self._pools.of(slots))
        for ours, theirs in ((self.pool.keys, old.keys), (self.pool.values, old.values)):
            for new, before in zip(ours, theirs, strict=True):
                new[self.row, : old.slots] = before[row]
        lease()

    @torch.no_grad()
    def move(self, sources: Sequence[int], first: int) -> None:
        """Copy the slots `sources` to ``first, first + 1, ...`` in every layer."""
        for buffers in (self.pool.keys, self.pool.values):
            index = torch.tensor(sources, device=buffers[0].device)
            for buffer in buffers:
                row = buffer[self.row]
                row[first : first + len(sources)] = row.index_select(0, index)
