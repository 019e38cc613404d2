"""A prompt's beginning that another live text shares is not read again.

Worked examples in an evaluation, a system prompt, several samples of one prompt: trees of these
texts begin with the same tokens, so they begin with the same slots.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

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

    def adopting(self) -> Callable[[Extension], int]:
        """What lets the empty trees of one pass take over what others have read.

        The function is called ask by ask, when the asks before are in the cache, and gives the
        number of tokens that need not be read.
        """
        known: list[tuple[KVTree, Tokens]] = []
        read: set[KVTree] = set()

        def adopt(ask: Extension) -> int:
            tree = ask.tree
            if tree.length or tree.slots > len(ask.tokens):
                return 0
            for other in set(self._trees) - read:
                if other.length:
                    known.append((other, np.array(other.path(other.tip))))
                    read.add(other)
            prompt = np.array(ask.tokens[: _chain(ask)])
            # A scored token must go through the model, and so must what attention is wanted of.
            most = 0 if ask.attention is not None else min(min(ask.wanted), len(prompt))
            start = _adopt(tree, prompt[:most], known)
            if len(ask.tokens) - start > FEW:
                known.append((tree, prompt))
            return start

        return adopt


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


def _adopt(tree: KVTree, prompt: Tokens, known: Sequence[tuple[KVTree, Tokens]]) -> int:
    if len(prompt) < LEAST:
        return 0
    lengths = [_common(prompt, theirs) for _, theirs in known]
    best = max(range(len(lengths)), key=lengths.__getitem__, default=None)
    if best is None or lengths[best] < LEAST:
        return 0
    ours, theirs = tree.storage, known[best][0].storage
    assert isinstance(ours, SlotStorage)
    assert isinstance(theirs, SlotStorage)
    ours.adopt(theirs.numbers[: lengths[best]].copy())
    return lengths[best]


def _common(ours: Tokens, theirs: Tokens) -> int:
    """Length of the common beginning."""
    size = min(len(ours), len(theirs))
    apart = np.flatnonzero(ours[:size] != theirs[:size])
    return int(apart[0]) if len(apart) else size
