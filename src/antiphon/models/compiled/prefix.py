"""A prompt's beginning that another live text shares is not read again.

Worked examples in an evaluation, a system prompt, several samples of one prompt: trees of these
texts begin with the same tokens, so they begin with the same slots.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from antiphon.models.base import Extension
from antiphon.models.compiled.layout import FEW
from antiphon.models.compiled.slots import Lease, Numbers, SlotPool, SlotStorage
from antiphon.models.compiled.slots import Numbers as Tokens
from antiphon.models.tree import ROOT, KVTree

LEAST = 16
"""Shorter beginnings are not worth looking for."""


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """What is kept of a text that has ended: its trunk's tokens, and the slots that hold them."""

    tokens: Tokens
    numbers: Numbers


Source: TypeAlias = KVTree | Ended


class Prefixes:
    """The texts of a model, by what they begin with: the live ones, and some that have ended.

    Attributes:
        kept_tokens: how many tokens of ended texts stay, those that were used last.
    """

    def __init__(self) -> None:
        self.kept_tokens = 0
        self._trees: weakref.WeakSet[KVTree] = weakref.WeakSet()
        self._ended: OrderedDict[Ended, SlotPool] = OrderedDict()

    def add(self, tree: KVTree) -> None:
        self._trees.add(tree)
        storage = tree.storage
        assert isinstance(storage, SlotStorage)
        weakref.finalize(tree, self._keep, tree.trunk, storage.lease).atexit = False

    def reading(self) -> Reading:
        """For the asks of one pass."""
        return Reading([*self._ended, *self._trees], self._used)

    def _keep(self, trunk: list[int], lease: Lease) -> None:
        """A tree ends, and is about to give its slots back."""
        # Of trees in a cycle of garbage the storage may have gone first.
        if LEAST <= len(trunk) <= self.kept_tokens and not lease.given:
            ended = Ended(np.array(trunk), lease.numbers[: len(trunk)].copy())
            lease.pool.share(ended.numbers)
            self._ended[ended] = lease.pool
        total = sum(len(ended.tokens) for ended in self._ended)
        while total > self.kept_tokens:
            oldest, pool = self._ended.popitem(last=False)
            pool.give_back(oldest.numbers)
            total -= len(oldest.tokens)

    def _used(self, source: Source) -> None:
        if isinstance(source, Ended):
            self._ended.move_to_end(source)


class Reading:
    """What other texts have read, seen from the asks of one pass; a `layout.Reader`.

    A tree whose prompt is matched counts as known from then on: it is read before the next one.
    """

    def __init__(
        self, sources: Iterable[Source], used: Callable[[Source], None] = lambda _: None
    ) -> None:
        self._sources, self._used = sources, used
        self._known: dict[Source, Tokens] = {}

    def match(self, ask: Extension) -> tuple[int, Source | None]:
        tree = ask.tree
        if tree.length or tree.slots > len(ask.tokens):
            return 0, None
        for other in self._sources:
            if other not in self._known:
                tokens = other.tokens if isinstance(other, Ended) else np.array(other.trunk)
                if len(tokens):
                    self._known[other] = tokens
        prompt = np.array(ask.tokens[: _chain(ask)])
        # A scored token must go through the model, and so must what attention is wanted of.
        most = 0 if ask.attention is not None else min([*ask.wanted, len(prompt)])
        found = [(_common(prompt[:most], theirs), other) for other, theirs in self._known.items()]
        self._known[tree] = prompt
        length, best = max(found, key=lambda pair: pair[0], default=(0, tree))
        return (length, best) if length >= LEAST else (0, None)

    def take(self, ask: Extension, length: int, source: Source | None) -> None:
        if source is not None:
            ours = ask.tree.storage
            assert isinstance(ours, SlotStorage)
            ours.adopt(_numbers(source)[:length].copy())
            self._used(source)
        if len(ask.tokens) - length <= FEW:
            # Read at the very end, with other blocks of a few tokens, who must not count on it.
            self._known.pop(ask.tree, None)


def _numbers(source: Source) -> Numbers:
    if isinstance(source, Ended):
        return source.numbers
    assert isinstance(source.storage, SlotStorage)
    return source.storage.numbers


def _chain(ask: Extension) -> int:
    """How many of the first tokens are a chain, as a prompt is."""
    if ask.parents is None:
        return len(ask.tokens)
    node = ROOT
    first = ask.tree.next_node - len(ask.tokens)
    for index, parent in enumerate(ask.parents):
        if parent != node:
            return index
        node = first + index
    return len(ask.tokens)


def _common(ours: Tokens, theirs: Tokens) -> int:
    """Length of the common beginning."""
    size = min(len(ours), len(theirs))
    apart = np.flatnonzero(ours[:size] != theirs[:size])
    return int(apart[0]) if len(apart) else size
