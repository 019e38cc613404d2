"""A prompt's beginning that another live text shares is not read again.

Worked examples in an evaluation, a system prompt, several samples of one prompt: trees of these
texts begin with the same tokens, so they begin with the same slots.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from antiphon.models.base import Extension
from antiphon.models.compiled.layout import FEW
from antiphon.models.compiled.slots import Numbers as Tokens
from antiphon.models.compiled.slots import SlotStorage
from antiphon.models.tree import ROOT, KVTree

LEAST = 16
"""Shorter beginnings are not worth looking for."""


class Prefixes:
    """The trees of a model, by what they begin with: the live ones, and some that have ended.

    Attributes:
        kept_tokens: how many tokens' slots may outlive their requests, the last used ones.
    """

    def __init__(self) -> None:
        self.kept_tokens = 0
        self._trees: weakref.WeakSet[KVTree] = weakref.WeakSet()
        self._recent: OrderedDict[KVTree, None] = OrderedDict()

    def add(self, tree: KVTree) -> None:
        self._trees.add(tree)
        if self.kept_tokens:
            self._recent[tree] = None

    def used(self, tree: KVTree) -> None:
        """Another text has begun as this one does."""
        if tree in self._recent:
            self._recent.move_to_end(tree)

    def reading(self) -> Reading:
        """For the asks of one pass."""
        self._forget()
        return Reading(self._trees, self.used)

    def _forget(self) -> None:
        """Let the oldest trees go; one that is in use lives on with its request."""
        total = sum(tree.slots for tree in self._recent)
        while total > self.kept_tokens:
            oldest, _ = self._recent.popitem(last=False)
            total -= oldest.slots


class Reading:
    """What other trees have read, seen from the asks of one pass; a `layout.Reader`.

    A tree whose prompt is matched counts as known from then on: it is read before the next one.
    """

    def __init__(
        self, trees: weakref.WeakSet[KVTree], used: Callable[[KVTree], None] = lambda _: None
    ) -> None:
        self._trees, self._used = trees, used
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
        most = 0 if ask.attention is not None else min([*ask.wanted, len(prompt)])
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
            self._used(tree)
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
