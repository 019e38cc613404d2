"""One buffer of slots for all trees: a tree holds a list of slot numbers, nothing is ever moved.

The compiled graph gathers a tree's keys and values by number, so where they lie is free. A
commit or a prune only reorders the list.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

SMALLEST = 512

Numbers = npt.NDArray[np.int64]


class SlotPool:
    """Keys and values ``[2 L, H, N, D]`` of every tree of a model: layer by layer, K before V.

    Slots that were never written hold zeros: a masked slot must not be NaN.

    Args:
        lasting: slots to hold from the beginning and to the end; 0: as many as are needed.

    Attributes:
        buffer: another tensor after growth, see `version`.
        peak: most slots that were in use at once.
        version: rises when `buffer` is another tensor.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        lasting: int = 0,
    ) -> None:
        shape = (2 * layers, heads, 0, head_dim)
        self.buffer = torch.zeros(shape, dtype=dtype, device=device or torch.device("cpu"))
        self.version = 0
        self.peak = 0
        self._free: list[int] = []
        self._users: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._lasting = lasting
        if lasting:
            self._grow(lasting)

    @property
    def in_use(self) -> int:
        return self.buffer.shape[2] - len(self._free)

    def take(self, count: int) -> Numbers:
        """`count` free slots; the buffer doubles when it has too few."""
        if len(self._free) < count:
            self._grow(self.in_use + count)
        # The last ones are the lowest numbers: `give_back` and `_grow` keep that order roughly.
        left = len(self._free) - count
        taken = np.array(self._free[left:][::-1], dtype=np.int64)
        del self._free[left:]
        self._users[taken] = 1
        self.peak = max(self.peak, self.in_use)
        return taken

    def share(self, slots: Numbers) -> None:
        """One more tree uses these slots."""
        self._users[slots] += 1

    def shared(self, slots: Numbers) -> npt.NDArray[np.bool_]:
        """Which of the slots are used by several trees: those must not be written."""
        return np.asarray(self._users[slots] > 1)

    def give_back(self, slots: Numbers) -> None:
        """A tree fewer uses these slots; with the last one in use the memory goes, too."""
        self._users[slots] -= 1
        self._free += slots[self._users[slots] == 0][::-1].tolist()
        if not self.in_use and self.buffer.shape[2] > self._lasting:
            self._free = []
            self._replace(0)
            if self._lasting:
                self._grow(self._lasting)

    def write(self, slots: Numbers, new: torch.Tensor) -> None:
        """Store ``[2 L, H, T, D]`` in `T` slots."""
        self.buffer.index_copy_(2, torch.from_numpy(slots).to(self.buffer.device), new)

    def _grow(self, needed: int) -> None:
        old = self.buffer.shape[2]
        size = max(SMALLEST, 2 * old, needed)
        self._replace(size)
        self._free = [*range(size - 1, old - 1, -1), *self._free]

    def _replace(self, size: int) -> None:
        old = self.buffer
        kept = min(size, old.shape[2])
        shape = (*old.shape[:2], size, old.shape[3])
        self.buffer = torch.zeros(shape, dtype=old.dtype, device=old.device)
        self.buffer[:, :, :kept] = old[:, :, :kept]
        self._users = np.resize(self._users, size) if size else self._users[:0]
        self._users[kept:] = 0
        self.version += 1


class SlotStorage:
    """The slots of one tree, in the tree's order; see `tree.Slots`."""

    def __init__(self, pool: SlotPool, capacity: int) -> None:
        self.pool = pool
        self.lease = Lease(pool)
        # Given back when the tree is gone, but not while the interpreter shuts down.
        weakref.finalize(self, self.lease.end).atexit = False
        self.reserve(capacity)

    @property
    def numbers(self) -> Numbers:
        """Place -> slot."""
        return self.lease.numbers

    def reserve(self, slots: int) -> None:
        """Have numbers for `slots` slots."""
        missing = slots - len(self.numbers)
        if missing > 0:
            # Half as much again: a list that grows one by one would be copied at every token.
            taken = self.pool.take(max(missing, min(len(self.numbers) // 2, 256)))
            self.lease.numbers = np.concatenate([self.numbers, taken])

    def move(self, sources: Sequence[int], first: int) -> None:
        """Let places ``first, first + 1, ...`` be what the places `sources` are now."""
        stop = max(*sources, first + len(sources) - 1) + 1
        chosen = np.array(sources, dtype=np.int64)
        left = np.setdiff1d(np.arange(first, stop), chosen, assume_unique=True)
        self.numbers[first:stop] = self.numbers[np.concatenate([chosen, left])]

    def adopt(self, slots: Numbers) -> None:
        """Let the first places be another tree's slots, which hold the same tokens."""
        self.pool.share(slots)
        self.pool.give_back(self.numbers[: len(slots)])
        self.numbers[: len(slots)] = slots

    def own(self, first: int, stop: int) -> None:
        """Make the places ``first .. stop`` safe to write: no other tree looks at their slots."""
        places = first + np.flatnonzero(self.pool.shared(self.numbers[first:stop]))
        if len(places):
            self.pool.give_back(self.numbers[places])
            self.numbers[places] = self.pool.take(len(places))


class Lease:
    """What a tree must give back; `given` once it has."""

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool
        self.numbers: Numbers = np.zeros(0, dtype=np.int64)
        self.given = False

    def end(self) -> None:
        self.given = True
        self.pool.give_back(self.numbers)
