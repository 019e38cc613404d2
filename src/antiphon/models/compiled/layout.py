"""How the new tokens of several trees lie in one pass of the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from antiphon.models.base import Extension
from antiphon.models.compiled.slots import Numbers, SlotStorage

CHUNK = 256
"""Tokens of prompts in a pass, about: their scores must fit a processor's cache, and who decodes
meanwhile must not wait long."""
FEW = 16
"""Trees with at most this many new tokens share a pass, padded to the longest."""
STEP = 64
"""Slots are padded to multiples of it, where a runtime makes new kernels for every other shape."""
HIDDEN = -1e9
"""What a hidden slot adds to an attention logit; finite, so that padding never makes a NaN."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive new tokens of one ask: ``first .. first + count`` of its ``T``.

    Attributes:
        index: of the ask in the batch.
    """

    ask: Extension
    index: int
    first: int
    count: int

    @property
    def past(self) -> int:
        """Slots of the tree before the piece."""
        return self.ask.tree.slots - len(self.ask.tokens) + self.first

    @property
    def storage(self) -> SlotStorage:
        storage = self.ask.tree.storage
        assert isinstance(storage, SlotStorage)
        return storage

    @property
    def numbers(self) -> Numbers:
        """Numbers of the slots before the piece, and of its own."""
        return self.storage.numbers[: self.past + self.count]

    @property
    def rows(self) -> list[int]:
        """Which of the piece's tokens are scored."""
        return [row - self.first for row in self.ask.wanted if 0 <= row - self.first < self.count]

    def visible(self, window: int | None) -> npt.NDArray[np.bool_] | None:
        """`KVTree.visible` for the piece: ``[count, past + count]``, None where all is seen."""
        total = len(self.ask.tokens)
        seen = self.ask.tree.visible(total, window)
        if seen is None:
            return None
        return seen[self.first : self.first + self.count, : self.past + self.count]


class Reader(Protocol):
    """Finds out what of an ask is in the cache already, as part of another tree."""

    def match(self, ask: Extension) -> tuple[int, Any]:
        """The length of the longest beginning that another text holds, and that text's holder."""
        ...

    def take(self, ask: Extension, length: int, source: Any) -> None:
        """Let the ask's tree share the first `length` slots of what `match` found, if anything."""
        ...


def passes(asks: Sequence[Extension], reader: Reader) -> Iterator[list[Piece]]:
    """Which pieces go through the graph together; what is yielded is read before the next.

    Long blocks go in chunks: their passes are bound by arithmetic. Blocks up to a chunk, most
    prompts, share passes of about a chunk, and blocks of a few tokens go together at the end, so
    that the weights are read once.
    """
    few: list[Piece] = []
    prompts: list[Piece] = []
    for index, ask in enumerate(asks):
        total = len(ask.tokens)
        if total <= FEW:
            few.append(Piece(ask, index, 0, total))
            continue
        start, tree = reader.match(ask)
        if any(piece.ask.tree is tree for piece in prompts):
            # Not read yet. Waiting for it breaks up a pass, so it has to be worth it.
            if 2 * start > total:
                yield prompts
                prompts = []
            else:
                start, tree = 0, None
        reader.take(ask, start, tree)
        left = total - start
        if left <= FEW:
            few.append(Piece(ask, index, start, left))
        elif left > CHUNK:
            for first in range(start, total, CHUNK):
                yield [Piece(ask, index, first, min(CHUNK, total - first))]
        else:
            longest = max([left, *(piece.count for piece in prompts)])
            if longest * (len(prompts) + 1) > CHUNK and prompts:
                yield prompts
                prompts = []
            prompts.append(Piece(ask, index, start, left))
    if prompts:
        yield prompts
    if few:
        yield few


@dataclass(frozen=True, slots=True)
class Inputs:
    """The graph's small inputs: ``B`` pieces padded to ``Q`` tokens over ``U`` slots each.

    Attributes:
        tokens, positions: ``[1, T]``, the pieces end to end.
        rows: ``[R]``, which of the ``T`` are scored.
        slots: ``[B U]``, numbers of the slots that each piece's tokens may look back to.
        source: ``[B Q]``, which of the ``T`` each padded place holds.
        real: ``[T]``, at which padded place each token is.
        own: ``[T]``, the slots that the tokens' keys and values go to (not for the graph).
        masks: one ``[B, Q, U + Q]`` per window: what is added to attention logits.
    """

    tokens: Numbers
    positions: Numbers
    rows: Numbers
    slots: Numbers
    source: Numbers
    real: Numbers
    own: Numbers
    masks: tuple[npt.NDArray[np.float32], ...]

    def arrays(self) -> list[npt.NDArray[np.generic]]:
        """In the order of the graph's inputs."""
        own = [self.tokens, self.positions, self.rows, self.slots, self.source, self.real]
        return [*own, *self.masks]

    def written(self) -> list[npt.NDArray[np.generic]]:
        """The same for a graph that writes to its cache: see `graph.TreeForward`."""
        B = len(self.masks[0])
        # A tree's new tokens, padded, follow what they look back to.
        own = self.own[self.source].reshape(B, -1)
        slots = np.concatenate([self.slots.reshape(B, -1), own], 1).reshape(-1)
        return [self.tokens, self.positions, self.rows, slots, self.own, self.real, *self.masks]


def lay(pieces: Sequence[Piece], windows: Sequence[int | None], step: int = STEP) -> Inputs:
    """Lay out one pass; ``U`` is a multiple of `step`."""
    B, Q = len(pieces), max(piece.count for piece in pieces)
    U = max(step, -(-max(piece.past for piece in pieces) // step) * step)
    slots = np.zeros((B, U), dtype=np.int64)
    source = np.zeros((B, Q), dtype=np.int64)
    tokens: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    real: list[int] = []
    own: list[Numbers] = []
    for b, piece in enumerate(pieces):
        start = len(tokens)
        stop = piece.first + piece.count
        piece.storage.own(piece.past, piece.past + piece.count)
        slots[b, : piece.past] = piece.numbers[: piece.past]
        own.append(piece.numbers[piece.past :])
        source[b] = start
        source[b, : piece.count] = np.arange(start, start + piece.count)
        tokens += piece.ask.tokens[piece.first : stop]
        positions += piece.ask.tree.positions(len(piece.ask.tokens))[piece.first : stop]
        rows += [start + row for row in piece.rows]
        real += range(b * Q, b * Q + piece.count)
    return Inputs(
        tokens=np.array([tokens], dtype=np.int64),
        positions=np.array([positions], dtype=np.int64),
        rows=np.array(rows, dtype=np.int64),
        slots=slots.reshape(-1),
        source=source.reshape(-1),
        real=np.array(real, dtype=np.int64),
        own=np.concatenate(own),
        masks=tuple(_mask(pieces, Q, U, window) for window in windows),
    )


def _mask(pieces: Sequence[Piece], Q: int, U: int, window: int | None) -> npt.NDArray[np.float32]:
    mask = np.full((len(pieces), Q, U + Q), HIDDEN, dtype=np.float32)
    for b, piece in enumerate(pieces):
        past, count = piece.past, piece.count
        seen = piece.visible(window)
        if seen is None:
            mask[b, :count, :past] = 0.0
            mask[b, :count, U : U + count] = 0.0
        else:
            mask[b, :count, :past] = np.where(seen[:, :past], 0.0, HIDDEN)
            mask[b, :count, U : U + count] = np.where(seen[:, past:], 0.0, HIDDEN)
    return mask
