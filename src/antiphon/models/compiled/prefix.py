"""A prompt's beginning that another live text shares is not read again.

Worked examples in an evaluation, a system prompt, several samples of one prompt: trees of these
texts begin with the same tokens, so they begin with the same slots.
"""

from __future__ import annotations

import weakref

import numpy as np

from antiphon.models.base import Extension
from antiphon.models.compiled.layout import FEW
from antiphon.models.compiled.slots import Numbers as Tokens
from antiphon.models.compiled.slots import SlotStorage
from antiphon.models.tree import ROOT, KVTree

LEAST = 16
"""Shorter beginnings are not worth looking for."""


class Prefixes:
    """The live trees of a model, by what they begin with."""

    def __init__(self) -> None:
        self._trees: weakref.WeakSet[KVTree] = weakref.WeakSet()

    def add(self, tree: KVTree) -> None:
        self._trees.add(tree)

    def reading(self) -> Reading:
        """For the asks of one pass."""
        return Reading(self._trees)


class Reading:
    """What other trees have read, seen from the asks of one pass; a `layout.Reader`.

    A tree whose prompt is matched counts as known from then on: it is read before the next one.
    """

    def __init__(self, trees: weakref.WeakSet[KVTree]) -> None:
        self._trees = trees
        self._known: dict[KVTree, Tokens] = {}

    def match(self, ask: Extension) -> tuple[int, KVTree | None]:
        tree = ask.tree
        if tree.length or tree.slots > len(ask.tokens):
            return 0, None
        for other in self._trees:
            if other.length and other not in self._known:
                self._known[other] = np.array(other.path(other.tip))
        prompt = np.array(ask.tokens[: _chain(ask)])
        # A scored token must go through the model, and so must what attention is wanted of.
        most = 0 if ask.attention is not None else min(min(ask.wanted), len(prompt))
        found = [(_common(prompt[:most], theirs), other) for other, theirs in self._known.items()]
        self._known[tree] = prompt
        length, best = max(found, key=lambda pair: pair[0], default=(0, tree))
        return (length, best) if length >= LEAST else (0, None)

    def take(self, ask: Extension, length: int, tree: KVTree | None) -> None:
        if tree is not None:
            ours, theirs = ask.tree.storage, tree.storage
            assert isinstance(ours, SlotStorage)
            assert isinstance(theirs, SlotStorage)
            ours.adopt(theirs.numbers[:length].copy())
        if len(ask.tokens) - length <= FEW:
            # Read at the very end, with other blocks of a few tokens, who must not count on it.
            self._known.pop(ask.tree, None)


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
