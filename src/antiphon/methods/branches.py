"""Many texts in one tree: shared beginnings are one path, whatever the order of asking."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.models.base import Extension, LanguageModel
from antiphon.models.tree import KVTree


class Branches:
    """Collects paths to append to a tree, so that equal ones are appended once.

    Args:
        model, tree: the tree and its model.
    """

    def __init__(self, model: LanguageModel, tree: KVTree) -> None:
        self.model, self.tree = model, tree
        self._first = tree.next_node
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}
        self._rows: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def add(self, parent: int, tokens: Sequence[int]) -> tuple[int, ...]:
        """Append a path below `parent`; returns its nodes, old ones where they are there."""
        path = []
        for token in tokens:
            node = self._nodes.get((parent, token))
            if node is None:
                node = self._first + len(self._tokens)
                self._nodes[parent, token] = node
                self._tokens.append(token)
                self._parents.append(parent)
            path.append(node)
            parent = node
        return tuple(path)

    def score(self, node: int) -> int:
        """Ask for the logits after a new node; returns their row in the answer."""
        return self._rows.setdefault(node, len(self._rows))

    def extension(self, hidden: bool = False) -> Extension:
        """The pass over all paths; `hidden`: with the last hidden states of the rows."""
        return Extension(
            self.model,
            self.tree,
            tokens=tuple(self._tokens),
            parents=tuple(self._parents),
            rows=tuple(node - self._first for node in self._rows),
            hidden=hidden,
        )


def settle(tree: KVTree, paths: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Bury what all paths share in the trunk and drop what none of them needs.

    Args:
        paths: crown nodes of each text, from the trunk's tip downwards.

    Returns:
        the paths that are left below the new tip, in the same order.
    """
    shared = 0
    for nodes in zip(*paths, strict=False):
        if len(set(nodes)) > 1:
            break
        shared += 1
    if shared:
        tree.commit(paths[0][shared - 1])
    left = [path[shared:] for path in paths]
    tree.prune(path[-1] for path in left if path)
    return left
