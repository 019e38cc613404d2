"""KVTree: what one request has written into one model, as a trunk and a crown.

The *trunk* is the committed prefix, in slots ``0 .. length - 1``. The *crown* is everything
tentative: nodes with a parent, in the slots after the trunk. A node attends to the whole
trunk, to its own ancestors in the crown, and to itself. Four operations serve every decoding
method: `grow` (done by a model's forward), `commit`, `prune`, and forking, which is no
operation at all: two children of one node.

Nodes are named by integers that stay valid until the node is pruned or buried in the trunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

ROOT = -1
"""The name of the empty trunk's tip: the parent of a first token."""


class Slots(Protocol):
    """Where a tree's keys and values are kept: place ``i`` holds those of the tree's slot ``i``."""

    def reserve(self, slots: int) -> None:
        """Make room for `slots` slots, keeping what is stored."""
        ...

    def move(self, sources: Sequence[int], first: int) -> None:
        """Let ``first, first + 1, ...`` hold what the places `sources` hold now."""
        ...


class KVTree:
    """Topology of one request in one model, over optional `Slots`.

    A model without a cache (a lookup table, say) uses a tree without storage. While the crown
    is a chain, as it is without forks, no table of ancestors is kept: a node sees those before
    it.

    Attributes:
        tip: the node at the trunk's end (`ROOT` while the trunk is empty).
        length: number of trunk slots.
        next_node: the name the next grown node will get; names are consecutive.
    """

    def __init__(self, storage: Slots | None = None) -> None:
        self.storage = storage
        self.tip = ROOT
        self.next_node = 0
        self._trunk: list[int] = []
        self._tokens: list[int] = []
        self._nodes: list[int] = []
        self._parents: list[int] = []
        self._positions: list[int] = []
        self._slot_of: dict[int, int] = {}
        self._ancestors: npt.NDArray[np.bool_] = np.zeros((8, 8), dtype=np.bool_)
        self._is_chain = True

    @property
    def length(self) -> int:
        return len(self._trunk)

    @property
    def trunk(self) -> list[int]:
        """The committed tokens; the list itself, which grows with them."""
        return self._trunk

    @property
    def slots(self) -> int:
        """Slots in use, trunk and crown together."""
        return len(self._trunk) + len(self._nodes)

    @property
    def crown(self) -> tuple[int, ...]:
        """The nodes of the crown, oldest first."""
        return tuple(self._nodes)

    def has(self, node: int) -> bool:
        """Whether a token may hang from `node`."""
        return node == self.tip or node in self._slot_of

    def chain(self, parent: int, count: int) -> tuple[int, ...]:
        """Parents for `count` new tokens in a row, the first of them below `parent`."""
        return (parent, *range(self.next_node, self.next_node + count - 1))

    def grow(self, parents: Sequence[int], tokens: Sequence[int]) -> range:
        """Add one node per token; a token may hang from an earlier one of the same call.

        Returns the new nodes' names. Raises ValueError for a parent that is neither the
        trunk's tip nor in the crown.
        """
        if len(parents) != len(tokens):
            raise ValueError(f"{len(parents)} parents for {len(tokens)} tokens")
        first = self.next_node
        if not self._grow_chain(parents, tokens):
            self._grow_tree(parents, tokens)
        if self.storage is not None:
            self.storage.reserve(self.slots)
        return range(first, self.next_node)

    def commit(self, node: int) -> None:
        """Bury the path to `node` in the trunk; only `node`'s descendants stay in the crown."""
        if node == self.tip:
            return
        index = self._index(node)
        if self._is_chain:
            # The path lies where the trunk ends, and what stays follows it: nothing moves.
            self._trunk += self._tokens[: index + 1]
            self._cut(slice(index + 1, None))
        else:
            path = np.flatnonzero(self._ancestors[index, : len(self._nodes)]).tolist()
            below = self._ancestors[: len(self._nodes), index].copy()
            below[index] = False
            self._compact(path, np.flatnonzero(below).tolist())
        self.tip = node

    def prune(self, keep: Iterable[int] = ()) -> None:
        """Drop every crown node that is not in `keep` or an ancestor of one that is."""
        kept = [self._index(node) for node in keep if node != self.tip]
        if self._is_chain or not kept:
            self._is_chain = True
            self._cut(slice(max(kept, default=-1) + 1))
            return
        alive = self._ancestors[kept, : len(self._nodes)].any(0)
        self._compact([], np.flatnonzero(alive).tolist())

    def path(self, node: int) -> list[int]:
        """The tokens from the beginning of the trunk to `node`, that one included."""
        if node == self.tip:
            return list(self._trunk)
        index = self._index(node)
        if self._is_chain:
            return self._trunk + self._tokens[: index + 1]
        row = self._ancestors[index, : len(self._nodes)]
        return self._trunk + [self._tokens[i] for i in np.flatnonzero(row).tolist()]

    def positions(self, count: int) -> list[int]:
        """Text positions of the newest `count` nodes."""
        return self._positions[len(self._positions) - count :]

    def visible(self, count: int, window: int | None = None) -> npt.NDArray[np.bool_] | None:
        """Which slots the newest `count` nodes see: bool ``[count, slots]``, or None for all.

        Args:
            count: number of newest nodes, the rows.
            window: sliding-window size; slots at `window` or more positions back are hidden.
        """
        crowded = window is not None and max(self.positions(count)) >= window
        if count == 1 and self._is_chain and not crowded:
            return None
        size = len(self._nodes)
        seen = np.ones((count, self.slots), dtype=np.bool_)
        if self._is_chain:
            seen[:, self.length :] = np.tri(count, size, size - count, dtype=np.bool_)
        else:
            seen[:, self.length :] = self._ancestors[size - count : size, :size]
        if crowded and window is not None:
            mine = np.asarray(self.positions(count))[:, None]
            theirs = np.asarray([*range(self.length), *self._positions])[None, :]
            seen &= mine - theirs < window
        return seen

    def _index(self, node: int) -> int:
        if node not in self._slot_of:
            raise ValueError(f"node {node} is not in the crown")
        return self._slot_of[node]

    def _grow_chain(self, parents: Sequence[int], tokens: Sequence[int]) -> bool:
        """Add tokens that lengthen a chain, all at once; False: these do not."""
        count, first, size = len(tokens), self.next_node, len(self._nodes)
        top = self._nodes[-1] if self._nodes else self.tip
        if not self._is_chain or tuple(parents) != (top, *range(first, first + count - 1)):
            return False
        names, place = range(first, first + count), self.slots
        self._nodes += names
        self._tokens += tokens
        self._parents += parents
        self._positions += range(place, place + count)
        self._slot_of.update(zip(names, range(size, size + count), strict=True))
        self.next_node += count
        return True

    def _grow_tree(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        self._make_room(len(self._nodes) + len(tokens))
        for parent, token in zip(parents, tokens, strict=True):
            index = len(self._nodes)
            row = self._ancestors[index]
            row[:] = False
            if parent == self.tip:
                position = self.length
                self._is_chain &= index == 0
            elif parent in self._slot_of:
                above = self._slot_of[parent]
                position = self._positions[above] + 1
                row[:] = self._ancestors[above]
                self._is_chain &= above == index - 1
            else:
                raise ValueError(f"node {parent} is neither the trunk's tip nor in the crown")
            row[index] = True
            self._nodes.append(self.next_node)
            self._tokens.append(token)
            self._parents.append(parent)
            self._positions.append(position)
            self._slot_of[self.next_node] = index
            self.next_node += 1

    def _make_room(self, size: int) -> None:
        """A table for `size` nodes that holds those of the crown."""
        old, used = len(self._ancestors), len(self._nodes)
        if size > old:
            grown = np.zeros((2 * size, 2 * size), dtype=np.bool_)
            grown[:old, :old] = self._ancestors
            self._ancestors = grown
        if self._is_chain:
            self._ancestors[:used] = np.tri(used, len(self._ancestors), dtype=np.bool_)

    def _cut(self, kept: slice) -> None:
        """Keep a stretch of a chain; its nodes stay where they lie."""
        for column in (self._tokens, self._nodes, self._parents, self._positions):
            column[:] = column[kept]
        self._slot_of = {node: index for index, node in enumerate(self._nodes)}

    def _compact(self, path: list[int], kept: list[int]) -> None:
        """Lay the slots anew: trunk, then `path` (which joins it), then `kept`."""
        order = path + kept
        moved = next((i for i, index in enumerate(order) if i != index), len(order))
        if self.storage is not None and moved < len(order):
            sources = [self.length + index for index in order[moved:]]
            self.storage.move(sources, self.length + moved)
        self._trunk += [self._tokens[index] for index in path]
        block = self._ancestors[np.ix_(kept, kept)]
        self._ancestors[: len(kept), : len(kept)] = block
        self._ancestors[: len(kept), len(kept) :] = False
        for name in ("_tokens", "_nodes", "_parents", "_positions"):
            column = getattr(self, name)
            setattr(self, name, [column[index] for index in kept])
        self._slot_of = {node: index for index, node in enumerate(self._nodes)}
        tip = self.tip if not path else None
        self._is_chain = all(
            (index == 0 and (tip is None or parent == tip))
            or (index > 0 and self._slot_of.get(parent) == index - 1)
            for index, parent in enumerate(self._parents)
        )
